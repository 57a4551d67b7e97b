/// Ranks as a grid: the stages of a pipeline by the ranks that share the experts of a stage.
#pragma once

namespace moe {

/// Each rank has a place in two rows: its line has the other stages, its group the other experts
/// of its layers. Ranks of a group are neighbours by number, since rows of experts are the larger
/// messages, and launchers put neighbours on one machine.
struct rank_grid {
  int stages = 1;   ///< ranks of a line
  int experts = 1;  ///< ranks of a group

  [[nodiscard]] int ranks() const { return stages * experts; }
  [[nodiscard]] int stage_of(int rank) const { return rank / experts; }   ///< place in its line
  [[nodiscard]] int member_of(int rank) const { return rank % experts; }  ///< place in its group
  [[nodiscard]] int rank_of(int stage, int member) const { return stage * experts + member; }
};

}  // namespace moe
