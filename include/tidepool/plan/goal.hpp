/// A goal: the limits in bytes that a plan has to respect, and the search effort allowed for it.
/// Plain data; the input of `planner` beside the profile.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan {

/// The step time in microseconds, plus the time that the copies cost the kernels beside them;
/// infinite if the step does not run. Plans are compared by this cost.
[[nodiscard]] inline double cost_us(const outcome& of) {
  if (!of.runs) return std::numeric_limits<double>::infinity();
  return of.step_us + contention_us_per_byte * static_cast<double>(of.moved);
}

/// The limits of a plan, and the effort of the search for it.
struct goal {
  std::size_t device_budget = 0;  ///< bytes of saved tensors; 0: as many as keeping all takes
  bool recompute = false;         ///< true: groups with a `recompute_us` may be recomputed
  std::size_t peer_budget = 0;    ///< bytes of a neighbour's memory; 0: the neighbour is not used
  /// Numbers of groups reloaded ahead that the search may choose; empty:
  /// `constants::reloads_ahead`.
  std::vector<std::size_t> reload_ahead{};
  /// Events that the search may simulate, at about 10 ns each, in addition to those of its start
  /// rules.
  std::size_t work = constants::work;
  /// The most steps that the search may simulate, whatever `work` allows; none: no such limit.
  std::optional<std::size_t> effort{};
  /// True: groups of one layer and module get the same action in all microbatches. The simulator
  /// predicts a slower step for such a plan, but its requests for memory repeat, so that memory is
  /// less fragmented.
  bool alike = false;
};

}  // namespace tidepool::plan
