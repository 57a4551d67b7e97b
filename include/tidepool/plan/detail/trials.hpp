// Plans on trial: the engine runs each on the virtual device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "tidepool/options.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/seeds.hpp"
#include "tidepool/plan/forecast.hpp"
#include "tidepool/plan/planner.hpp"
#include "tidepool/rules/policy.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

// Plans as the engine runs them, the best so far: of those that take as long, to a thousandth, the
// best by `cost_us`.
class trials {
 public:
  trials(const profile& step, const options& opts, planner& plans)
      : step_(&step), opts_(opts), plans_(&plans), near_(neighbourhood_of(plans.map(), false)) {
    if (opts.plan_effort) tries_left_ = *opts.plan_effort / 10;
    next_stage();
  }

  // Each stage may take half of what is left, so that all have some, and no more than `most`.
  void next_stage(std::size_t most = constants::forecast_events) {
    kept_ = events_left_ - std::min(events_left_ / 2, most);
  }

  // True when the engine takes no longer than the planner thought.
  bool try_plan(const step_plan& candidate) {
    return tried_us(candidate) <= candidate.expected.step_us * constants::as_long;
  }

  // Megatron's rule as a user would tune it, which nobody should do better: every fraction, and
  // then without the module that does most harm, as long as that helps.
  void try_megatron(const step_plan& like) {
    next_stage();
    rule best;
    for (const bool margin : {true, false}) {
      for (const auto ahead : {std::size_t{2}, std::size_t{8}}) {
        tune(like, {margin, 1, ahead}, *step_, best);
      }
    }
    auto seen = *step_;
    for (bool better = true; better;) {
      better = false;
      const auto before = best;
      profile narrowed;
      for (std::size_t m = 0; m < step_->modules.size(); ++m) {
        auto less = without(seen, m);
        if (less.chunks == seen.chunks) continue;
        auto found = best;
        tune(like, before, less, found);
        if (!(found.step_us < best.step_us)) continue;
        best = found;
        narrowed = std::move(less);
        better = true;
      }
      if (better) seen = std::move(narrowed);
    }
  }

  // What the best so far gains by classes of groups that go another way, which the simulator names,
  // and by plans that move less.
  void refine(bool recompute) {
    if (!found()) return;
    next_stage();
    while (climb(recompute)) continue;
    next_stage(constants::moving_less_events);  // each comes with a search
    move_less(recompute && !reaches(plans_->in_core().step_us));
  }

  // Until one runs, whatever that takes.
  [[nodiscard]] bool may_try() const { return (tries_left_ > 0 && has_events()) || !found(); }

  [[nodiscard]] bool found() const { return !heard_.empty(); }
  [[nodiscard]] double fastest_us() const { return fastest_us_; }
  // Whether a plan takes hardly longer than `us`.
  [[nodiscard]] bool reaches(double us) const {
    return found() && fastest_us_ <= constants::as_long * us;
  }
  [[nodiscard]] const step_plan& best() const {
    return *std::min_element(heard_.begin(), heard_.end(), [](const auto& a, const auto& b) {
      return cost_us(a.expected) < cost_us(b.expected);
    });
  }

 private:
  [[nodiscard]] const layout& map() const { return plans_->map(); }
  [[nodiscard]] bool has_events() const { return events_left_ >= kept_ + step_->events.size(); }

  struct rule {
    bool margin = true;
    double fraction = 1;
    std::size_t ahead = 2;
    double step_us = std::numeric_limits<double>::infinity();
  };

  // Microseconds of the step as the engine runs it; infinite when it cannot.
  double tried_us(step_plan candidate) {
    auto& known_us = known_[{candidate.what, candidate.reload_ahead, candidate.reload_ahead_bytes}];
    if (known_us > 0) return known_us;
    known_us = std::numeric_limits<double>::infinity();
    tries_left_ -= std::min<std::size_t>(tries_left_, 1);
    events_left_ -= std::min(events_left_, step_->events.size());
    auto run = opts_;
    run.reload_ahead = candidate.reload_ahead;
    run.reload_ahead_bytes.reset();
    if (candidate.reload_ahead_bytes > 0) run.reload_ahead_bytes = candidate.reload_ahead_bytes;
    const auto seen = forecast(*step_, run, candidate.what);
    if (!seen.expected.runs) return known_us;
    known_us = seen.expected.step_us;
    candidate.expected = seen.expected;
    fastest_us_ = std::min(fastest_us_, seen.expected.step_us);
    heard_.push_back(std::move(candidate));
    std::erase_if(heard_, [this](const step_plan& each) {
      return each.expected.step_us > fastest_us_ * constants::as_long;
    });
    return known_us;
  }

  // Plans that move less and take as long. Those for all of the budget move least, but memory in
  // pieces and copies on their way take a few percent of it: so for less and less, until the engine
  // runs one. With fewer reloads ahead less is on its way.
  void move_less(bool recompute) {
    for (const std::size_t ahead : {2U, 1U}) {
      auto from = best();
      from.reload_ahead = ahead;
      from.reload_ahead_bytes = 0;
      const auto most = from.device_budget;
      for (int percent = 100; percent > constants::least_percent && tries_left_ > 0 && has_events();
           --percent) {
        const auto most_us = fastest_us_ * (1 + (constants::as_long - 1) / 2);
        auto next =
            plans_->moving_less(from,
                                {.device_budget = most / 100 * static_cast<std::size_t>(percent),
                                 .recompute = recompute,
                                 .peer_budget = from.peer_budget,
                                 .work = constants::work_of_a_share,
                                 .effort = opts_.plan_effort,
                                 .alike = step_->shapes_vary},
                                most_us);
        const bool helps = cost_us(next.expected) < cost_us(best().expected);
        if (!helps || next.expected.step_us > most_us) break;
        next.device_budget = most;
        if (tried_us(next) <= most_us) break;
        from.what = std::move(next.what);
      }
    }
  }

  [[nodiscard]] const step_plan& fastest() const {
    return *std::min_element(heard_.begin(), heard_.end(), [](const auto& a, const auto& b) {
      return a.expected.step_us < b.expected.step_us;
    });
  }

  [[nodiscard]] step_plan changed(step_plan from, const group_set& which, action to) const {
    auto what = map().fold(from.what);
    change(map(), what, which, to);
    from.what = map().unfold(what);
    return from;
  }

  // One class otherwise, those first that promise most; true when the engine gains by one.
  bool climb(bool recompute) {
    struct change {
      double step_us = 0;
      std::size_t which = 0;
      action to = action::keep;
    };
    const auto from = fastest();
    const auto enough_us = fastest_us_ / constants::as_long;
    const auto& all = near_.classes;
    std::vector<change> promising;
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const auto to :
           {action::keep, action::offload, action::recompute, action::offload_to_peer}) {
        if (to == action::recompute && !recompute) continue;
        if (to == action::offload_to_peer && from.peer_budget == 0) continue;
        const auto next = changed(from, all[i], to);
        if (next.what == from.what) continue;
        if (!may_judge()) break;
        const auto seen = judged(next);
        if (seen.runs && seen.step_us < enough_us) promising.push_back({seen.step_us, i, to});
      }
    }
    std::stable_sort(promising.begin(), promising.end(),
                     [](const auto& a, const auto& b) { return a.step_us < b.step_us; });
    for (const auto& [us, which, to] : promising) {
      if (!may_refine()) return false;
      if (tried_us(changed(from, all[which], to)) < enough_us) return true;
    }
    return false;
  }

  [[nodiscard]] outcome judged(const step_plan& made) {
    return plans_->judge(made.what, {made.device_budget, made.reload_ahead, made.reload_ahead_bytes,
                                     made.peer_budget});
  }

  bool may_judge() {
    judged_events_ += step_->events.size();
    return tries_left_ > 0 && judged_events_ <= constants::judged_events;
  }
  [[nodiscard]] bool may_refine() const { return tries_left_ > 0 && has_events(); }

  // The step as if a module saved nothing.
  [[nodiscard]] static profile without(const profile& of, std::size_t module) {
    auto less = of;
    for (auto& chunk : less.chunks) {
      for (auto& group : chunk.groups) {
        if (static_cast<std::size_t>(group.module) == module) group.bytes = 0;
      }
    }
    return less;
  }

  // All fractions, coarse and then finer.
  void tune(const step_plan& like, rule tried, const profile& seen, rule& best) {
    rule coarse;
    for (int fifths = 5; fifths > 0; --fifths) {
      tried.fraction = fifths / 5.0;
      try_rule(like, tried, seen, coarse);
    }
    auto fine = coarse;
    for (const double off : {-0.1, 0.1, -0.05, 0.05}) {
      tried.fraction = coarse.fraction + off;
      if (tried.fraction > 0 && tried.fraction < 1) try_rule(like, tried, seen, fine);
    }
    if (fine.step_us < best.step_us) best = fine;
  }

  // `seen` is the step with the groups that the rule may move; what has no bytes there stays, if
  // it has memory of its own.
  void try_rule(const step_plan& like, rule tried, const profile& seen, rule& best) {
    if (!has_events() || (tries_left_ == 0 && found())) return;
    auto opts = opts_;
    opts.margin = tried.margin;
    opts.fraction = tried.fraction;
    auto candidate = like;
    const auto stays = megatron_policy(seen, opts);
    for (std::size_t c = 0; c < stays.size(); ++c) {
      for (std::size_t i = 0; i < stays[c].size(); ++i) {
        const bool keeps = stays[c][i] || seen.chunks[c].groups[i].bytes == 0;
        const bool known = map().groups[map().first[c] + i].bytes > 0;
        candidate.what[c][i] = keeps && known ? action::keep : action::offload;
      }
    }
    candidate.reload_ahead = tried.ahead;
    candidate.reload_ahead_bytes = 0;
    tried.step_us = tried_us(candidate);
    if (tried.step_us < best.step_us) best = tried;
  }

  const profile* step_;
  options opts_;
  planner* plans_;
  neighbourhood near_;
  std::map<std::tuple<actions, std::size_t, std::size_t>, double> known_;  // what was tried
  std::vector<step_plan> heard_;  // that take as long as the fastest
  double fastest_us_ = std::numeric_limits<double>::infinity();
  std::size_t events_left_ = constants::forecast_events;
  std::size_t kept_ = 0;  // of them, for later stages
  std::size_t judged_events_ = 0;
  std::size_t tries_left_ = std::numeric_limits<std::size_t>::max();  // by `options::plan_effort`
};

}  // namespace tidepool::plan::detail
