/// Automatic planning: from a recorded step to a plan that the engine is known to run. Inputs are a
/// profile and the options of a run (budgets in bytes). The output is a plan with the engine's own
/// forecast of its time in microseconds. The planner's simulator ignores fragmentation, so each
/// promising plan is run on the virtual device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/engine/packing.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/check.hpp"
#include "tidepool/plan/detail/chooser.hpp"
#include "tidepool/plan/planner.hpp"

namespace tidepool::inline v0_3_0::plan {

namespace detail {

[[nodiscard]] inline std::size_t count_of(const actions& what, action which) {
  std::size_t count = 0;
  for (const auto& chunk : what) {
    count += static_cast<std::size_t>(std::count(chunk.begin(), chunk.end(), which));
  }
  return count;
}

// The step as it runs with tensors that go as they are.
[[nodiscard]] inline profile unpacked(profile step) {
  if (const auto packing = std::exchange(step.packing, {})) step.link = packing->link;
  return step;
}

// Microseconds of a step in which kernels unpack.
[[nodiscard]] inline double unpack_us(const profile& step, const actions& what) {
  if (step.packing->unpack_rate <= 0) return 0;
  return pack_us(step, what) * step.packing->pack_rate / step.packing->unpack_rate;
}

// A plan for a step whose packing is settled.
[[nodiscard]] inline step_plan planned(const profile& step, const options& opts) {
  planner plans(step);
  step_plan alone;
  if (plans_with_peer(step, opts)) {
    auto without = opts;
    without.places.assign(1, place_kind::host);
    without.peer_budget.reset();
    alone = planned(step, without);
    if (alone.expected.runs && alone.expected.step_us <= plans.in_core().step_us * (1 + 1e-6)) {
      return alone;
    }
  }
  auto made = chooser(step, opts, plans).run(std::move(alone));
  made.packs = step.packing.has_value();
  return made;
}

}  // namespace detail

/// A plan for the device budget of `opts` (none: as much as keeping everything takes), which the
/// engine has run on the virtual device. Plans may recompute groups if `recompute_by_plan` is on
/// and the profile has times for it. If shapes vary from step to step, as with routed experts, a
/// tenth of the budget and twice the largest tensor are left free. If the engine refuses a plan or
/// waits longer than planned, because memory is fragmented, plans for smaller budgets are tried:
/// both with the same actions in all microbatches and without that rule. Short walks from the best
/// plan follow, judged by the engine. Among plans whose times differ by less than a thousandth, the
/// one with the least `cost_us` is taken: the time, plus what the copies cost the kernels beside
/// them.
///
/// If no plan was found, `expected.runs` is false and `device_budget` is that of `opts`. If no plan
/// fits that budget, `step_us` is infinite and `expected.peak` is the least budget in bytes for
/// which the planner finds one.
///
/// `expected` is the forecast of the engine, not of the simulator. The function blocks the host for
/// some seconds if a step has a thousand groups, or if memory for a hundred is tight; for less if
/// some plan takes hardly longer than keeping everything. `plan_effort` limits the time.
///
/// If `opts` allows a neighbour's memory beside the host's, and the profile has the neighbour's
/// link, plans without the neighbour are made first. If the best of them takes longer than keeping
/// everything, it becomes the first candidate among the plans that use the neighbour.
///
/// If `opts.pack` is `{"auto"}` and the profile has packing, plans without packing are made first,
/// for the link as it is. Unless the best of them is as fast as computing alone, plans with packing
/// follow; they are taken if a step gains more than 1.5 % (`constants::packing_pays`), although all
/// kernels lose the time that unpacking takes beside them.
[[nodiscard]] inline step_plan automatic(const profile& step, const options& opts) {
  if (!step.packing || !tidepool::detail::packed_by_plan(opts)) return detail::planned(step, opts);
  auto whole = detail::planned(detail::unpacked(step), opts);
  const auto gains = [&](double us) {
    return !whole.expected.runs || us <= whole.expected.step_us * constants::packing_pays;
  };
  if (!gains(compute_us(step))) return whole;
  auto packed = detail::planned(step, opts);
  const auto us = packed.expected.step_us + detail::unpack_us(step, packed.what);
  return packed.expected.runs && gains(us) ? packed : whole;
}

/// A line for a log.
[[nodiscard]] inline std::string in_words(const step_plan& made) {
  if (!made.expected.runs) {
    const bool fits = std::isfinite(made.expected.step_us);
    return "plan: " +
           (fits ? "none was found that runs in a device budget of " +
                       tidepool::detail::text::size_text(made.device_budget)
                 : detail::no_plan_fits(made)) +
           "; everything leaves, as in the warm-up";
  }
  std::size_t all = 0;
  for (const auto& chunk : made.what) all += chunk.size();
  const auto again = detail::count_of(made.what, action::recompute);
  const auto to_peer = detail::count_of(made.what, action::offload_to_peer);
  char recomputed[64] = "";
  if (again > 0) std::snprintf(recomputed, sizeof recomputed, ", %zu are recomputed", again);
  char beside[64] = "";
  if (to_peer > 0) std::snprintf(beside, sizeof beside, " (%zu to the neighbour)", to_peer);
  // The limit is `nothing`: either no smaller budget was given, or the given one suffices. This
  // function knows only the plan, so the hint names both.
  const char* const hint =
      made.limited_by == limit::nothing ? " (no --device-budget was given, or all of it fits)" : "";
  char text[320];
  std::snprintf(
      text, sizeof text,
      "plan: %zu of %zu groups leave%s%s%s; %.3f ms a step expected, at most %.2f %% above"
      " what any plan takes; limited by %s%s",
      detail::count_of(made.what, action::offload) + to_peer, all, beside,
      made.packs && made.expected.moved > 0 ? ", packed" : "", recomputed,
      made.expected.step_us / 1e3, std::max(0.0, 100 * made.gap()),
      std::string(name_of(made.limited_by)).c_str(), hint);
  return text;
}

}  // namespace tidepool::plan
