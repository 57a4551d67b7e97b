// The search for a plan that moves little, with the simulator as judge.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/seeds.hpp"
#include "tidepool/plan/goal.hpp"
#include "tidepool/plan/simulator.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

// Where a search for the least time finds nothing that is faster, there are still plans that move
// half as much. None of the ways to them is a row of single changes that each help: a group can
// only stay if others go for it. So this one wanders.
class lean_search {
 public:
  struct found {
    std::vector<action> what;
    outcome result;
  };

  lean_search(simulator& sim, const std::vector<action>& keep_all, const goal& wanted,
              const run_limits& limits, double most_us)
      : sim_(&sim),
        keep_all_(&keep_all),
        wanted_(&wanted),
        limits_(limits),
        most_us_(most_us),
        near_(neighbourhood_of(sim.map(), wanted.alike)) {}

  // The best by `cost_us`, of plans that take `most_us` at most if there are any.
  [[nodiscard]] found run(const std::vector<action>& from) {
    consider(from);
    if (!wanted_->alike) settled(from);
    wander(wanted_->alike ? near_.classes : near_.singles);
    return std::move(best_);
  }

 private:
  [[nodiscard]] const layout& map() const { return sim_->map(); }

  // Beyond the limit time counts twice, so that there is a way back.
  [[nodiscard]] double cost_of(const outcome& of) const {
    return cost_us(of) + std::max(0.0, of.step_us - most_us_);
  }

  void consider(std::vector<action> what) {
    const auto result = sim_->run(what, limits_);
    if (best_.what.empty() || cost_of(result) < cost_of(best_.result)) {
      best_ = {std::move(what), result};
    }
  }

  // Belady's rule moves least where groups go a while before their memory is needed: some times
  // what a copy of the largest takes.
  void settled(const std::vector<action>& from) {
    auto leaving = from;
    for (auto& each : leaving) {
      if (each == action::keep) {
        each = limits_.peer_budget > 0 ? action::offload_to_peer : action::offload;
      }
    }
    const auto copy_us = static_cast<double>(map().largest) / (sim_->rates().out * 1e3);
    for (const double times : constants::settled_times) {
      consider(come_back_last(map(), *keep_all_, leaving, limits_.device_budget, false,
                              times * copy_us));
    }
  }

  // Threshold accepting (Dueck and Scheuer, J. Comput. Phys. 90, 1990): one or two sets at random
  // go another way, and what costs a little more is gone on from, less and less of it. The numbers
  // are the same on every platform.
  void wander(const std::vector<group_set>& sets) {
    if (sets.empty()) return;
    auto tries = wanted_->work / (map().events.size() + 1);
    if (wanted_->effort) tries = std::min(tries, *wanted_->effort);
    const auto widest =
        constants::widest * contention_us_per_byte * static_cast<double>(map().largest);
    auto now = best_;
    for (std::size_t left = tries; left > 0; --left) {
      auto what = now.what;
      alter(what, sets[random_() % sets.size()]);
      if (random_() / 2 % 2 == 0) alter(what, sets[random_() % sets.size()]);
      const auto result = sim_->run(what, limits_);
      const auto allowed = widest * static_cast<double>(left) / static_cast<double>(tries) *
                           static_cast<double>(random_()) / static_cast<double>(random_.max());
      if (!result.runs || cost_of(result) > cost_of(now.result) + allowed) continue;
      now = {std::move(what), result};
      if (cost_of(result) < cost_of(best_.result)) best_ = now;
    }
  }

  void alter(std::vector<action>& what, const group_set& set) {
    auto to = what[set.front()] == action::keep ? action::offload : action::keep;
    if (wanted_->recompute && random_() / 2 % 2 == 0) to = action::recompute;
    if (limits_.peer_budget > 0 && random_() / 2 % 2 == 0) to = action::offload_to_peer;
    change(map(), what, set, to);
  }

  simulator* sim_;
  const std::vector<action>* keep_all_;
  const goal* wanted_;
  run_limits limits_;
  double most_us_;
  neighbourhood near_;
  found best_;
  std::minstd_rand random_;
};

}  // namespace tidepool::plan::detail
