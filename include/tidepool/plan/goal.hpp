/// What a plan is asked for. Plain data.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan {

/// The time of a step with what its copies cost the kernels; infinite when it does not run.
[[nodiscard]] inline double cost_us(const outcome& of) {
  if (!of.runs) return std::numeric_limits<double>::infinity();
  return of.step_us + contention_us_per_byte * static_cast<double>(of.moved);
}

/// What a plan is asked for, and how long may be searched for it.
struct goal {
  std::size_t device_budget = 0;  ///< bytes of saved tensors; 0: whatever keeping all takes
  bool recompute = false;         ///< groups that can be recomputed may be
  std::size_t peer_budget = 0;    ///< bytes of a neighbour's memory; 0: nothing goes there
  /// Reloads ahead of use that may be chosen; empty: the planner's own few.
  std::vector<std::size_t> reload_ahead{};
  /// Events that the search may simulate, about 10 ns each, beside those that a search begins with.
  std::size_t work = constants::work;
  /// Steps that it may simulate at most, whatever `work` allows.
  std::optional<std::size_t> effort{};
  /// Groups of one layer and module go the same way in all microbatches. Such a plan is slower by
  /// the simulator, but memory is then asked for alike time and again, and falls into fewer pieces.
  bool alike = false;
};

}  // namespace tidepool::plan
