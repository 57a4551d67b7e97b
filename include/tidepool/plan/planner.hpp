/// Chooses what becomes of each group: keep, offload or recompute.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "tidepool/plan/bound.hpp"
#include "tidepool/plan/simulator.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::plan {

/// What a plan is asked for.
struct goal {
  std::size_t device_budget = 0;  ///< bytes of saved tensors; 0: whatever keeping all takes
  bool recompute = false;         ///< groups that can be recomputed may be
  /// Reloads ahead of use that may be chosen; empty: the planner's own few.
  std::vector<std::size_t> reload_ahead{};
};

/// Plans one profile under many goals.
///
/// Nothing leaves when everything fits. Otherwise: for each group that must leave, the one that
/// comes back last (Belady's rule; optimal when copies cost nothing), with more and more of the
/// budget set aside for copies on their way; the best prefix of every chunk's groups; then local
/// search over classes of groups (same layer and module) and single groups, with the simulator as
/// judge; all subsets where there are few groups. Step time counts, then bytes moved, since each
/// takes bandwidth that compute and other GPUs of the host may need, then the peak: what is below
/// the budget already. Work is limited: about 2 ms and 60 simulations of the step, so that time is
/// linear in the number of events.
///
/// Deterministic. Touches no device. Thread safety: none.
class planner {
 public:
  explicit planner(const profile& step) : link_(step.link), sim_(step) {
    const auto count = sim_.map().groups.size();
    keep_all_.assign(count, action::keep);
    // Whose memory is not known, such as that of views, goes on leaving as it did.
    for (std::uint32_t i = 0, c = 0; c < step.chunks.size(); ++c) {
      for (const auto& each : step.chunks[c].groups) {
        if (each.bytes > 0 && sim_.map().groups[i].bytes == 0) keep_all_[i] = action::offload;
        ++i;
      }
    }
    in_core_ = sim_.run(keep_all_, {});
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto& each = sim_.map().groups[i];
      if (each.bytes > 0) {
        classes_[{each.layer, static_cast<std::size_t>(each.module)}].push_back(i);
        movable_.push_back(i);
      }
    }
  }

  /// The step with everything kept: its time, and the bytes it takes.
  [[nodiscard]] const outcome& in_core() const { return in_core_; }

  /// The step with given actions and knobs, by the simulator.
  [[nodiscard]] outcome judge(const actions& what, const knobs& limits) {
    return sim_.run(sim_.map().fold(what), limits);
  }

  /// The best plan found; `expected.runs` is false when there is none for this budget.
  [[nodiscard]] step_plan best(const goal& wanted) {
    wanted_ = wanted;
    if (wanted_.device_budget == 0) wanted_.device_budget = in_core_.peak;
    step_plan result;
    result.device_budget = wanted_.device_budget;
    if (in_core_.peak <= wanted_.device_budget) {
      result.what = sim_.map().unfold(keep_all_);
      result.expected = in_core_;
      result.bound_us = in_core_.step_us;
      return result;
    }
    result.bound_us = lower_bound(sim_.map(), link_, wanted_.device_budget, wanted_.recompute);
    search(result.bound_us);
    result.what = sim_.map().unfold(best_.what);
    result.reload_ahead = best_.limits.reload_ahead;
    result.reload_ahead_bytes = best_.limits.reload_ahead_bytes;
    result.expected = best_.result;
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
    if (found.expected.step_us <= in_core_.step_us * 1.001) return limit::compute;
    return found.gap() <= 0.02 ? limit::link : limit::memory;
  }

 private:
  struct candidate {
    std::vector<action> what;
    knobs limits;
    outcome result;
  };

  // Events that one search may simulate, beside a number of whole steps.
  static constexpr std::size_t free_events = 250'000;
  static constexpr std::size_t whole_steps = 60;
  static constexpr std::size_t few_groups = 12;

  [[nodiscard]] static bool better(const outcome& a, const outcome& b) {
    if (a.runs != b.runs) return a.runs;
    if (std::abs(a.step_us - b.step_us) > 1e-9 * b.step_us) return a.step_us < b.step_us;
    if (a.moved != b.moved) return a.moved < b.moved;
    return a.peak < b.peak;
  }

  bool consider(const std::vector<action>& what, const knobs& limits) {
    const auto cost = sim_.map().events.size() + 1;
    spent_ += cost;
    const auto result = sim_.run(what, limits);
    const bool wins = best_.what.empty() || better(result, best_.result);
    if (wins) best_ = {what, limits, result};
    return wins;
  }
  [[nodiscard]] bool tired(double share = 1) const {
    const auto most = free_events + whole_steps * (sim_.map().events.size() + 1);
    return static_cast<double>(spent_) > share * static_cast<double>(most);
  }
  // At the bound nothing is left to find but fewer bytes, which Belady's rule has seen to.
  [[nodiscard]] bool satisfied() const {
    return best_.result.runs && best_.result.step_us <= bound_ * (1 + 1e-6);
  }

  void search(double bound) {
    bound_ = bound;
    spent_ = 0;
    best_ = {};
    ahead_ = wanted_.reload_ahead;
    if (ahead_.empty()) ahead_ = {4, 1, 64};
    knobs limits{wanted_.device_budget, ahead_.front(), 0};
    consider(std::vector<action>(keep_all_.size(), action::offload), limits);
    for (std::size_t spare = 0; spare <= 4 && !tired(0.3); ++spare) {
      consider(come_back_last(spare * sim_.map().largest, action::offload), limits);
    }
    prefixes(limits);
    tune();
    if (wanted_.recompute) with_recompute();
    if (movable_.size() <= few_groups && !wanted_.recompute) return subsets();
    climb();
    tune();
  }

  // Whole groups by Belady's rule for a budget that is smaller by `spare`.
  [[nodiscard]] std::vector<action> come_back_last(std::size_t spare, action how) const {
    const auto& map = sim_.map();
    const auto budget = wanted_.device_budget > spare ? wanted_.device_budget - spare : 0;
    std::vector<std::uint32_t> order(map.groups.size(), 0);
    for (std::uint32_t i = 0; i < map.reload_order.size(); ++i) order[map.reload_order[i]] = i;
    auto what = keep_all_;
    std::priority_queue<std::pair<std::uint32_t, std::uint32_t>> idle;
    std::size_t held = 0;
    std::vector<bool> restored(map.groups.size(), false);
    for (const auto& each : map.events) {
      if (each.kind == event_kind::commit) idle.emplace(order[each.what], each.what);
      if (each.kind == event_kind::allocate) held += map.storages[each.what].bytes;
      if (each.kind == event_kind::release) held -= map.storages[each.what].bytes;
      if (each.kind == event_kind::restore) {
        restored[each.what] = true;
        if (what[each.what] != action::keep) held += map.groups[each.what].bytes;
      }
      while (held > budget && !idle.empty()) {
        const auto group = idle.top().second;
        idle.pop();
        if (restored[group] || what[group] != action::keep) continue;
        what[group] = how;
        held -= map.groups[group].bytes;
      }
    }
    return what;
  }

  // The first groups of every chunk leave; how many, by halving steps around the best so far.
  void prefixes(const knobs& limits) {
    std::size_t longest = 0;
    const auto& map = sim_.map();
    for (std::size_t c = 0; c < map.first.size(); ++c) {
      const auto end = c + 1 < map.first.size() ? map.first[c + 1] : map.groups.size();
      longest = std::max(longest, end - map.first[c]);
    }
    const auto first = [&](std::size_t count) {
      auto what = keep_all_;
      for (std::size_t i = 0; i < what.size(); ++i) {
        if (i - map.first[map.groups[i].chunk] < count) what[i] = action::offload;
      }
      return what;
    };
    std::size_t best = longest;
    auto step = std::max<std::size_t>(longest / 8, 1);
    for (std::size_t count = longest; count > 0 && !tired(0.5); count -= std::min(count, step)) {
      if (consider(first(count), limits)) best = count;
    }
    while (step > 1 && !tired(0.6) && !satisfied()) {
      step = (step + 1) / 2;
      if (best > step && consider(first(best - step), limits)) {
        best -= step;
      } else if (best + step <= longest && consider(first(best + step), limits)) {
        best += step;
      } else if (step == 1) {
        break;
      }
    }
  }

  // Reloads ahead: groups, and bytes as multiples of the largest group.
  void tune() {
    if (satisfied()) return;
    const auto what = best_.what;
    const auto given = best_.limits;
    for (const auto groups : ahead_) {
      for (std::size_t times = 0; times <= 4 && !tired(); times += 2) {
        const knobs limits{wanted_.device_budget, groups, times * sim_.map().largest};
        if (limits.reload_ahead != given.reload_ahead ||
            limits.reload_ahead_bytes != given.reload_ahead_bytes) {
          consider(what, limits);
        }
      }
    }
  }

  [[nodiscard]] bool can_recompute(std::uint32_t group) const {
    return sim_.map().groups[group].recompute_us > 0;
  }

  // What leaves is recomputed instead where that is possible: all of it, the cheapest classes, …
  void with_recompute() {
    std::vector<std::pair<double, const std::vector<std::uint32_t>*>> cheapest;
    for (const auto& [key, members] : classes_) {
      const auto& one = sim_.map().groups[members.front()];
      if (one.recompute_us <= 0) continue;
      cheapest.emplace_back(one.recompute_us / static_cast<double>(one.bytes), &members);
    }
    std::sort(cheapest.begin(), cheapest.end());
    auto what = best_.what;
    for (const auto& [cost, members] : cheapest) {
      if (tired(0.8)) return;
      for (const auto group : *members) {
        if (what[group] == action::offload && can_recompute(group)) what[group] = action::recompute;
      }
      consider(what, best_.limits);
    }
    what = come_back_last(0, action::recompute);
    for (std::uint32_t i = 0; i < what.size(); ++i) {
      if (what[i] == action::recompute && !can_recompute(i)) what[i] = action::offload;
    }
    consider(what, best_.limits);
  }

  [[nodiscard]] std::vector<action> choices(std::uint32_t group) const {
    std::vector<action> all{action::keep, action::offload};
    if (wanted_.recompute && can_recompute(group)) all.push_back(action::recompute);
    return all;
  }

  void subsets() {
    const auto limits = best_.limits;
    auto what = keep_all_;
    for (std::uint32_t bits = 0; bits < (1U << movable_.size()) && !satisfied(); ++bits) {
      for (std::size_t i = 0; i < movable_.size(); ++i) {
        what[movable_[i]] = (bits >> i & 1U) != 0 ? action::offload : action::keep;
      }
      consider(what, limits);
    }
  }

  // One class or group at a time, then swaps of one that leaves for one that stays, while it helps.
  void climb() {
    std::vector<std::vector<std::uint32_t>> moves;
    for (const auto& [key, members] : classes_) moves.push_back(members);
    if (movable_.size() > classes_.size()) {
      for (const auto group : movable_) moves.push_back({group});
    }
    const auto try_move = [&](std::vector<action>& what, const std::vector<std::uint32_t>& move,
                              action to) {
      for (const auto group : move) {
        // Of one class some may have been shared, and cannot.
        const bool cannot = to == action::recompute && !can_recompute(group);
        what[group] = cannot ? action::offload : to;
      }
    };
    for (bool improved = true; improved && !tired() && !satisfied();) {
      improved = false;
      for (const auto& move : moves) {
        if (tired() || satisfied()) return;
        for (const auto to : choices(move.front())) {
          auto what = best_.what;
          try_move(what, move, to);
          if (what != best_.what) improved = consider(what, best_.limits) || improved;
        }
      }
      if (improved) continue;
      for (std::size_t a = 0; a < moves.size() && !improved; ++a) {
        for (std::size_t b = 0; b < moves.size() && !improved; ++b) {
          if (tired() || satisfied()) return;
          const auto first = best_.what[moves[a].front()];
          const auto second = best_.what[moves[b].front()];
          if (a == b || first == second) continue;
          auto what = best_.what;
          try_move(what, moves[a], second);
          try_move(what, moves[b], first);
          improved = consider(what, best_.limits);
        }
      }
    }
  }

  link_rates link_;
  simulator sim_;
  outcome in_core_;
  std::vector<action> keep_all_;
  std::vector<std::uint32_t> movable_;
  std::map<std::pair<int, std::size_t>, std::vector<std::uint32_t>> classes_;
  goal wanted_;
  std::vector<std::size_t> ahead_;
  candidate best_;
  double bound_ = 0;
  std::size_t spent_ = 0;
};

}  // namespace tidepool::plan
