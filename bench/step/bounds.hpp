/// The least time that a step could take with these rates, whoever does the offloading.
#pragma once

#include <algorithm>
#include <vector>

#include "results.hpp"

namespace bench {

/// The last rise and fall of what saved tensors hold, from the first byte on.
inline std::vector<tidepool::trace::level> last_hill(const tidepool::trace::record& step) {
  std::vector<tidepool::trace::level> hill;
  std::size_t before = 0;
  for (const auto& level : step.device_bytes) {
    if (before == 0 && level.bytes > 0) hill.clear();
    hill.push_back(level);
    before = level.bytes;
  }
  return hill;
}

namespace detail {

/// Milliseconds that compute must stand still, given when a step without a budget takes and gives
/// back what it saves.
///
/// At a rise to A bytes, A - B must have left since the first tensor was complete, which is before
/// the second was asked for. At a fall from A bytes to less, A - B are still to come, all before
/// the last tensor is done with. The longest of each kind of wait is unavoidable, and the two lie
/// in different passes.
inline double least_stall(const std::vector<tidepool::trace::level>& hill, double budget,
                          const raw_rates& rates) {
  if (hill.size() < 3) return 0;
  const auto first_complete = hill[1].time;
  const auto last_needed = hill.back().time;
  double out = 0;
  double in = 0;
  for (std::size_t i = 1; i < hill.size(); ++i) {
    const auto before = static_cast<double>(hill[i - 1].bytes);
    const auto after = static_cast<double>(hill[i].bytes);
    const auto over = (std::max(before, after) - budget) / 1e3;  // kB, so microseconds at GB/s
    if (over <= 0) continue;
    if (after > before) out = std::max(out, first_complete + over / rates.out - hill[i].time);
    if (after < before) in = std::max(in, over / rates.in - (last_needed - hill[i].time));
  }
  return (out + in) / 1e3;
}

}  // namespace detail

/// The least time of a microbatch that these rates allow, in ms; 0 where there is no bound. Compute
/// is what it took without offload. A GPU at its power limit runs faster after a pause, so that a
/// step with long stalls may come out a percent below it.
///
/// X bytes of all microbatches in flight must be off the device for the rest to fit the budget. One
/// at a time: what the step without offload takes, and the stalls of `least_stall`. 1F1B: each
/// microbatch is in flight during `depth` of them, so V = X / depth of its bytes at least must go
/// out and in while one passes: max(T_F + T_B, V/out, V/in, 2V/both).
inline double bound(const results& all, const case_result& of) {
  const auto* none = find_kind(all, case_kind::none);
  if (none == nullptr || of.plan.kind != case_kind::offload || all.rates.both <= 0) return 0;
  const auto compute = median_of(*none, [](const step_times& s) { return s.forward; }) +
                       median_of(*none, [](const step_times& s) { return s.backward; });
  const auto budget = static_cast<double>(of.counters.device_reserved);
  if (all.run.depth == 1) {
    // A case that saves more than `none` does has a hill of its own, which nobody has measured.
    const bool same = of.plan.held_bytes <= none->plan.held_bytes;
    return compute + (same ? detail::least_stall(none->held, budget, all.rates) : 0);
  }
  const auto off = std::max(0.0, of.plan.held_bytes * all.run.depth - budget) / 1e6;  // MB, so ms
  const auto each = off / all.run.depth;
  return std::max({compute, each / all.rates.out, each / all.rates.in, 2 * each / all.rates.both});
}

}  // namespace bench
