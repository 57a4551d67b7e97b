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
#include "tidepool/plan/detail/search.hpp"
#include "tidepool/plan/goal.hpp"
#include "tidepool/plan/simulator.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::plan {

/// Plans one profile under many goals.
///
/// Nothing leaves when everything fits. Otherwise, with the simulator as judge:
///
/// - seeds: for each group that must leave, the one that comes back last (Belady's rule; optimal
///   when copies cost nothing), with more and more of the budget set aside for copies on their way;
///   with these, as many of the groups as do best recomputed, cheapest by the byte first;
/// - local search from the best seeds: classes of groups (same layer and module) and ranges of
///   layers, then chunks of a class and single groups; all subsets where there are few groups;
/// - what leaves and comes back soonest stays, as far as the step takes hardly longer
///   (`goal::tolerance`): each copy takes bandwidth that kernels and other GPUs of the host need.
///
/// That stops at the first plan without stalls. `moving_less` then exchanges groups for others, to
/// move less.
///
/// Work is limited (`goal::work`, and `goal::effort` where less will do), so that time is linear in
/// the number of events: some milliseconds for a thousand groups.
///
/// Deterministic. Touches no device. Thread safety: none.
class planner {
 public:
  /// A planner for this step, of which it keeps what it needs.
  explicit planner(const profile& step)
      : links_{step.link, step.peer_link, step.peer_shares_link, 0}, sim_(step) {
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
    step_plan result;
    result.device_budget = wanted.device_budget;
    result.peer_budget = wanted.peer_budget;
    if (in_core_.peak <= wanted.device_budget) {
      result.what = sim_.map().unfold(keep_all_);
      result.expected = in_core_;
      result.bound_us = in_core_.step_us;
      return result;
    }
    const auto by_link =
        link_bound(sim_.map(), links(wanted.peer_budget), wanted.device_budget, wanted.recompute);
    const auto found = detail::search(sim_, keep_all_, wanted, by_link).fastest();
    // What the link alone takes is the bound of a plan that takes no longer.
    const bool at_link = found.result.runs && found.result.step_us <= by_link * (1 + 1e-6);
    result.bound_us = at_link ? by_link
                              : lower_bound(sim_.map(), links(wanted.peer_budget),
                                            wanted.device_budget, wanted.recompute);
    result.what = sim_.map().unfold(as_it_went(found.what, found.limits));
    result.reload_ahead = found.limits.reload_ahead;
    result.reload_ahead_bytes = found.limits.reload_ahead_bytes;
    result.expected = found.result;
    if (!found.result.runs) result.expected.peak = least_bytes();
    result.limited_by = limit_of(result);
    return result;
  }

  /// The best plan by `cost_us` found for the reloads ahead of `from`, no worse than its actions in
  /// the budget of `wanted`, among those that take at most `most_us`, if there are any. Looked for
  /// at random, `goal::work` long.
  [[nodiscard]] step_plan moving_less(const step_plan& from, const goal& wanted, double most_us) {
    auto result = from;
    result.device_budget = wanted.device_budget;
    auto begin = sim_.map().fold(from.what);
    for (std::size_t i = 0; i < begin.size(); ++i) {
      if (sim_.map().groups[i].bytes == 0) begin[i] = keep_all_[i];
    }
    const run_limits limits{wanted.device_budget, from.reload_ahead, from.reload_ahead_bytes,
                            from.peer_budget};
    const auto found =
        detail::search(sim_, keep_all_, wanted, 0).moving_less(begin, limits, most_us);
    result.what = sim_.map().unfold(as_it_went(found.what, limits));
    result.expected = found.result;
    result.limited_by = limit_of(result);
    return result;
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

  // What found no room in the neighbour's memory is to go to the host.
  [[nodiscard]] std::vector<action> as_it_went(std::vector<action> what, const run_limits& limits) {
    if (limits.peer_budget == 0) return what;
    static_cast<void>(sim_.run(what, limits));
    for (std::uint32_t i = 0; i < what.size(); ++i) {
      if (is_offload(what[i]) && !sim_.went_to_peer(i)) what[i] = action::offload;
    }
    return what;
  }

  step_links links_;
  simulator sim_;
  outcome in_core_;
  std::vector<action> keep_all_;
};

}  // namespace tidepool::plan
