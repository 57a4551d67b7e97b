/// The forecast: the engine itself runs a profile on the virtual device, without copying any bytes.
/// Inputs are a profile, the options of the run and the actions of a plan. Outputs are the time of
/// a step in microseconds, and the device and host memory it takes in bytes. A forecast is slower
/// than `simulator` and knows all that the engine does, such as fragmentation and caps.
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
#include "tidepool/plan/detail/layout.hpp"
#include "tidepool/plan/detail/rehearsal.hpp"
#include "tidepool/plan/keeping.hpp"
#include "tidepool/plan/placement.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::plan {

/// The predicted step.
struct forecast_result {
  outcome expected;          ///< times in microseconds, peak and moved bytes
  std::size_t reserved = 0;  ///< bytes taken from the device
  std::size_t host = 0;      ///< most host bytes in use at once
  std::string refusal;       ///< reason why the step does not run; empty if it runs
  trace::record picture;     ///< trace of the step; without spans unless asked for
};

namespace detail {

/// True if plans for a step may use a neighbour's memory in addition to the host's.
[[nodiscard]] inline bool plans_with_peer(const profile& step, const options& opts) {
  const auto has = [&](place_kind which) {
    return std::ranges::find(opts.places, which) != opts.places.end();
  };
  return step.peer_link && has(place_kind::peer) && has(place_kind::host);
}

// Runs two steps in which everything is offloaded, as a warm-up does. If these do not fit the
// budget, the stage is made anew: the plan is then followed from the first step on.
inline void warm_up(std::optional<rehearsal>& stage, const profile& step, const options& opts,
                    bool by_rule) {
  actions everything;
  for (const auto& chunk : step.chunks) {
    everything.emplace_back(chunk.groups.size(), action::offload);
  }
  try {
    auto unplanned = step;
    unplanned.peer_link.reset();  // an unplanned offload goes to the nearest place
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
    opts.places.assign(1, place_kind::host);  // plans count on the host's link only
  } else {
    std::erase(opts.places, place_kind::file);
    opts.peer_device = 1;
  }
  opts.policy = policy_kind::megatron;  // the forecast records nothing
  opts.recompute_by_plan = true;
  opts.offload_layers.clear();
  if (!step.packing) opts.pack.clear();
  if (step.stream_ordered) opts.memory = memory_kind::pool;
  try {
    std::optional<rehearsal> warm;
    warm_up(warm, step, opts, by_rule);
    auto& stage = *warm;
    stage.adopt(step, what, std::move(where), by_rule);
    if (step.shapes_vary && opts.device_budget && !by_rule) {
      const auto most = std::min(kept_at_once(step, what), *opts.device_budget);
      stage.engine().keep_at_most(most, free_piece(step));
    }
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
    const auto idle = result.expected.step_us - compute_us(step) - result.expected.extra_us;
    result.expected.stall_us = std::max(0.0, idle - pack_us(step, what));
    result.reserved = counted.device_reserved;
    result.host = counted.host_peak;
  } catch (const out_of_budget& problem) {
    result.expected.runs = false;
    result.refusal = problem.what();
  }
  return result;
}

// The forecast of a step with planned places. The step is also run without places if copies may
// wait for a planned place, or if the step takes longer than the simulator predicted; the faster of
// the two is taken.
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

/// Predicts a step by running it through the engine on a virtual device with the profile's rates.
/// Two steps run first in which everything is offloaded (if that fits), as in a warm-up, because
/// the memory layout they leave behind affects later steps. Then steps with the actions `what` run
/// until two in a row take the same time; the result describes the last one. `opts` are the options
/// of the run to be predicted. `placed` says whether blocks lie at planned places (`best_places`),
/// or where the arena finds room, as under a rule. Computing takes the profile's times; copies do
/// not slow the kernels beside them. If shapes vary, groups stay within the limits that a plan has
/// (keeping.hpp).
///
/// If the engine would refuse the step, `expected.runs` is false and `refusal` gives the reason. A
/// recomputed group takes the profile's time, and its inputs are assumed to be on the device. A
/// forecast takes about 1.5 us of host time for each call of a step. Thread safety: no shared
/// state.
///
[[nodiscard]] inline forecast_result forecast(const profile& step, const options& opts,
                                              const actions& what, bool picture = false,
                                              bool placed = true) {
  if (!placed) return detail::rehearsed(step, opts, what, {}, picture, true);
  return detail::rehearsed_in_places(step, opts, what, detail::find_places(step, what, opts),
                                     picture)
      .seen;
}

/// The places of `place_ahead`; empty if the step is faster without planned places. Takes at most
/// the time of two forecasts.
[[nodiscard]] inline placement best_places(const profile& step, const actions& what,
                                           const options& opts) {
  auto found = detail::find_places(step, what, opts);
  if (found.where.empty()) return {};
  return detail::rehearsed_in_places(step, opts, what, std::move(found), false).where;
}

/// Predicts a step under a rule that only says which groups stay, and plans no places.
[[nodiscard]] inline forecast_result forecast(const profile& step, const options& opts,
                                              const residency& stays, bool picture = false) {
  return forecast(step, opts, actions_of(stays), picture, false);
}

/// Predicts a step under a plan: with its actions and limits, in an arena of its budget.
[[nodiscard]] inline forecast_result forecast(const profile& step, const step_plan& made,
                                              bool picture = false) {
  options opts;
  opts.memory = memory_kind::arena;
  opts.device_budget = made.device_budget;
  opts.reload_ahead = made.reload_ahead;
  if (made.reload_ahead_bytes > 0) opts.reload_ahead_bytes = made.reload_ahead_bytes;
  if (made.packs) opts.pack = {"all"};
  if (made.peer_budget > 0) {
    opts.places = {place_kind::peer, place_kind::host};
    opts.peer_budget = made.peer_budget;
  }
  return forecast(step, opts, made.what, picture);
}

}  // namespace tidepool::plan
