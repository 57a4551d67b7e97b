/// A plan: the action for each group of a step (keep, offload or recompute), the limits it was made
/// for in bytes, and the step time it is expected to take in microseconds. Plain data, so that
/// plans can be saved, compared and followed later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::plan {

/// The treatment of a group between forward and backward.
enum class action : std::uint8_t {
  keep,            ///< stays on the device
  offload,         ///< is copied to a place, and back for backward
  recompute,       ///< is discarded, and computed again in backward
  offload_to_peer  ///< is copied to a neighbour's memory, or to the host if that is full
};

/// True if the group is copied away and back, to whichever place.
[[nodiscard]] constexpr bool is_offload(action what) {
  return what == action::offload || what == action::offload_to_peer;
}

/// The name of an action, as plan files have it.
[[nodiscard]] constexpr std::string_view name_of(action what) {
  constexpr std::string_view names[]{"keep", "offload", "recompute", "offload_to_peer"};
  return names[static_cast<std::size_t>(what)];
}

/// An action for each group of each chunk of a step, chunks and groups in forward order.
using actions = std::vector<std::vector<action>>;

/// The predicted time and memory of a step.
struct outcome {
  bool runs = true;     ///< false: the budget cannot hold the tensors that must be on the device
  double step_us = 0;   ///< time of the whole step
  double stall_us = 0;  ///< part of `step_us` in which computing waits for copies
  double extra_us = 0;  ///< part of `step_us` that recomputes groups
  /// The most device bytes of saved tensors at once, counted in the order of calls. If no plan
  /// fits: the least budget in bytes for which the planner finds one.
  std::size_t peak = 0;
  std::size_t moved = 0;  ///< bytes that are offloaded

  friend bool operator==(const outcome&, const outcome&) = default;
};

/// The resource that keeps a plan from being faster.
enum class limit : std::uint8_t {
  nothing,  ///< everything fits, and nothing is offloaded
  compute,  ///< all copies hide behind the computing
  link,     ///< the copy rates: at these rates no plan is faster by more than the gap
  memory    ///< the budget: the step waits although the link idles at times
};

/// The name of a limit, as plan files have it.
[[nodiscard]] constexpr std::string_view name_of(limit what) {
  constexpr std::string_view names[]{"nothing", "compute", "link", "memory"};
  return names[static_cast<std::size_t>(what)];
}

/// A plan for one step, as the planner chose it.
struct step_plan {
  actions what;                        ///< action of each group
  std::size_t device_budget = 0;       ///< bytes; 0: as many as keeping everything takes
  std::size_t reload_ahead = 2;        ///< groups, as in `options`
  std::size_t reload_ahead_bytes = 0;  ///< 0: no such limit
  outcome expected;                    ///< predicted time and memory
  double bound_us = 0;                 ///< no plan for this profile and budget takes less time
  limit limited_by = limit::nothing;   ///< resource that keeps the plan from being faster
  std::size_t peer_budget = 0;         ///< bytes of a neighbour's memory; 0: none
  bool packs = false;                  ///< true if tensors are packed, as `profile::packing` says

  /// The part by which the plan may at most be slower than the best possible one: 0.01 is one
  /// percent.
  [[nodiscard]] double gap() const {
    return bound_us > 0 && expected.runs ? expected.step_us / bound_us - 1 : 0;
  }

  friend bool operator==(const step_plan&, const step_plan&) = default;
};

/// The actions of a rule that only decides which groups stay: the others are offloaded.
[[nodiscard]] inline actions actions_of(const std::vector<std::vector<bool>>& stays) {
  actions what;
  for (const auto& chunk : stays) {
    auto& row = what.emplace_back();
    for (const bool each : chunk) row.push_back(each ? action::keep : action::offload);
  }
  return what;
}

}  // namespace tidepool::plan
