/// From a recorded step to a plan that the engine can follow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "tidepool/options.hpp"
#include "tidepool/plan/forecast.hpp"
#include "tidepool/plan/planner.hpp"
#include "tidepool/plan/policy.hpp"

namespace tidepool::plan {

namespace detail {

[[nodiscard]] inline bool may_recompute(const profile& step) {
  return std::any_of(step.chunks.begin(), step.chunks.end(), [](const auto& chunk) {
    return std::any_of(chunk.groups.begin(), chunk.groups.end(),
                       [](const auto& group) { return group.recompute_us > 0; });
  });
}

[[nodiscard]] inline std::size_t count_of(const actions& what, action which) {
  std::size_t count = 0;
  for (const auto& chunk : what) {
    count += static_cast<std::size_t>(std::count(chunk.begin(), chunk.end(), which));
  }
  return count;
}

// Plans as the engine runs them, the best so far.
class audition {
 public:
  audition(const profile& step, const options& opts) : step_(&step), opts_(opts) {}

  // True when the engine takes no longer than the planner thought.
  bool hear(const step_plan& candidate) {
    return heard(candidate) <= candidate.expected.step_us * 1.005;
  }

  // Megatron's rule as a user would tune it, which nobody should do better: every fraction, and
  // then without the module that does most harm, as long as that helps.
  void hear_megatron(const step_plan& like) {
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

  [[nodiscard]] bool found() const { return found_; }
  [[nodiscard]] const step_plan& best() const { return best_; }

 private:
  struct rule {
    bool margin = true;
    double fraction = 1;
    std::size_t ahead = 2;
    double step_us = std::numeric_limits<double>::infinity();
  };

  // Microseconds of the step as the engine runs it; infinite when it cannot.
  double heard(step_plan candidate) {
    auto run = opts_;
    run.reload_ahead = candidate.reload_ahead;
    run.reload_ahead_bytes.reset();
    if (candidate.reload_ahead_bytes > 0) run.reload_ahead_bytes = candidate.reload_ahead_bytes;
    const auto seen = forecast(*step_, run, candidate.what);
    if (!seen.expected.runs) return std::numeric_limits<double>::infinity();
    candidate.expected = seen.expected;
    if (!found_ || candidate.expected.step_us < best_.expected.step_us) best_ = candidate;
    found_ = true;
    return seen.expected.step_us;
  }

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
      hear_rule(like, tried, seen, coarse);
    }
    auto fine = coarse;
    for (const double off : {-0.1, 0.1, -0.05, 0.05}) {
      tried.fraction = coarse.fraction + off;
      if (tried.fraction > 0 && tried.fraction < 1) hear_rule(like, tried, seen, fine);
    }
    if (fine.step_us < best.step_us) best = fine;
  }

  // `seen` is the step with the groups that the rule may move; what has no bytes there stays.
  void hear_rule(const step_plan& like, rule tried, const profile& seen, rule& best) {
    if (events_left_ < step_->events.size()) return;
    events_left_ -= step_->events.size();
    auto opts = opts_;
    opts.margin = tried.margin;
    opts.fraction = tried.fraction;
    auto candidate = like;
    const auto stays = megatron_policy(seen, opts);
    for (std::size_t c = 0; c < stays.size(); ++c) {
      for (std::size_t i = 0; i < stays[c].size(); ++i) {
        const bool keeps = stays[c][i] || seen.chunks[c].groups[i].bytes == 0;
        candidate.what[c][i] = keeps ? action::keep : action::offload;
      }
    }
    candidate.reload_ahead = tried.ahead;
    candidate.reload_ahead_bytes = 0;
    tried.step_us = heard(candidate);
    if (tried.step_us < best.step_us) best = tried;
  }

  const profile* step_;
  options opts_;
  step_plan best_;
  bool found_ = false;
  std::size_t events_left_ = 1'000'000;  // of steps to be forecast, for a second or two
};

}  // namespace detail

/// A plan for the device budget of `opts` (none: whatever keeping all takes) that the engine has
/// been seen to run, on the virtual device. Where plans that only keep and offload cost time, those
/// that recompute are tried as well, if `recompute_by_plan` and the profile's times allow any.
/// Where shapes vary from step to step, as with routed experts, a tenth of the budget and twice the
/// largest tensor are left free. The planner does not know that memory may be in pieces; where the
/// engine then refuses, or waits, plans for less of the budget are tried, and those of Megatron's
/// rule.
///
/// `expected` is the forecast of the engine, not the planner's. Blocks the host for the time of
/// some simulated steps, each about a microsecond and a half a call.
[[nodiscard]] inline step_plan automatic(const profile& step, const options& opts) {
  planner plans(step);
  auto most = opts.device_budget.value_or(plans.in_core().peak);
  if (step.shapes_vary && opts.device_budget) {
    std::size_t largest = 0;
    for (const auto& each : step.storages) largest = std::max(largest, each.bytes);
    most -= std::min(most / 2, most / 10 + 2 * largest);
  }
  auto whole = plans.best({.device_budget = most});
  detail::audition stage(step, opts);
  const auto hear_shares = [&](bool recompute) {
    for (const double share : {1.0, 0.97, 0.94, 0.9, 0.85, 0.8}) {
      const auto budget = static_cast<std::size_t>(static_cast<double>(most) * share);
      auto next = share == 1.0 ? whole
                               : plans.best({.device_budget = std::max<std::size_t>(budget, 1),
                                             .recompute = recompute});
      if (!next.expected.runs) continue;
      next.device_budget = most;
      next.bound_us = whole.bound_us;
      if (stage.hear(next)) break;
    }
  };
  const auto at = [&](double us) {
    constexpr double close = 1.002;
    return stage.found() && stage.best().expected.step_us <= close * us;
  };
  hear_shares(false);
  if (!at(whole.bound_us)) stage.hear_megatron(whole);
  const bool recompute =
      opts.recompute_by_plan && detail::may_recompute(step) && !at(plans.in_core().step_us);
  if (recompute) {
    whole = plans.best({.device_budget = most, .recompute = true});
    hear_shares(true);
  }
  if (stage.found()) {
    auto best = stage.best();
    best.bound_us = whole.bound_us;
    best.limited_by = plans.limit_of(best);
    return best;
  }
  auto none_found = whole;
  none_found.expected.runs = false;
  return none_found;
}

/// Most bytes that stay by a plan at once, and are committed and not restored.
[[nodiscard]] inline std::size_t kept_at_once(const profile& step, const step_plan& made) {
  std::size_t now = 0;
  std::size_t most = 0;
  for (const auto& each : step.events) {
    if (each.kind != event_kind::commit && each.kind != event_kind::restore) continue;
    if (made.what[each.chunk][each.index] != action::keep) continue;
    const auto bytes = step.chunks[each.chunk].groups[each.index].bytes;
    now += each.kind == event_kind::commit ? bytes : 0;
    now -= each.kind == event_kind::restore ? bytes : 0;
    most = std::max(most, now);
  }
  return most;
}

/// Most bytes at once that the trainer works with: from their allocation to their commit, and from
/// their restore to their release.
[[nodiscard]] inline std::size_t handed_out_at_once(const profile& step) {
  std::vector<std::vector<std::vector<std::uint32_t>>> saved(step.chunks.size());
  for (std::size_t c = 0; c < saved.size(); ++c) saved[c].resize(step.chunks[c].groups.size());
  for (std::uint32_t i = 0; i < step.storages.size(); ++i) {
    const auto& each = step.storages[i];
    if (each.chunk != none) saved[each.chunk][each.group].push_back(i);
  }
  std::size_t now = 0;
  std::size_t most = 0;
  // What a chunk saved that was given up may be released without having been restored.
  std::vector<bool> out(step.storages.size(), false);
  const auto hand = [&](std::uint32_t storage, bool to_trainer) {
    if (out[storage] == to_trainer) return;
    out[storage] = to_trainer;
    const auto bytes = step.storages[storage].bytes;
    now = to_trainer ? now + bytes : now - bytes;
  };
  for (const auto& each : step.events) {
    if (each.kind == event_kind::allocate) hand(each.index, true);
    if (each.kind == event_kind::release) hand(each.index, false);
    if (each.kind == event_kind::commit || each.kind == event_kind::restore) {
      for (const auto storage : saved[each.chunk][each.index]) {
        hand(storage, each.kind == event_kind::restore);
      }
    }
    most = std::max(most, now);
  }
  return most;
}

/// A line for a log.
[[nodiscard]] inline std::string in_words(const step_plan& made) {
  std::size_t all = 0;
  for (const auto& chunk : made.what) all += chunk.size();
  const auto again = detail::count_of(made.what, action::recompute);
  char recomputed[64] = "";
  if (again > 0) std::snprintf(recomputed, sizeof recomputed, ", %zu are recomputed", again);
  char text[256];
  std::snprintf(text, sizeof text,
                "plan: %zu of %zu groups leave%s; %.3f ms a step expected, at most %.2f %% above"
                " what any plan takes; limited by %s",
                detail::count_of(made.what, action::offload), all, recomputed,
                made.expected.step_us / 1e3, std::max(0.0, 100 * made.gap()),
                std::string(name_of(made.limited_by)).c_str());
  return text;
}

}  // namespace tidepool::plan
