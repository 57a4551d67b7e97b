// The chooser: decides which plans the engine runs for `automatic`, and in which order. Inputs are
// a profile, options and a planner. The output is the best plan that the engine ran, with the
// engine's time in microseconds. A forecast costs far more than a simulation, so the simulator
// filters and the engine judges.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "tidepool/options.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/walk.hpp"
#include "tidepool/plan/forecast.hpp"
#include "tidepool/plan/planner.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

[[nodiscard]] inline bool may_recompute(const profile& step) {
  return std::any_of(step.chunks.begin(), step.chunks.end(), [](const auto& chunk) {
    return std::any_of(chunk.groups.begin(), chunk.groups.end(),
                       [](const auto& group) { return group.recompute_us > 0; });
  });
}

// Bytes that are left free if shapes vary, in addition to a part of the budget.
[[nodiscard]] inline std::size_t left_free(const profile& step) {
  std::size_t largest = 0;
  for (const auto& each : step.storages) largest = std::max(largest, each.bytes);
  return constants::varying_largest * largest;
}

// The bytes of a budget that plans may use: at least half of it.
[[nodiscard]] inline std::size_t left_for_plans(const profile& step, std::size_t budget) {
  if (step.packing) budget -= std::min(budget / 2, step.packing->staging);
  if (!step.shapes_vary) return budget;
  return budget - std::min(budget / 2, budget / constants::varying_part + left_free(step));
}

// The least budget of which plans may use `bytes`.
[[nodiscard]] inline std::size_t budget_that_leaves(const profile& step, std::size_t bytes) {
  if (!step.shapes_vary || bytes == 0) return bytes;
  const auto enough = bytes + left_free(step);
  return std::min(2 * bytes - 1, enough + (enough - 1) / (constants::varying_part - 1));
}

// Each plan is found by a walk in the simulator, gets places, and is then run by the engine. Plans
// for smaller and smaller shares of the budget come first; short walks from the best of them
// follow.
class chooser {
 public:
  chooser(const profile& step, const options& opts, planner& plans)
      : step_(&step),
        opts_(opts),
        plans_(&plans),
        wanted_{.device_budget = opts.device_budget ? left_for_plans(step, *opts.device_budget)
                                                    : plans.in_core().peak,
                .recompute = opts.recompute_by_plan && may_recompute(step),
                .peer_budget = plans_with_peer(step, opts) ? opts.peer_budget.value_or(0) : 0,
                .work = constants::work_of_a_share,
                .effort = opts.plan_effort},
        walk_(plans.walk_for(wanted_)) {
    if (opts.plan_effort) tries_left_ = *opts.plan_effort / 10;
  }

  // Chooses a plan. `given` is one of the candidates, if it runs.
  [[nodiscard]] step_plan run(const step_plan& given) {
    if (given.expected.runs && !given.what.empty()) {
      candidate first{plans_->map().fold(given.what),
                      {most(), given.reload_ahead, given.reload_ahead_bytes, wanted_.peer_budget},
                      {}};
      walk_.run(first);
      try_it(first, false);
    }
    const candidate keep{
        plans_->keep_all(), {most(), 2, 0, wanted_.peer_budget}, plans_->in_core()};
    if (keep.result.peak <= most()) try_it(keep, true);
    by_shares();
    if (!found()) all_leaves();
    refine();
    return found() ? best() : none_found();
  }

 private:
  struct trial {
    candidate plan;
    outcome seen{.runs = false};  // as the engine ran it
    bool alike = true;
  };

  [[nodiscard]] std::size_t most() const { return wanted_.device_budget; }
  // The budget less a part of it. Only the part is computed as a double, because a budget near 2^64
  // would be rounded.
  [[nodiscard]] std::size_t without(double part) const {
    return most() - static_cast<std::size_t>(static_cast<double>(most()) * part);
  }
  [[nodiscard]] bool found() const { return best_.seen.runs; }
  [[nodiscard]] double best_us() const {
    return found() ? best_.seen.step_us : std::numeric_limits<double>::infinity();
  }
  // True if the best step takes hardly longer than one with everything kept.
  [[nodiscard]] bool good() const {
    return best_us() <= plans_->in_core().step_us * constants::as_long;
  }
  // True while the search has work left, or no plan has run yet, because any plan is better than
  // none.
  [[nodiscard]] bool may_try() const {
    return (tries_left_ > 0 && events_left_ >= step_->events.size()) || !found();
  }

  // The outcome of a plan in the engine. A plan counts as one that does not run if the simulator
  // already predicts a slower step than the best one found; it is then not run.
  outcome try_it(const candidate& which, bool alike) {
    auto& seen = known_[{which.what, which.limits.reload_ahead, which.limits.reload_ahead_bytes}];
    if (seen.step_us > 0) return seen;
    seen = {.runs = false, .step_us = std::numeric_limits<double>::infinity()};
    found_places where;
    if (has_places(*step_, opts_)) {
      auto limits = which.limits;
      limits.device_budget = *opts_.device_budget;
      where = plans_->places(which.what, limits, (1 + constants::most_worse) * best_us());
    }
    if (where.too_slow) return seen;
    tries_left_ -= std::min<std::size_t>(tries_left_, 1);
    events_left_ -= std::min(events_left_, step_->events.size());
    auto run = opts_;
    run.reload_ahead = which.limits.reload_ahead;
    run.reload_ahead_bytes.reset();
    if (which.limits.reload_ahead_bytes > 0) {
      run.reload_ahead_bytes = which.limits.reload_ahead_bytes;
    }
    const auto engine =
        rehearsed_in_places(*step_, run, plans_->map().unfold(which.what), std::move(where), false)
            .seen.expected;
    if (!engine.runs) return seen;
    // Among plans that are as fast as the fastest, the one with the least cost is the best.
    fastest_us_ = std::min(fastest_us_, engine.step_us);
    const auto enough_us = fastest_us_ * constants::as_long;
    const bool cheaper = !found() || cost_us(engine) < cost_us(best_.seen);
    if (best_us() > enough_us || (engine.step_us <= enough_us && cheaper)) {
      best_ = {which, engine, alike};
    }
    return seen = engine;
  }

  // Tries smaller and smaller shares of the budget. The engine is slower than the simulator if
  // memory is fragmented, so the share shrinks until the engine is as fast as planned. With the
  // same actions in all microbatches, requests for memory repeat, and memory is less fragmented.
  void by_shares() {
    struct road {
      bool alike;
      candidate last{};
      bool open = true;
    };
    road roads[] = {{true}, {false}};
    for (double share = 1; share > constants::least_share && !good();
         share *= constants::next_share) {
      for (auto& each : roads) {
        if (!each.open || !may_try()) continue;
        auto next = walk_.start(without(1 - share), each.alike);
        if (!each.last.what.empty()) {
          each.last.limits.device_budget = without(1 - share);
          walk_.run(each.last);
          if (better(each.last.result, next.result)) next = each.last;
        }
        each.last = walk_.go(next, wanted_.work, constants::heat, each.alike);
        const auto& by_simulator = each.last.result;
        each.open =
            by_simulator.runs && by_simulator.step_us <= best_us() * constants::as_long &&
            try_it(each.last, each.alike).step_us > by_simulator.step_us * constants::as_long;
      }
    }
  }

  // Tries to offload everything. If shapes vary, plans only use a part of the budget; a step that
  // does not fit this part may fit the engine's whole budget.
  void all_leaves() {
    for (const std::size_t ahead : {2U, 1U}) {
      candidate all{std::vector<action>(plans_->keep_all().size(), action::offload),
                    {most(), ahead, 0, wanted_.peer_budget},
                    {}};
      try_it(all, true);
    }
  }

  // Continues with short walks from the best plan so far, and at times from a slightly worse one.
  // If a plan hides all copies, only the number of moved bytes can improve, which the simulator
  // predicts exactly. The engine then judges fewer plans, from longer walks.
  void refine() {
    if (best_.seen.moved == 0 && best_.seen.extra_us <= 0) return;
    auto now = best_;
    const auto walks = good() ? constants::short_walks / constants::hidden : constants::short_walks;
    for (auto left = walks; left > 0 && found() && may_try(); --left) {
      const bool alike = now.alike || walk_.roll(3) == 0;
      const auto next = short_walk(now.plan, alike);
      if (!next.result.runs || next.result.step_us > 1.01 * now.seen.step_us) continue;
      const auto seen = try_it(next, now.alike);
      const auto part = static_cast<double>(left) / static_cast<double>(walks);
      const auto worse = 1 + constants::most_worse * part * walk_.chance();
      if (seen.runs && cost_us(seen) < cost_us(now.seen) * worse) now = {next, seen, now.alike};
    }
  }
  [[nodiscard]] candidate short_walk(candidate from, bool alike) {
    walk_.change_at_random(from, alike);
    from.limits.device_budget = without(constants::most_spared * walk_.chance() * walk_.chance());
    walk_.run(from);
    if (!from.result.runs) {
      from.limits.device_budget = most();
      walk_.run(from);
    }
    if (!from.result.runs) return from;
    const auto longest = constants::longest_short_walk * (good() ? constants::hidden : 1);
    const auto steps = walk_.roll(longest);
    return walk_.go(std::move(from), plans_->map().events.size() * steps, constants::heat / 4,
                    alike);
  }

  [[nodiscard]] step_plan best() const {
    auto best = plans_->plan_of(best_.plan);
    best.device_budget = most();
    best.expected = best_.seen;
    best.bound_us = plans_->bound_us(wanted_);
    // The bound is infinite if no plan fits the part of the budget that varying shapes leave; the
    // engine had the whole budget. The time with everything kept is then the bound.
    if (!std::isfinite(best.bound_us)) best.bound_us = plans_->in_core().step_us;
    // The bound does not know that a packed tensor frees its memory before the link has taken it.
    if (step_->packing) best.bound_us = std::min(best.bound_us, best.expected.step_us);
    best.limited_by = plans_->limit_of(best);
    return best;
  }

  [[nodiscard]] step_plan none_found() const {
    auto none_found = plans_->best(wanted_);
    if (!std::isfinite(none_found.bound_us)) none_found.bound_us = plans_->in_core().step_us;
    if (opts_.device_budget) {
      none_found.device_budget = *opts_.device_budget;
      auto& peak = none_found.expected.peak;
      if (!none_found.expected.runs) peak = budget_that_leaves(*step_, peak);
    }
    none_found.expected.runs = false;
    return none_found;
  }

  const profile* step_;
  options opts_;
  planner* plans_;
  goal wanted_;
  walk walk_;
  // Outcomes of the plans that were tried, by actions and reloads ahead.
  std::map<std::tuple<std::vector<action>, std::size_t, std::size_t>, outcome> known_;
  trial best_;
  double fastest_us_ = std::numeric_limits<double>::infinity();
  std::size_t events_left_ = constants::forecast_events;
  std::size_t tries_left_ = std::numeric_limits<std::size_t>::max();  // by `options::plan_effort`
};

}  // namespace tidepool::plan::detail
