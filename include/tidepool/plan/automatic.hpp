/// From a recorded step to a plan that the engine can follow.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tidepool/core/text.hpp"
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

}  // namespace detail

/// A plan for the device budget of `opts` (none: whatever keeping all takes) that the engine has
/// been seen to run, on the virtual device. Plans recompute as well, if `recompute_by_plan` and the
/// profile's times allow any. Where shapes vary from step to step, as with routed experts, a tenth
/// of the budget and twice the largest tensor are left free. The planner does not know that memory
/// may be in pieces. Where the engine then refuses, or waits, plans for less of the budget are
/// tried, once with all microbatches treated alike and once without that rule. Short walks from the
/// best follow, with the engine as judge. Of plans that take as long, to a thousandth, the best by
/// `cost_us` is taken: the time, and what copies cost the kernels beside them.
///
/// Where none is found, `expected.runs` is false and `device_budget` that of `opts`; where none
/// fits it, `step_us` is infinite and `expected.peak` the least for which the planner finds one.
///
/// `expected` is the forecast of the engine, not the planner's. Blocks the host for some seconds
/// where a step has a thousand groups, or memory for a hundred is tight, and for less where some
/// plan takes hardly longer than keeping all. `plan_effort` limits that.
///
/// Where `opts` has a neighbour's memory beside the host's, and the profile its link, plans without
/// it are made first. Where the best of them takes longer than keeping all, it is the first of
/// those that use the neighbour.
[[nodiscard]] inline step_plan automatic(const profile& step, const options& opts) {
  planner plans(step);
  step_plan alone;
  if (detail::plans_with_peer(step, opts)) {
    auto without = opts;
    without.places.assign(1, place_kind::host);
    without.peer_budget.reset();
    alone = automatic(step, without);
    if (alone.expected.runs && alone.expected.step_us <= plans.in_core().step_us * (1 + 1e-6)) {
      return alone;
    }
  }
  return detail::chooser(step, opts, plans).run(std::move(alone));
}

/// Most bytes that stay by a plan at once, and are committed and not restored.
[[nodiscard]] inline std::size_t kept_at_once(const profile& step, const step_plan& made) {
  std::size_t now = 0;
  std::size_t most = 0;
  const detail::layout map(step);
  for (const auto& each : step.events) {
    if (each.kind == event_kind::release && map.forgotten(each.index) != none) {
      const auto& of = step.storages[each.index];
      if (made.what[of.chunk][of.group] == action::keep) now -= std::min(now, of.bytes);
    }
    if (each.kind != event_kind::commit && each.kind != event_kind::restore) continue;
    if (made.what[each.chunk][each.index] != action::keep) continue;
    const auto bytes = step.chunks[each.chunk].groups[each.index].bytes;
    now += each.kind == event_kind::commit ? bytes : 0;
    now -= each.kind == event_kind::restore ? bytes : 0;
    most = std::max(most, now);
  }
  return most;
}

/// Most bytes at once that the trainer works with: from their allocation to their commit, and from
/// their restore to their release.
[[nodiscard]] inline std::size_t handed_out_at_once(const profile& step) {
  std::vector<std::vector<std::vector<std::uint32_t>>> saved(step.chunks.size());
  for (std::size_t c = 0; c < saved.size(); ++c) saved[c].resize(step.chunks[c].groups.size());
  for (std::uint32_t i = 0; i < step.storages.size(); ++i) {
    const auto& each = step.storages[i];
    if (each.chunk != none) saved[each.chunk][each.group].push_back(i);
  }
  std::size_t now = 0;
  std::size_t most = 0;
  // What a chunk saved that was given up may be released without having been restored.
  std::vector<bool> out(step.storages.size(), false);
  const auto hand = [&](std::uint32_t storage, bool to_trainer) {
    if (out[storage] == to_trainer) return;
    out[storage] = to_trainer;
    const auto bytes = step.storages[storage].bytes;
    now = to_trainer ? now + bytes : now - bytes;
  };
  for (const auto& each : step.events) {
    if (each.kind == event_kind::allocate) hand(each.index, true);
    if (each.kind == event_kind::release) hand(each.index, false);
    if (each.kind == event_kind::commit || each.kind == event_kind::restore) {
      for (const auto storage : saved[each.chunk][each.index]) {
        hand(storage, each.kind == event_kind::restore);
      }
    }
    most = std::max(most, now);
  }
  return most;
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
  // Where nothing limits, nobody asked for less; that a budget was given is not known here.
  const char* const hint =
      made.limited_by == limit::nothing ? " (no --device-budget was given, or all of it fits)" : "";
  char text[320];
  std::snprintf(text, sizeof text,
                "plan: %zu of %zu groups leave%s%s; %.3f ms a step expected, at most %.2f %% above"
                " what any plan takes; limited by %s%s",
                detail::count_of(made.what, action::offload) + to_peer, all, beside, recomputed,
                made.expected.step_us / 1e3, std::max(0.0, 100 * made.gap()),
                std::string(name_of(made.limited_by)).c_str(), hint);
  return text;
}

}  // namespace tidepool::plan
