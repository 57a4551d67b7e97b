/// From a recorded step to a plan that the engine can follow.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tidepool/options.hpp"
#include "tidepool/plan/check.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/trials.hpp"
#include "tidepool/plan/planner.hpp"

namespace tidepool::inline v0_2_0::plan {

namespace detail {

[[nodiscard]] inline bool may_recompute(const profile& step) {
  return std::any_of(step.chunks.begin(), step.chunks.end(), [](const auto& chunk) {
    return std::any_of(chunk.groups.begin(), chunk.groups.end(),
                       [](const auto& group) { return group.recompute_us > 0; });
  });
}

// What plans may use of a budget.
[[nodiscard]] inline std::size_t left_for_plans(const profile& step, std::size_t budget) {
  if (!step.shapes_vary) return budget;
  std::size_t largest = 0;
  for (const auto& each : step.storages) largest = std::max(largest, each.bytes);
  return budget - std::min(budget / 2,
                           budget / constants::varying_part + constants::varying_largest * largest);
}

// The least budget that leaves plans so much.
[[nodiscard]] inline std::size_t budget_that_leaves(const profile& step, std::size_t bytes) {
  auto least = bytes;
  auto most = 2 * bytes + 1;
  while (least < most) {
    const auto middle = least + (most - least) / 2;
    if (left_for_plans(step, middle) < bytes) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return least;
}

[[nodiscard]] inline std::size_t count_of(const actions& what, action which) {
  std::size_t count = 0;
  for (const auto& chunk : what) {
    count += static_cast<std::size_t>(std::count(chunk.begin(), chunk.end(), which));
  }
  return count;
}

}  // namespace detail

/// A plan for the device budget of `opts` (none: whatever keeping all takes) that the engine has
/// been seen to run, on the virtual device. Where plans that only keep and offload cost time, those
/// that recompute are tried as well, if `recompute_by_plan` and the profile's times allow any.
/// Where shapes vary from step to step, as with routed experts, a tenth of the budget and twice the
/// largest tensor are left free. The planner does not know that memory may be in pieces; where the
/// engine then refuses, or waits, plans for less of the budget are tried, those first that treat
/// all microbatches alike, and then those of Megatron's rule. The best is refined with the engine
/// as judge, and then one that moves less is looked for: also those for a little less of the
/// budget, since copies on their way take some. Of plans that take as long, to a thousandth, the
/// best by `cost_us` is taken: the time, and what copies cost the kernels beside them.
///
/// Where none is found, `expected.runs` is false and `device_budget` that of `opts`; where none
/// fits it, `step_us` is infinite and `expected.peak` the least for which the planner finds one.
///
/// `expected` is the forecast of the engine, not the planner's. Blocks the host for some seconds
/// where a step has a thousand groups, or memory for a hundred is tight, and for less where some
/// plan takes hardly longer than keeping all. `plan_effort` limits that.
[[nodiscard]] inline step_plan automatic(const profile& step, const options& opts) {
  planner plans(step);
  const auto most =
      opts.device_budget ? detail::left_for_plans(step, *opts.device_budget) : plans.in_core().peak;
  auto whole = plans.best({.device_budget = most, .effort = opts.plan_effort});
  const auto without_recomputing_us = whole.bound_us;
  detail::trials stage(step, opts, plans);
  // A plan for a share of the budget; whether the engine runs it as the planner thought.
  enum class verdict { worse, slower, as_planned };
  const auto try_share = [&](double share, bool recompute, bool alike) {
    if (!stage.may_try()) return verdict::worse;
    // What is left out is at most half: a budget near 2^64 as a double would not come back.
    const auto budget = most - static_cast<std::size_t>(static_cast<double>(most) * (1 - share));
    auto next = plans.best({.device_budget = std::max<std::size_t>(budget, 1),
                            .recompute = recompute,
                            .work = constants::work_of_a_share,
                            .effort = opts.plan_effort,
                            .alike = alike});
    if (!next.expected.runs) return verdict::slower;
    const auto roomy =
        plans.judge(next.what, {most, next.reload_ahead, next.reload_ahead_bytes}).step_us;
    if (std::min(roomy, next.expected.step_us) > stage.fastest_us()) return verdict::worse;
    next.device_budget = most;
    return stage.try_plan(next) ? verdict::as_planned : verdict::slower;
  };
  // Less and less of the budget until one runs as planned, then between it and the one before.
  const auto try_shares = [&](bool recompute, bool alike) {
    double above = 1;
    for (const double share : constants::budget_shares) {
      const auto seen = try_share(share, recompute, alike);
      if (seen == verdict::worse) return;
      if (seen == verdict::slower) {
        above = share;
        continue;
      }
      auto below = share;
      for (int halving = 0; halving < constants::share_halvings; ++halving) {
        const auto middle = (above + below) / 2;
        (try_share(middle, recompute, alike) == verdict::as_planned ? below : above) = middle;
      }
      return;
    }
  };
  const auto try_all = [&](bool recompute) {
    try_shares(recompute, true);
    if (!stage.reaches(plans.in_core().step_us)) try_shares(recompute, false);
  };
  const bool may_recompute = opts.recompute_by_plan && detail::may_recompute(step);
  bool recompute = may_recompute && whole.expected.step_us > plans.in_core().step_us * (1 + 1e-6);
  if (recompute) {
    whole = plans.best({.device_budget = most, .recompute = true, .effort = opts.plan_effort});
    try_all(true);
  }
  if (!stage.reaches(without_recomputing_us)) try_all(false);
  if (may_recompute && !recompute && !stage.reaches(plans.in_core().step_us)) {
    recompute = true;  // the planner saw no need, but the engine is slower than it thought
    try_all(true);
  }
  if (!stage.reaches(without_recomputing_us)) stage.try_megatron(whole);
  stage.refine(recompute);
  if (stage.found()) {
    auto best = stage.best();
    // What is left free for shapes that vary may be what no plan can do without; the engine has it.
    best.bound_us = std::isfinite(whole.bound_us) ? whole.bound_us : plans.in_core().step_us;
    best.limited_by = plans.limit_of(best);
    return best;
  }
  auto none_found = whole;
  if (!std::isfinite(none_found.bound_us)) none_found.bound_us = plans.in_core().step_us;
  if (opts.device_budget) {
    none_found.device_budget = *opts.device_budget;
    auto& peak = none_found.expected.peak;
    if (!none_found.expected.runs) peak = detail::budget_that_leaves(step, peak);
  }
  none_found.expected.runs = false;
  return none_found;
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
                       std::to_string(made.device_budget) + " bytes"
                 : detail::no_plan_fits(made)) +
           "; everything leaves, as in the warm-up";
  }
  std::size_t all = 0;
  for (const auto& chunk : made.what) all += chunk.size();
  const auto again = detail::count_of(made.what, action::recompute);
  char recomputed[64] = "";
  if (again > 0) std::snprintf(recomputed, sizeof recomputed, ", %zu are recomputed", again);
  // Where nothing limits, nobody asked for less; that a budget was given is not known here.
  const char* const hint =
      made.limited_by == limit::nothing ? " (no --device-budget was given, or all of it fits)" : "";
  char text[320];
  std::snprintf(text, sizeof text,
                "plan: %zu of %zu groups leave%s; %.3f ms a step expected, at most %.2f %% above"
                " what any plan takes; limited by %s%s",
                detail::count_of(made.what, action::offload), all, recomputed,
                made.expected.step_us / 1e3, std::max(0.0, 100 * made.gap()),
                std::string(name_of(made.limited_by)).c_str(), hint);
  return text;
}

}  // namespace tidepool::plan
