// The search for a plan, with the simulator as judge.
#pragma once

#include <algorithm>
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

namespace tidepool::inline v0_3_0::plan::detail {

struct candidate {
  std::vector<action> what;
  run_limits limits;
  outcome result{.runs = false};
};

[[nodiscard]] inline bool better(const outcome& a, const outcome& b) {
  return a.runs != b.runs ? a.runs : a.runs ? cost_us(a) < cost_us(b) : a.peak < b.peak;
}

// Begins with Belady's rule, and goes on at random from the best plan that it gives: threshold
// accepting (Dueck and Scheuer, J. Comput. Phys. 90, 1990). The numbers are the same on every
// platform.
class walk {
 public:
  walk(simulator& sim, const std::vector<action>& keep_all, const goal& wanted)
      : sim_(&sim),
        keep_all_(keep_all),
        wanted_(wanted),
        near_(neighbourhood_of(sim.map())),
        ahead_(wanted.reload_ahead),
        copy_us_(static_cast<double>(sim.map().largest) / (sim.rates().out * 1e3)) {
    if (ahead_.empty()) {
      ahead_.assign(std::begin(constants::reloads_ahead), std::end(constants::reloads_ahead));
    }
    tie_sharers();
  }

  // The best that a rule finds in `budget`: for each group that must leave, the one that comes back
  // last (Belady), with more and more of the budget set aside for copies on their way; with parts
  // of what can be recomputed recomputed, the cheapest first; or with all that fits sent to a
  // neighbour.
  [[nodiscard]] candidate start(std::size_t budget, bool alike) {
    begun_ = sim_->runs();
    candidate best;
    const auto leaving = everything(action::offload);
    consider(leaving, budget, alike, best);
    by_rule(leaving, budget, alike, best);
    if (wanted_.peer_budget > 0) by_rule(everything(action::offload_to_peer), budget, alike, best);
    if (!wanted_.recompute) return best;
    const auto cheap = cheapest_again(map(), near_.classes);
    for (std::size_t part = 1; part <= parts && !cheap.empty(); ++part) {
      auto again = leaving;
      for (std::size_t i = 0; i < cheap.size() * part / parts; ++i) {
        for (const auto group : cheap[i]) again[group] = action::recompute;
      }
      by_rule(again, budget, alike, best);
    }
    return best;
  }

  // The best plan seen in as many simulated events. At first a step may take longer than before, by
  // up to `heat` copies of the largest group. Where `alike`, groups of one layer and module go the
  // same way in all microbatches.
  [[nodiscard]] candidate go(candidate now, std::size_t events, double heat, bool alike) {
    if (near_.classes.empty()) return now;
    const auto tries = std::max<std::size_t>(1, events / (map().events.size() + 1));
    auto best = now;
    for (auto left = tries; left > 0 && !tired(); --left) {
      auto next = now;
      change_at_random(next, alike);
      run(next);
      if (!next.result.runs) continue;
      const auto part = static_cast<double>(left) / static_cast<double>(tries);
      const auto allowed = heat * copy_us_ * part * part * chance();
      if (now.result.runs && cost_us(next.result) > cost_us(now.result) + allowed) continue;
      now = std::move(next);
      if (better(now.result, best.result)) best = now;
    }
    return best;
  }

  void run(candidate& which) { which.result = sim_->run(which.what, which.limits); }

  // Between 0 and 1.
  [[nodiscard]] double chance() {
    return static_cast<double>(random_()) / static_cast<double>(random_.max());
  }
  [[nodiscard]] std::size_t roll(std::size_t sides) { return random_() / 4 % sides; }

  void change_at_random(candidate& which, bool alike) {
    if (near_.classes.empty()) return;  // nothing can go another way
    if (roll(16) == 0) {
      which.limits.reload_ahead = ahead_[roll(ahead_.size())];
      which.limits.reload_ahead_bytes = roll(2) == 0 ? 0 : (1 + roll(6)) * map().largest;
      return;
    }
    const auto& set = pick(alike);
    const bool kept = which.what[set[roll(set.size())]] == action::keep;
    alter(which.what, set, kept);
    // As often as not another set goes the other way, so that memory is exchanged.
    if (roll(2) == 0) alter(which.what, pick(alike), !kept);
  }

 private:
  static constexpr std::size_t parts = 8;

  [[nodiscard]] const layout& map() const { return sim_->map(); }
  // True where as many steps as are allowed were simulated since the latest start.
  [[nodiscard]] bool tired() const {
    return wanted_.effort && sim_->runs() - begun_ >= *wanted_.effort;
  }
  [[nodiscard]] std::vector<action> everything(action to) const {
    return std::vector<action>(keep_all_.size(), to);
  }

  void consider(std::vector<action> what, std::size_t budget, bool alike, candidate& best) {
    if (alike) make_alike(map(), what, near_.classes);
    for (std::uint32_t g = 0; g < what.size(); ++g) {
      if (what[g] != action::keep) tie(what, g);
    }
    for (const auto ahead : {ahead_.front(), ahead_[ahead_.size() / 2], ahead_.back()}) {
      if (tired() && !best.what.empty()) return;
      candidate next{what, {budget, ahead, 0, wanted_.peer_budget}, {}};
      run(next);
      if (best.what.empty() || better(next.result, best.result)) best = std::move(next);
    }
  }
  void by_rule(const std::vector<action>& leaving, std::size_t budget, bool alike,
               candidate& best) {
    for (const std::size_t spare : {0U, 1U, 2U, 4U}) {
      const auto less = budget - std::min(budget, spare * map().largest);
      for (const double settled : {0.0, 4.0}) {
        consider(come_back_last(map(), keep_all_, leaving, less, settled * copy_us_), budget, alike,
                 best);
      }
    }
  }

  [[nodiscard]] const group_set& pick(bool alike) {
    const auto dice = roll(8);
    const auto& sets = alike       ? (dice < 2 ? near_.ranges : near_.classes)
                       : dice < 4  ? near_.singles
                       : dice < 6  ? near_.classes
                       : dice == 6 ? near_.parts
                                   : near_.ranges;
    const auto& some = !sets.empty() ? sets : alike ? near_.classes : near_.singles;
    return some[roll(some.size())];
  }
  void alter(std::vector<action>& what, const group_set& set, bool leaves) {
    auto to = leaves ? action::offload : action::keep;
    if (leaves && wanted_.peer_budget > 0 && roll(2) == 0) to = action::offload_to_peer;
    if (wanted_.recompute && roll(3) == 0) to = action::recompute;
    change(map(), what, set, to);
    for (const auto group : set) tie(what, group);
  }

  // Groups that save one storage go the same way, because it stays while any of them keeps it.
  void tie_sharers() {
    tied_.resize(keep_all_.size());
    for (std::uint32_t g = 0; g < tied_.size(); ++g) {
      if (map().groups[g].bytes == 0) continue;
      for (const auto each : map().members[g]) {
        const auto owner = map().storages[each].group;
        if (owner == g || owner == none) continue;
        tied_[g].push_back(owner);
        tied_[owner].push_back(g);
      }
    }
  }
  void tie(std::vector<action>& what, std::uint32_t group) const {
    for (const auto other : tied_[group]) {
      if (what[other] == what[group]) continue;
      what[other] = what[group];
      tie(what, other);
    }
  }

  simulator* sim_;
  std::vector<action> keep_all_;
  goal wanted_;
  neighbourhood near_;
  std::vector<std::size_t> ahead_;
  double copy_us_;         // of the largest group
  std::size_t begun_ = 0;  // runs of the simulator before the latest start
  std::vector<std::vector<std::uint32_t>> tied_;
  std::minstd_rand random_;
};

}  // namespace tidepool::plan::detail
