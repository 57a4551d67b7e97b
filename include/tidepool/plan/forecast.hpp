/// Forecasts a step: the engine itself runs it on the virtual device, with the bytes left out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "tidepool/device/virtual.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/observe/tracing.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/rehearsal.hpp"
#include "tidepool/plan/placement.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::plan {

/// A step as the engine would run it.
struct forecast_result {
  outcome expected;          ///< times, stalls and peak
  std::size_t reserved = 0;  ///< device bytes taken from the device
  std::size_t host = 0;      ///< most host bytes in use
  std::string refusal;       ///< why it does not run; empty when it does
  trace::record picture;     ///< of the step; without spans unless it was asked for
};

namespace detail {

/// Whether plans for a step count on a neighbour's memory as well as on the host's.
[[nodiscard]] inline bool plans_with_peer(const profile& step, const options& opts) {
  const auto has = [&](place_kind which) {
    return std::ranges::find(opts.places, which) != opts.places.end();
  };
  return step.peer_link && has(place_kind::peer) && has(place_kind::host);
}

// Two steps in which everything leaves. Where they do not fit, a plan can only be followed from the
// first step on.
inline void warm_up(std::optional<rehearsal>& stage, const profile& step, const options& opts,
                    bool by_rule) {
  actions everything;
  for (const auto& chunk : step.chunks) {
    everything.emplace_back(chunk.groups.size(), action::offload);
  }
  try {
    auto unplanned = step;
    unplanned.peer_link.reset();  // what leaves goes to the nearest place
    stage.emplace(step, opts).adopt(unplanned, everything, {}, by_rule);
    stage->run();
    stage->run();
  } catch (const out_of_budget&) {
    stage.emplace(step, opts);
  }
}

[[nodiscard]] inline forecast_result rehearsed(const profile& step, options opts,
                                               const actions& what, placement where, bool picture,
                                               bool by_rule = false) {
  forecast_result result;
  opts.min_tensor_elements = 0;
  opts.host_budget = std::numeric_limits<std::size_t>::max() / 4;
  opts.host_memory = host_kind::automatic;
  if (!plans_with_peer(step, opts)) {
    opts.places.assign(1, place_kind::host);  // over whose link a plan counts
  } else {
    std::erase(opts.places, place_kind::file);
    opts.peer_device = 1;
  }
  opts.policy = policy_kind::megatron;  // nothing is recorded here
  opts.recompute_by_plan = true;
  opts.offload_layers.clear();
  if (step.stream_ordered) opts.memory = memory_kind::pool;
  try {
    std::optional<rehearsal> warm;
    warm_up(warm, step, opts, by_rule);
    auto& stage = *warm;
    stage.adopt(step, what, std::move(where), by_rule);
    double before = 0;
    const auto exceeded = stage.engine().counters().budget_exceeded;
    for (int i = 0; i < constants::forecast_steps; ++i) {
      const auto begin = stage.now_us();
      const auto recomputed = stage.recomputed_us();
      stage.run();
      result.expected.step_us = stage.now_us() - begin;
      result.expected.extra_us = stage.recomputed_us() - recomputed;
      if (std::abs(result.expected.step_us - before) <= 1e-6 * before) break;
      before = result.expected.step_us;
    }
    if (picture) {
      const auto origin = stage.stream();
      tidepool::detail::begin_trace(stage.engine(), "forecast", &origin);
      stage.run();
    }
    if (picture) result.picture = tidepool::detail::end_trace(stage.engine());
    const auto counted = stage.engine().counters();
    result.expected.peak = counted.live_peak;
    if (counted.budget_exceeded > exceeded) {
      result.expected.runs = false;
      result.refusal = "the budget is passed, which is soft for memory of an allocator's";
    }
    for (const auto& module : counted.modules) result.expected.moved += module.step_bytes;
    result.expected.stall_us =
        std::max(0.0, result.expected.step_us - compute_us(step) - result.expected.extra_us);
    result.reserved = counted.device_reserved;
    result.host = counted.host_peak;
  } catch (const out_of_budget& problem) {
    result.expected.runs = false;
    result.refusal = problem.what();
  }
  return result;
}

// With places; and without as well, where copies may wait for them, or the step takes longer than
// the simulator thought: whichever takes less.
struct rehearsed_places {
  forecast_result seen;
  placement where;
};
[[nodiscard]] inline rehearsed_places rehearsed_in_places(const profile& step, const options& opts,
                                                          const actions& what, found_places found,
                                                          bool picture) {
  rehearsed_places placed{rehearsed(step, opts, what, found.where, picture),
                          std::move(found.where)};
  const auto& seen = placed.seen.expected;
  const bool as_thought = seen.runs && seen.step_us <= 1.01 * found.step_us;
  if (placed.where.empty() || (as_thought && !found.waits)) return placed;
  auto anywhere = rehearsed(step, opts, what, {}, picture);
  const auto key = [](const forecast_result& each) {
    return std::pair(!each.expected.runs, each.expected.step_us);
  };
  if (key(placed.seen) <= key(anywhere)) return placed;
  return {std::move(anywhere), {}};
}

}  // namespace detail

/// Runs a step through the engine on a virtual device with the profile's rates: twice with
/// everything leaving, as a warm-up does (where that fits), since where memory is then counts
/// later; then with `what`, until two steps in a row take the same, and tells what the last was
/// like. `opts` are those of the run to be predicted; `placed` says whether memory is where a plan
/// would have it (`best_places`), or as an arena gives it out under a rule. Durations are the
/// profile's; kernels are not slowed by copies beside them.
///
/// Where the engine would refuse, `expected.runs` is false and `refusal` says why. A recomputed
/// group takes the profile's time; what it is computed from is taken to be there. Takes about a
/// microsecond and a half a call. Thread safety: none shared.
[[nodiscard]] inline forecast_result forecast(const profile& step, const options& opts,
                                              const actions& what, bool picture = false,
                                              bool placed = true) {
  if (!placed) return detail::rehearsed(step, opts, what, {}, picture, true);
  return detail::rehearsed_in_places(step, opts, what, detail::find_places(step, what, opts),
                                     picture)
      .seen;
}

/// The places of `place_ahead`, unless the step takes longer by them than with whatever is free.
/// Takes at most as long as two forecasts.
[[nodiscard]] inline placement best_places(const profile& step, const actions& what,
                                           const options& opts) {
  auto found = detail::find_places(step, what, opts);
  if (found.where.empty()) return {};
  return detail::rehearsed_in_places(step, opts, what, std::move(found), false).where;
}

/// The same for a rule that knows of staying and leaving alone, and of no places.
[[nodiscard]] inline forecast_result forecast(const profile& step, const options& opts,
                                              const residency& stays, bool picture = false) {
  return forecast(step, opts, actions_of(stays), picture, false);
}

/// The same for a plan: its actions and its run_limits, in an arena of its budget.
[[nodiscard]] inline forecast_result forecast(const profile& step, const step_plan& made,
                                              bool picture = false) {
  options opts;
  opts.memory = memory_kind::arena;
  opts.device_budget = made.device_budget;
  opts.reload_ahead = made.reload_ahead;
  if (made.reload_ahead_bytes > 0) opts.reload_ahead_bytes = made.reload_ahead_bytes;
  if (made.peer_budget > 0) {
    opts.places = {place_kind::peer, place_kind::host};
    opts.peer_budget = made.peer_budget;
  }
  return forecast(step, opts, made.what, picture);
}

}  // namespace tidepool::plan
