// How `automatic` goes about it: which plans the engine is given to run, and in which order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "tidepool/options.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/trials.hpp"
#include "tidepool/plan/forecast.hpp"
#include "tidepool/plan/planner.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

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

class chooser {
 public:
  chooser(const profile& step, const options& opts, planner& plans)
      : step_(&step),
        opts_(&opts),
        plans_(&plans),
        peer_budget_(plans_with_peer(step, opts) ? opts.peer_budget.value_or(0) : std::size_t{0}),
        most_(opts.device_budget ? left_for_plans(step, *opts.device_budget)
                                 : plans.in_core().peak),
        stage_(step, opts, plans) {}

  // `given` is one of the plans to choose from, if it runs.
  [[nodiscard]] step_plan run(step_plan given) {
    whole_ = plans_->best(goal_for(most_, false));
    const auto without_recomputing_us = whole_.bound_us;
    given.peer_budget = peer_budget_;
    if (given.expected.runs && !given.what.empty()) static_cast<void>(stage_.try_plan(given));
    const bool may_recompute = opts_->recompute_by_plan && detail::may_recompute(*step_);
    bool recompute = may_recompute && whole_.expected.step_us > in_core_us() * (1 + 1e-6);
    if (recompute) {
      whole_ = plans_->best(goal_for(most_, true));
      try_all(true);
    }
    if (!stage_.reaches(without_recomputing_us)) try_all(false);
    if (may_recompute && !recompute && !stage_.reaches(in_core_us())) {
      recompute = true;  // the planner saw no need, but the engine is slower than it thought
      try_all(true);
    }
    if (!stage_.reaches(without_recomputing_us)) stage_.try_megatron(whole_);
    stage_.refine(recompute);
    return stage_.found() ? best() : none_found();
  }

 private:
  [[nodiscard]] double in_core_us() const { return plans_->in_core().step_us; }

  [[nodiscard]] goal goal_for(std::size_t bytes, bool recompute) const {
    return {.device_budget = bytes,
            .recompute = recompute,
            .peer_budget = peer_budget_,
            .effort = opts_->plan_effort};
  }

  void try_all(bool recompute) {
    try_shares(recompute, true);
    if (!stage_.reaches(in_core_us())) try_shares(recompute, false);
  }

  // Less and less of the budget until one runs as planned.
  void try_shares(bool recompute, bool alike) {
    for (const double share : constants::budget_shares) {
      if (!try_share(share, recompute, alike)) return;
    }
  }

  // A plan for a share of the budget; whether one for less of it may do better.
  [[nodiscard]] bool try_share(double share, bool recompute, bool alike) {
    if (!stage_.may_try()) return false;
    // What is left out is at most half: a budget near 2^64 as a double would not come back.
    const auto budget = most_ - static_cast<std::size_t>(static_cast<double>(most_) * (1 - share));
    auto wanted = goal_for(std::max<std::size_t>(budget, 1), recompute);
    wanted.work = constants::work_of_a_share;
    wanted.alike = alike;
    auto next = plans_->best(wanted);
    if (!next.expected.runs) return true;
    const auto roomy =
        plans_->judge(next.what, {most_, next.reload_ahead, next.reload_ahead_bytes, peer_budget_})
            .step_us;
    if (std::min(roomy, next.expected.step_us) > stage_.fastest_us()) return false;
    next.device_budget = most_;
    return !stage_.try_plan(next);
  }

  [[nodiscard]] step_plan best() const {
    auto best = stage_.best();
    // What is left free for shapes that vary may be what no plan can do without; the engine has it.
    best.bound_us = std::isfinite(whole_.bound_us) ? whole_.bound_us : in_core_us();
    best.limited_by = plans_->limit_of(best);
    return best;
  }

  [[nodiscard]] step_plan none_found() const {
    auto none_found = whole_;
    if (!std::isfinite(none_found.bound_us)) none_found.bound_us = in_core_us();
    if (opts_->device_budget) {
      none_found.device_budget = *opts_->device_budget;
      auto& peak = none_found.expected.peak;
      if (!none_found.expected.runs) peak = budget_that_leaves(*step_, peak);
    }
    none_found.expected.runs = false;
    return none_found;
  }

  const profile* step_;
  const options* opts_;
  planner* plans_;
  std::size_t peer_budget_;
  std::size_t most_;  // of the budget, for plans
  trials stage_;
  step_plan whole_;  // for all of it
};

}  // namespace tidepool::plan::detail
