/// The planner: chooses for each group whether it is kept, offloaded or recomputed. Inputs are a
/// profile and a goal (budget in bytes, search effort). The output is a plan with its predicted
/// step time and a lower bound of the step time, both in microseconds, so that a reader knows how
/// far from the best the plan can be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tidepool/plan/bound.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/walk.hpp"
#include "tidepool/plan/goal.hpp"
#include "tidepool/plan/placement.hpp"
#include "tidepool/plan/simulator.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan {

/// Plans for one profile under many goals.
///
/// If everything fits the budget, nothing is offloaded. Otherwise the search starts with Belady's
/// rule: when memory is short, the group whose restore is farthest away is offloaded. The rule
/// would be optimal if copies cost nothing. The search repeats it with larger and larger parts of
/// the budget reserved for copies in flight, and with more and more groups recomputed. A local
/// search with random changes continues from the best of these plans. The local search changes the
/// action of whole sets of groups (of one layer and module, of a range of layers, of some chunks)
/// and of single groups, and at times accepts a slightly slower step. The simulator predicts each
/// plan; plans are compared by `cost_us`.
///
/// `goal::work` limits the work of a search, and `goal::effort` can limit it further. So the time
/// of a search is linear in the number of events: some milliseconds for a thousand groups.
///
/// Deterministic. Touches no device. Thread safety: none.
class planner {
 public:
  /// Makes a planner for `step`. The planner refers to it, so the profile must outlive the planner.
  explicit planner(const profile& step)
      : step_(&step), links_{step.link, step.peer_link, step.peer_shares_link, 0}, sim_(step) {
    const auto count = sim_.map().groups.size();
    keep_all_.assign(count, action::keep);
    // Two kinds of groups have no bytes of their own: groups of views, whose storage is not known,
    // and groups that only save storages of other groups, with which they stay or leave. Both keep
    // the action of the warm-up, offload.
    for (std::size_t i = 0; i < count; ++i) {
      if (sim_.map().groups[i].bytes == 0) keep_all_[i] = action::offload;
    }
    in_core_ = sim_.run(keep_all_, {});
  }

  /// The step with everything kept: its time, and the bytes it takes.
  [[nodiscard]] const outcome& in_core() const { return in_core_; }

  /// The step in the form that the simulator reads.
  [[nodiscard]] const detail::layout& map() const { return sim_.map(); }

  /// Steps simulated so far: the measure of what plans have cost.
  [[nodiscard]] std::size_t simulated() const { return sim_.runs(); }

  /// Simulates the step with given actions and limits.
  [[nodiscard]] outcome judge(const actions& what, const run_limits& limits) {
    return sim_.run(sim_.map().fold(what), limits);
  }

  /// The best plan found. If no plan was found for this budget, `expected.runs` is false and
  /// `expected.peak` is the least budget in bytes for which the planner finds one.
  [[nodiscard]] step_plan best(goal wanted) {
    if (wanted.device_budget == 0) wanted.device_budget = in_core_.peak;
    if (!links_.peer) wanted.peer_budget = 0;
    if (in_core_.peak <= wanted.device_budget) {
      auto result =
          plan_of({keep_all_, {wanted.device_budget, 2, 0, wanted.peer_budget}, in_core_});
      result.bound_us = in_core_.step_us;
      return result;
    }
    const auto by_link =
        link_bound(sim_.map(), links(wanted.peer_budget), wanted.device_budget, wanted.recompute);
    auto search = walk_for(wanted);
    const auto found = search.go(search.start(wanted.device_budget, wanted.alike), wanted.work,
                                 constants::heat, wanted.alike);
    // A plan as fast as the link's bound needs no tighter bound, and the link's is the cheaper one
    // to compute.
    const bool at_link = found.result.runs && found.result.step_us <= by_link * (1 + 1e-6);
    auto result = plan_of(found);
    result.bound_us = at_link ? by_link : bound_us(wanted);
    if (!found.result.runs) result.expected.peak = least_bytes();
    result.limited_by = limit_of(result);
    return result;
  }

  /// The local search that finds plans, with this planner's simulator.
  [[nodiscard]] detail::walk walk_for(const goal& wanted) { return {sim_, keep_all_, wanted}; }

  /// A candidate of the search as a plan; `bound_us` and `limited_by` are not filled in.
  [[nodiscard]] step_plan plan_of(const detail::candidate& found) {
    const auto& by = found.limits;
    return {.what = sim_.map().unfold(as_it_went(found.what, by)),
            .device_budget = by.device_budget,
            .reload_ahead = by.reload_ahead,
            .reload_ahead_bytes = by.reload_ahead_bytes,
            .expected = found.result,
            .bound_us = 0,
            .limited_by = limit::nothing,
            .peer_budget = by.peer_budget};
  }

  /// The actions with which everything stays.
  [[nodiscard]] const std::vector<action>& keep_all() const { return keep_all_; }

  /// Places for the memory of a step with the actions `what`; see `detail::find_places`.
  [[nodiscard]] detail::found_places places(const std::vector<action>& what,
                                            const run_limits& limits, double most_us) {
    return detail::find_places(sim_, *step_, what, limits, most_us);
  }

  /// The plan for the smallest budget at which a step takes at most `1 + slowdown` times as long as
  /// with everything kept. The budget is found to within one block or 1 %.
  [[nodiscard]] step_plan least_memory(double slowdown, goal wanted = {}) {
    auto most = in_core_.peak;
    std::size_t least = 0;
    wanted.device_budget = most;
    auto found = best(wanted);
    const auto close = std::max(most / 100, block_alignment);
    while (most - least > close) {
      wanted.device_budget = least + (most - least) / 2;
      auto next = best(wanted);
      if (next.expected.runs && next.expected.step_us <= in_core_.step_us * (1 + slowdown)) {
        most = wanted.device_budget;
        found = std::move(next);
      } else {
        least = wanted.device_budget;
      }
    }
    return found;
  }

  /// A lower bound: no plan for this goal takes fewer microseconds.
  [[nodiscard]] double bound_us(const goal& wanted) const {
    if (in_core_.peak <= wanted.device_budget) return in_core_.step_us;
    return lower_bound(sim_.map(), links(wanted.peer_budget), wanted.device_budget,
                       wanted.recompute);
  }

  /// The actions as they were carried out: a group that finds no room in the neighbour's memory
  /// goes to the host.
  [[nodiscard]] std::vector<action> as_it_went(std::vector<action> what, const run_limits& limits) {
    if (limits.peer_budget == 0) return what;
    static_cast<void>(sim_.run(what, limits));
    for (std::uint32_t i = 0; i < what.size(); ++i) {
      if (is_offload(what[i]) && !sim_.went_to_peer(i)) what[i] = action::offload;
    }
    return what;
  }

  /// The resource that keeps a plan from being faster.
  [[nodiscard]] limit limit_of(const step_plan& found) const {
    if (!found.expected.runs) return limit::memory;
    if (found.expected.moved == 0 && found.expected.extra_us <= 0) return limit::nothing;
    if (found.expected.step_us <= in_core_.step_us * constants::as_long) return limit::compute;
    const bool recomputes = found.expected.extra_us > 0;
    const auto by_link =
        link_bound(sim_.map(), links(found.peer_budget), found.device_budget, recomputes);
    // The link's bound is infinite if no plan fits, as in a budget of which much is left free
    // because shapes vary.
    const bool near =
        std::isfinite(by_link) && found.expected.step_us <= by_link * constants::link_limits;
    return near ? limit::link : limit::memory;
  }

 private:
  // The least budget that runs: everything is offloaded and only reloaded when it is needed.
  [[nodiscard]] std::size_t least_bytes() {
    const std::vector<action> all(keep_all_.size(), action::offload);
    return sim_.run(all, {.device_budget = 0, .reload_ahead = 0}).peak;
  }

  [[nodiscard]] step_links links(std::size_t peer_budget) const {
    auto result = links_;
    result.peer_budget = peer_budget;
    return result;
  }

  const profile* step_;
  step_links links_;
  simulator sim_;
  outcome in_core_;
  std::vector<action> keep_all_;
};

}  // namespace tidepool::plan
