/// Chooses what becomes of each group: keep, offload or recompute.
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

/// Plans one profile under many goals.
///
/// Nothing leaves when everything fits. Otherwise the search begins with Belady's rule (for each
/// group that must leave, the one that comes back last; optimal when copies cost nothing), with
/// more and more of the budget set aside for copies on their way, and with more and more groups
/// recomputed. From the best of these it goes on at random: classes of groups (same layer and
/// module), ranges of layers, chunks of a class and single groups go another way, and a step that
/// takes a little longer is gone on from as well. The simulator judges each by `cost_us`: its time,
/// and what the bytes that it moves cost.
///
/// Work is limited (`goal::work`, and `goal::effort` where less will do), so that time is linear in
/// the number of events: some milliseconds for a thousand groups.
///
/// Deterministic. Touches no device. Thread safety: none.
class planner {
 public:
  /// A planner for this step, of which it keeps what it needs.
  explicit planner(const profile& step)
      : step_(&step), links_{step.link, step.peer_link, step.peer_shares_link, 0}, sim_(step) {
    const auto count = sim_.map().groups.size();
    keep_all_.assign(count, action::keep);
    // Who has no memory of its own goes on leaving as it did: that of views is not known, and what
    // another group saves too goes and stays with that one.
    for (std::size_t i = 0; i < count; ++i) {
      if (sim_.map().groups[i].bytes == 0) keep_all_[i] = action::offload;
    }
    in_core_ = sim_.run(keep_all_, {});
  }

  /// The step with everything kept: its time, and the bytes it takes.
  [[nodiscard]] const outcome& in_core() const { return in_core_; }

  /// The step as the simulator reads it: groups and events, flat.
  [[nodiscard]] const detail::layout& map() const { return sim_.map(); }

  /// Steps simulated so far, which is what plans cost.
  [[nodiscard]] std::size_t simulated() const { return sim_.runs(); }

  /// The step with given actions and run_limits, by the simulator.
  [[nodiscard]] outcome judge(const actions& what, const run_limits& limits) {
    return sim_.run(sim_.map().fold(what), limits);
  }

  /// The best plan found; `expected.runs` is false when there is none for this budget, and
  /// `expected.peak` is then the least for which there is one.
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
    // What the link alone takes is the bound of a plan that takes no longer.
    const bool at_link = found.result.runs && found.result.step_us <= by_link * (1 + 1e-6);
    auto result = plan_of(found);
    result.bound_us = at_link ? by_link : bound_us(wanted);
    if (!found.result.runs) result.expected.peak = least_bytes();
    result.limited_by = limit_of(result);
    return result;
  }

  /// The search that plans are found by, in this planner's simulator.
  [[nodiscard]] detail::walk walk_for(const goal& wanted) { return {sim_, keep_all_, wanted}; }

  /// A candidate of the search as a plan, without its bound and what limits it.
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

  /// The action of each group where everything stays.
  [[nodiscard]] const std::vector<action>& keep_all() const { return keep_all_; }

  /// Places for the memory of a step that does `what`; see `detail::find_places`.
  [[nodiscard]] detail::found_places places(const std::vector<action>& what,
                                            const run_limits& limits, double most_us) {
    return detail::find_places(sim_, *step_, what, limits, most_us);
  }

  /// The smallest budget, to within a group or 1 %, at which a step takes at most `1 + slowdown`
  /// times as long as with everything kept.
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

  /// No plan takes less.
  [[nodiscard]] double bound_us(const goal& wanted) const {
    if (in_core_.peak <= wanted.device_budget) return in_core_.step_us;
    return lower_bound(sim_.map(), links(wanted.peer_budget), wanted.device_budget,
                       wanted.recompute);
  }

  /// Actions in which what finds no room in the neighbour's memory goes to the host.
  [[nodiscard]] std::vector<action> as_it_went(std::vector<action> what, const run_limits& limits) {
    if (limits.peer_budget == 0) return what;
    static_cast<void>(sim_.run(what, limits));
    for (std::uint32_t i = 0; i < what.size(); ++i) {
      if (is_offload(what[i]) && !sim_.went_to_peer(i)) what[i] = action::offload;
    }
    return what;
  }

  /// What keeps a plan from being faster.
  [[nodiscard]] limit limit_of(const step_plan& found) const {
    if (!found.expected.runs) return limit::memory;
    if (found.expected.moved == 0 && found.expected.extra_us <= 0) return limit::nothing;
    if (found.expected.step_us <= in_core_.step_us * constants::as_long) return limit::compute;
    const bool recomputes = found.expected.extra_us > 0;
    const auto by_link =
        link_bound(sim_.map(), links(found.peer_budget), found.device_budget, recomputes);
    // Infinite where the link's bound has no plan, as in what is left free for shapes that vary.
    const bool near =
        std::isfinite(by_link) && found.expected.step_us <= by_link * constants::link_limits;
    return near ? limit::link : limit::memory;
  }

 private:
  // Everything leaves, and comes back when it is asked for.
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
