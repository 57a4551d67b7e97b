/// A plan: what becomes of each group of a step, and what that is expected to cost. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::plan {

/// What becomes of a group between forward and backward.
enum class action : std::uint8_t {
  keep,            ///< stays on the device
  offload,         ///< leaves, and comes back for backward
  recompute,       ///< is discarded, and computed again in backward
  offload_to_peer  ///< leaves to a neighbour's memory, or where that is full to the host
};

/// Whether it leaves and comes back, wherever to.
[[nodiscard]] constexpr bool is_offload(action what) {
  return what == action::offload || what == action::offload_to_peer;
}

/// The name of an action, as plan files have it.
[[nodiscard]] constexpr std::string_view name_of(action what) {
  constexpr std::string_view names[]{"keep", "offload", "recompute", "offload_to_peer"};
  return names[static_cast<std::size_t>(what)];
}

/// For each chunk of a step, in forward order, and each of its groups.
using actions = std::vector<std::vector<action>>;

/// What a step is expected to be.
struct outcome {
  bool runs = true;     ///< false: the budget cannot hold what must be live
  double step_us = 0;   ///< of the whole step
  double stall_us = 0;  ///< of it, standing still for the copies
  double extra_us = 0;  ///< of it, recomputing
  /// Most device bytes of saved tensors, in issue order; where no plan fits: the least budget for
  /// which the planner finds one.
  std::size_t peak = 0;
  std::size_t moved = 0;  ///< bytes that leave

  friend bool operator==(const outcome&, const outcome&) = default;
};

/// What limits a plan.
enum class limit : std::uint8_t {
  nothing,  ///< everything fits, and nothing leaves
  compute,  ///< the copies hide behind the computing
  link,     ///< the rates: with them no plan is faster, or only by the gap
  memory    ///< the budget: the step waits although the link stands still at times
};

/// The name of a limit, as plan files have it.
[[nodiscard]] constexpr std::string_view name_of(limit what) {
  constexpr std::string_view names[]{"nothing", "compute", "link", "memory"};
  return names[static_cast<std::size_t>(what)];
}

/// A plan for one step, as the planner chose it.
struct step_plan {
  actions what;                        ///< for each group
  std::size_t device_budget = 0;       ///< bytes; 0: as much as is kept at once
  std::size_t reload_ahead = 2;        ///< groups, as in `options`
  std::size_t reload_ahead_bytes = 0;  ///< 0: no such limit
  outcome expected;                    ///< by the planner's simulation
  double bound_us = 0;                 ///< no plan for this profile and budget takes less
  limit limited_by = limit::nothing;   ///< what keeps it from being faster
  std::size_t peer_budget = 0;         ///< bytes of a neighbour's memory; 0: none

  /// How much slower than the best there can be it is at most: 0.01 is one percent.
  [[nodiscard]] double gap() const {
    return bound_us > 0 && expected.runs ? expected.step_us / bound_us - 1 : 0;
  }

  friend bool operator==(const step_plan&, const step_plan&) = default;
};

/// The actions of a rule that knows of staying and leaving alone.
[[nodiscard]] inline actions actions_of(const std::vector<std::vector<bool>>& stays) {
  actions what;
  for (const auto& chunk : stays) {
    auto& row = what.emplace_back();
    for (const bool each : chunk) row.push_back(each ? action::keep : action::offload);
  }
  return what;
}

}  // namespace tidepool::plan
