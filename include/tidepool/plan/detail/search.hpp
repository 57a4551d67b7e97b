// The search for a plan, with the simulator as judge.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/seeds.hpp"
#include "tidepool/plan/goal.hpp"
#include "tidepool/plan/simulator.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

struct candidate {
  std::vector<action> what;
  run_limits limits;
  outcome result;
};

// One search in one budget, of simulated events: for the fastest plan, or, where a time is given
// that is enough, for the one that moves least in it.
class search {
 public:
  search(simulator& sim, const std::vector<action>& keep_all, const goal& wanted, double bound)
      : sim_(&sim),
        keep_all_(&keep_all),
        wanted_(&wanted),
        bound_(bound),
        near_(neighbourhood_of(sim.map(), wanted.alike)),
        limits_{wanted.device_budget, 0, 0, wanted.peer_budget},
        ahead_(wanted.reload_ahead) {
    if (ahead_.empty()) {
      ahead_.assign(std::begin(constants::reloads_ahead), std::end(constants::reloads_ahead));
    }
    limits_.reload_ahead = ahead_.front();
    everything_leaves_.assign(keep_all.size(), action::offload);
  }

  // Starting plans, changes of them that help, and at last what can stay does.
  [[nodiscard]] candidate fastest() {
    next_stage();
    consider(everything_leaves_);
    start_by([&] { belady(); });
    if (wanted_->peer_budget > 0) neighbour();
    tune();
    if (wanted_->recompute) {
      next_stage();
      recomputing();
      tune();
    }
    next_stage();
    if (!subsets()) climb();
    tune();
    next_stage(true);
    give_back();
    return std::move(best_);
  }

  // Where there is no faster plan, there are still plans that move half as much. None of the ways
  // to them is a row of single changes that each help: a group can only stay if others go for it.
  // So this one wanders, from what is given, with its reloads ahead.
  [[nodiscard]] candidate moving_less(const std::vector<action>& from, const run_limits& limits,
                                      double most_us) {
    limits_ = limits;
    most_us_ = most_us;
    consider(from, limits_);
    if (!wanted_->alike) settled(from);
    wander(wanted_->alike ? near_.classes : near_.singles);
    return std::move(best_);
  }

 private:
  [[nodiscard]] const layout& map() const { return sim_->map(); }

  // Beyond what is enough time counts twice, so that there is a way back.
  [[nodiscard]] double cost_of(const outcome& of) const {
    return cost_us(of) + std::max(0.0, of.step_us - most_us_);
  }
  [[nodiscard]] bool better(const outcome& a, const outcome& b) const {
    if (a.runs != b.runs) return a.runs;
    if (most_us_ > 0) return cost_of(a) < cost_of(b);
    if (std::abs(a.step_us - b.step_us) > 1e-9 * b.step_us) return a.step_us < b.step_us;
    if (a.moved != b.moved) return a.moved < b.moved;
    return a.peak < b.peak;
  }

  outcome judge(const std::vector<action>& what, const run_limits& limits) {
    spent_ += map().events.size() + 1;
    return sim_->run(what, limits);
  }
  bool consider(std::vector<action> what, const run_limits& limits) {
    const auto result = judge(what, limits);
    const bool wins = best_.what.empty() || better(result, best_.result);
    if (wins) best_ = {std::move(what), limits, result};
    return wins;
  }
  bool consider(std::vector<action> what) {
    if (wanted_->alike) make_alike(map(), what, near_.classes);
    return consider(std::move(what), limits_);
  }

  [[nodiscard]] std::size_t most_work() const {
    const auto a_step = map().events.size() + 1;
    const auto most = wanted_->work + constants::whole_steps * a_step;
    const bool fewer = wanted_->effort && *wanted_->effort < most / a_step;
    return fewer ? *wanted_->effort * a_step : most;
  }
  // Each stage may take half of what is left, so that all have some; the last one the rest.
  void next_stage(bool last = false) {
    const auto left = most_work() - std::min(spent_, most_work());
    stage_end_ = spent_ + (last ? left : left / 2);
  }
  [[nodiscard]] bool tired() const { return spent_ > stage_end_; }
  // At the bound nothing is left to find but fewer bytes.
  [[nodiscard]] bool satisfied() const {
    return best_.result.runs && best_.result.step_us <= bound_ * (1 + 1e-6);
  }

  // The best of what `rule` considers is one of the places to climb from.
  template <class Rule>
  void start_by(const Rule& rule) {
    auto before = std::exchange(best_, {});
    rule();
    if (best_.what.empty()) {
      best_ = std::move(before);
      return;
    }
    starts_.push_back(best_);
    if (!before.what.empty() && !better(best_.result, before.result)) best_ = std::move(before);
  }

  // The budget without what is set aside for copies on their way.
  [[nodiscard]] std::size_t less(std::size_t spare) const {
    return wanted_->device_budget - std::min(spare * map().largest, wanted_->device_budget);
  }
  void belady() {
    for (std::size_t spare = 0; spare <= constants::most_spare && !tired(); ++spare) {
      consider(come_back_last(map(), *keep_all_, everything_leaves_, less(spare)));
    }
  }

  // With a neighbour: all that leaves goes there as far as it has room; or of what leaves so far,
  // as many classes as do best, those first that come back soonest and so give their room to
  // others.
  void neighbour() {
    const auto so_far = best_.what;
    auto leaving = everything_leaves_;
    std::fill(leaving.begin(), leaving.end(), action::offload_to_peer);
    start_by([&] {
      consider(leaving);
      for (std::size_t spare = 0; spare <= constants::most_spare; ++spare) {
        consider(come_back_last(map(), *keep_all_, leaving, less(spare)));
      }
    });
    const auto soonest = soonest_back(map(), so_far, near_.classes);
    start_by([&] {
      best_count(soonest.size(), [&](std::size_t count) {
        auto what = so_far;
        for (std::size_t i = 0; i < count; ++i) change(map(), what, soonest[i], leaving.front());
        return what;
      });
    });
  }

  // Of plans by a number, up to `most`: every eighth, then by halving steps around the best.
  template <class Make>
  void best_count(std::size_t most, const Make& make) {
    std::size_t best = most;
    auto step = std::max<std::size_t>(most / 8, 1);
    for (auto count = most; count > 0 && !tired(); count -= std::min(count, step)) {
      if (consider(make(count))) best = count;
    }
    while (step > 1 && !tired() && !satisfied()) {
      step = (step + 1) / 2;
      if (best > step && consider(make(best - step))) {
        best -= step;
      } else if (best + step <= most && consider(make(best + step))) {
        best += step;
      } else if (step == 1) {
        break;
      }
    }
  }

  // Reloads ahead: groups, and bytes as multiples of the largest group.
  bool tune() {
    const auto what = best_.what;
    const auto given = best_.limits;
    bool won = false;
    for (const auto groups : ahead_) {
      for (std::size_t times = 0; times <= constants::most_spare && !tired() && !satisfied();
           times += 2) {
        const run_limits limits{wanted_->device_budget, groups, times * map().largest,
                                wanted_->peer_budget};
        if (limits.reload_ahead != given.reload_ahead ||
            limits.reload_ahead_bytes != given.reload_ahead_bytes) {
          won = consider(what, limits) || won;
        }
      }
    }
    return won;
  }

  [[nodiscard]] bool can_recompute(std::uint32_t group) const {
    return map().groups[group].recompute_us > 0;
  }

  // The cheapest are recomputed, as many as do best: of those that Belady's rule chooses, or before
  // any other.
  void recomputing() {
    const auto cheapest = cheapest_again(map(), near_.classes);
    for (std::size_t spare = 0; spare <= constants::most_spare; ++spare) {
      for (const bool first : {false, true}) {
        start_by([&] {
          best_count(cheapest.size(), [&](std::size_t count) {
            auto leaving = everything_leaves_;
            for (std::size_t i = 0; i < count; ++i) {
              for (const auto group : cheapest[i]) leaving[group] = action::recompute;
            }
            return come_back_last(map(), *keep_all_, leaving, less(spare), first);
          });
        });
      }
    }
  }

  [[nodiscard]] std::vector<action> choices(const group_set& move) const {
    std::vector<action> all{action::keep, action::offload};
    if (wanted_->peer_budget > 0) all.push_back(action::offload_to_peer);
    if (wanted_->recompute && can_recompute(move.front())) all.push_back(action::recompute);
    return all;
  }

  // All subsets of few groups; whether they are few.
  bool subsets() {
    group_set movable;
    for (const auto& each : near_.classes) movable.insert(movable.end(), each.begin(), each.end());
    const bool two_ways = !wanted_->recompute && wanted_->peer_budget == 0;
    if (!two_ways || movable.size() > constants::few_groups) return false;
    auto what = *keep_all_;
    for (std::uint32_t bits = 0; bits < (1U << movable.size()) && !satisfied(); ++bits) {
      if (wanted_->effort && tired()) break;
      for (std::size_t i = 0; i < movable.size(); ++i) {
        what[movable[i]] = (bits >> i & 1U) != 0 ? action::offload : action::keep;
      }
      consider(what);
    }
    return true;
  }

  bool try_all(const std::vector<group_set>& moves) {
    bool improved = false;
    for (const auto& move : moves) {
      for (const auto to : choices(move)) {
        if (tired() || satisfied()) return false;
        auto what = best_.what;
        change(map(), what, move, to);
        if (what != best_.what) improved = consider(what, best_.limits) || improved;
      }
    }
    return improved;
  }

  // What one does, the other does afterwards.
  bool try_swaps(const std::vector<group_set>& moves) {
    for (std::size_t a = 0; a < moves.size(); ++a) {
      for (std::size_t b = 0; b < moves.size(); ++b) {
        if (tired() || satisfied()) return false;
        const auto first = best_.what[moves[a].front()];
        const auto second = best_.what[moves[b].front()];
        if (a == b || first == second) continue;
        auto what = best_.what;
        change(map(), what, moves[a], second);
        change(map(), what, moves[b], first);
        if (consider(what, best_.limits)) return true;
      }
    }
    return false;
  }

  // Belady's rule moves least where groups go a while before their memory is needed: some times
  // what a copy of the largest takes.
  void settled(const std::vector<action>& from) {
    auto leaving = from;
    const auto away = limits_.peer_budget > 0 ? action::offload_to_peer : action::offload;
    std::replace(leaving.begin(), leaving.end(), action::keep, away);
    const auto copy_us = static_cast<double>(map().largest) / (sim_->rates().out * 1e3);
    for (const double times : constants::settled_times) {
      consider(
          come_back_last(map(), *keep_all_, leaving, limits_.device_budget, false, times * copy_us),
          limits_);
    }
  }

  // Threshold accepting (Dueck and Scheuer, J. Comput. Phys. 90, 1990): one or two sets at random
  // go another way, and what costs a little more is gone on from, less and less of it. The numbers
  // are the same on every platform.
  void wander(const std::vector<group_set>& sets) {
    if (sets.empty()) return;
    const auto tries = std::min(wanted_->work / (map().events.size() + 1),
                                wanted_->effort.value_or(wanted_->work));
    const auto widest =
        constants::widest * contention_us_per_byte * static_cast<double>(map().largest);
    auto now = best_;
    for (std::size_t left = tries; left > 0; --left) {
      auto what = now.what;
      alter(what, sets[random_() % sets.size()]);
      if (random_() / 2 % 2 == 0) alter(what, sets[random_() % sets.size()]);
      const auto result = judge(what, limits_);
      const auto allowed = widest * static_cast<double>(left) / static_cast<double>(tries) *
                           static_cast<double>(random_()) / static_cast<double>(random_.max());
      if (!result.runs || cost_of(result) > cost_of(now.result) + allowed) continue;
      now = {std::move(what), limits_, result};
      if (better(result, best_.result)) best_ = now;
    }
  }
  void alter(std::vector<action>& what, const group_set& set) {
    auto to = what[set.front()] == action::keep ? action::offload : action::keep;
    if (wanted_->recompute && random_() / 2 % 2 == 0) to = action::recompute;
    if (limits_.peer_budget > 0 && random_() / 2 % 2 == 0) to = action::offload_to_peer;
    change(map(), what, set, to);
  }

  // Whole classes first, from each start until none helps; then what takes the best apart.
  void climb() {
    std::ranges::stable_sort(
        starts_, [this](const auto& a, const auto& b) { return better(a.result, b.result); });
    climb_by_classes();
    for (auto& start : starts_) {
      if (tired() || satisfied()) break;
      auto before = std::exchange(best_, std::move(start));
      climb_by_classes();
      if (!better(best_.result, before.result)) best_ = std::move(before);
    }
    next_stage();
    for (bool improved = !near_.singles.empty(); improved && !tired() && !satisfied();) {
      improved = try_all(near_.parts);
      improved = try_all(near_.singles) || improved;
      if (!improved) improved = tune() || try_swaps(near_.singles);
    }
  }
  void climb_by_classes() {
    do {
      bool improved = true;
      while (improved && !tired() && !satisfied()) {
        improved = try_all(near_.classes);
        improved = try_all(near_.ranges) || improved;
      }
    } while (!tired() && !satisfied() && (tune() || try_swaps(near_.classes)));
  }

  // What leaves and comes back soonest stays, as far as the step then takes hardly longer.
  void give_back() {
    if (!best_.result.runs) return;
    const auto most_us = best_.result.step_us * (1 + wanted_->tolerance);
    auto sets = soonest_back(map(), best_.what, near_.classes);
    if (!wanted_->alike) {
      std::vector<group_set> apart;
      for (const auto& each : sets) {
        for (const auto group : each) apart.push_back({group});
      }
      sets = std::move(apart);
    }
    give_back_of(sets, 0, sets.size(), [&](const group_set& which) {
      if (tired()) return true;
      auto what = best_.what;
      change(map(), what, which, action::keep);
      const auto result = judge(what, best_.limits);
      const bool stays =
          result.runs && result.step_us <= most_us && result.moved < best_.result.moved;
      if (stays) best_ = {std::move(what), best_.limits, result};
      return stays;
    });
  }

  simulator* sim_;
  const std::vector<action>* keep_all_;
  const goal* wanted_;
  double bound_;
  double most_us_ = 0;  // that is enough; 0: the fastest is asked for
  neighbourhood near_;
  run_limits limits_;
  std::vector<std::size_t> ahead_;
  std::vector<action> everything_leaves_;
  candidate best_;
  std::vector<candidate> starts_;
  std::size_t spent_ = 0;
  std::size_t stage_end_ = 0;
  std::minstd_rand random_;
};

}  // namespace tidepool::plan::detail
