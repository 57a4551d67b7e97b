/// What each budget, and each rule, makes of a step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <tidepool/core/text.hpp>
#include <tidepool/decide/policy.hpp>
#include <tidepool/options.hpp>
#include <tidepool/plan/automatic.hpp>
#include <tidepool/plan/forecast.hpp>
#include <tidepool/plan/planner.hpp>
#include <tidepool/trace/detail/print.hpp>
#include <utility>
#include <vector>

namespace planning {

namespace plan = tidepool::plan;

/// A plan for one budget, as the planner and as the engine see it.
struct point {
  std::size_t budget = 0;
  plan::outcome planned;
  plan::step_plan made;  ///< `expected`: by the engine
  bool zero_stall = false;
  bool chosen = false;
};

/// One rule at a budget.
struct contestant {
  std::string name;
  plan::outcome seen;
  bool fits = false;
  std::size_t takes = 0;  ///< device bytes that it has for itself; 0: its peak
};

using module_names = std::vector<std::string_view>;

class study {
 public:
  /// `begins` is told before each part of the work; `peer_budget` bytes are a neighbour's.
  explicit study(const plan::profile& step, std::function<void(const std::string&)> begins = {},
                 std::size_t peer_budget = 0)
      : step_(&step), begins_(std::move(begins)), planner_(step), peer_budget_(peer_budget) {}

  [[nodiscard]] const plan::outcome& in_core() const { return planner_.in_core(); }
  [[nodiscard]] double slowdown(const plan::outcome& seen) const {
    const auto more = seen.step_us / in_core().step_us - 1;
    return more < 0 && more > -1e-6 ? 0 : more;
  }

  [[nodiscard]] point at(std::size_t budget) {
    tell("a plan for " + tidepool::trace::detail::bytes_text(budget));
    point result;
    result.budget = budget;
    result.planned = planner_.best({.device_budget = budget, .peer_budget = peer_budget_}).expected;
    auto opts = with_places(budget);
    result.made = plan::automatic(*step_, opts);
    return result;
  }

  /// The least budget at which a step takes at most `1 + slowdown` times as long by the engine.
  [[nodiscard]] point least_budget(double slowdown_allowed) {
    tell("the least memory for " + tidepool::trace::detail::trimmed(100 * slowdown_allowed, 2) +
         " % more time");
    auto budget =
        planner_.least_memory(slowdown_allowed, {.peer_budget = peer_budget_}).device_budget;
    for (;;) {
      auto found = at(budget);
      if (budget >= in_core().peak) return found;
      if (found.made.expected.runs && slowdown(found.made.expected) <= slowdown_allowed + 1e-9) {
        return found;
      }
      budget = std::min(in_core().peak, budget + std::max<std::size_t>(budget / 50, 1));
    }
  }

  /// The least budget that some plan runs in, to 1 % of what keeping all takes.
  [[nodiscard]] std::size_t least_that_runs() {
    std::size_t least = 0;
    auto most = in_core().peak;
    while (most - least > in_core().peak / 100 + 1) {
      const auto middle = least + (most - least) / 2;
      (at(middle).made.expected.runs ? most : least) = middle;
    }
    return most;
  }

  /// From everything kept down to the least that runs, with the points that were asked for. A plan
  /// for less memory is one for more as well, so that no point is slower than those below it. The
  /// least budget that costs `no_slowdown` at most is marked, which may be below `zero`: where the
  /// planner finds a stall, the engine may find none.
  [[nodiscard]] std::vector<point> frontier(const point& zero, const point& chosen,
                                            double no_slowdown) {
    constexpr std::size_t count = 8;
    std::vector<point> all{zero};
    if (chosen.budget != zero.budget) all.push_back(chosen);
    for (auto& each : all) each.chosen = each.budget == chosen.budget;
    const auto least = least_that_runs();
    const auto most = in_core().peak;
    for (std::size_t i = 0; i < count; ++i) {
      const auto budget = most - (most - least) / (count - 1) * i;
      const bool there = std::any_of(all.begin(), all.end(), [&](const point& each) {
        return each.budget < budget + most / 100 && budget < each.budget + most / 100;
      });
      if (!there) all.push_back(at(i + 1 < count ? budget : least));
    }
    std::sort(all.begin(), all.end(),
              [](const point& a, const point& b) { return a.budget > b.budget; });
    for (auto i = all.size() - 1; i-- > 0;) {
      const auto& below = all[i + 1].made;
      auto& made = all[i].made;
      if (!below.expected.runs ||
          (made.expected.runs && made.expected.step_us <= below.expected.step_us * (1 + 1e-6))) {
        continue;
      }
      const auto bound = made.bound_us;
      made = below;
      made.bound_us = bound;
    }
    const auto free = std::find_if(all.rbegin(), all.rend(), [&](const point& each) {
      return each.made.expected.runs && slowdown(each.made.expected) <= no_slowdown;
    });
    if (free != all.rend()) free->zero_stall = true;
    return all;
  }

  /// The rules of others and ours at one budget.
  [[nodiscard]] std::vector<contestant> compare(const point& chosen, const module_names& own) {
    const auto budget = chosen.budget;
    std::vector<contestant> all{{"keep all", in_core(), in_core().peak <= budget}};
    all.push_back(megatron(budget));
    const module_names mlp{"expert_fc1", "moe_act"};
    const module_names attention{"core_attn", "attn_proj"};
    all.push_back(by_rule("offload the whole MLP", residency_of(mlp, 1), budget));
    for (const auto name : mlp) {
      all.push_back(by_rule("offload " + std::string(name), residency_of({name}, 1), budget));
    }
    all.push_back(by_rule("offload core_attn, attn_proj", residency_of(attention, 1), budget));
    if (!own.empty()) {
      all.push_back(by_rule("offload " + tidepool::detail::text::join(own, ", "),
                            residency_of(own, 1), budget));
    }
    const bool any = can_recompute();
    if (any) {
      all.push_back(recomputing("recompute moe_act", {"moe_act"}, budget));
      all.push_back(recomputing("recompute the MLP", mlp, budget));
      all.push_back(recomputing("recompute all that can be", {}, budget));
    }
    all.push_back(
        {"auto", chosen.made.expected, chosen.made.expected.runs, chosen.made.device_budget});
    if (any) {
      const auto best = with_recompute(budget);
      all.push_back({"auto, may recompute", best.expected, best.expected.runs, budget});
    }
    return all;
  }

  [[nodiscard]] bool can_recompute() const {
    return std::any_of(step_->chunks.begin(), step_->chunks.end(), [](const auto& each) {
      return std::any_of(each.groups.begin(), each.groups.end(),
                         [](const auto& group) { return group.recompute_us > 0; });
    });
  }

  /// The same budgets where plans may recompute. No point is slower than one for less memory, or
  /// than the one without.
  [[nodiscard]] std::vector<point> recomputing(const std::vector<point>& without) const {
    std::vector<point> all;
    for (const auto& each : without) {
      auto& next = all.emplace_back();
      next.budget = each.budget;
      next.made = with_recompute(each.budget);
      if (faster(each.made, next.made)) next.made = each.made;
    }
    for (auto i = all.size(); i-- > 1;) {
      if (faster(all[i].made, all[i - 1].made)) all[i - 1].made = all[i].made;
    }
    return all;
  }

  [[nodiscard]] plan::step_plan with_recompute(std::size_t budget) const {
    tell("with recompute, for " + tidepool::trace::detail::bytes_text(budget));
    auto opts = with_places(budget);
    opts.recompute_by_plan = true;
    return plan::automatic(*step_, opts);
  }

 private:
  void tell(const std::string& part) const {
    if (begins_) begins_(part);
  }
  [[nodiscard]] static bool faster(const plan::step_plan& a, const plan::step_plan& b) {
    return a.expected.runs && (!b.expected.runs || a.expected.step_us < b.expected.step_us);
  }

  [[nodiscard]] static tidepool::options arena(std::size_t budget) {
    tidepool::options opts;
    opts.memory = tidepool::memory_kind::arena;
    opts.device_budget = budget;
    opts.recompute_by_plan = false;
    return opts;
  }

  [[nodiscard]] bool among(const plan::group_profile& group, const module_names& names) const {
    const std::string_view name = step_->modules[static_cast<std::size_t>(group.module)];
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  }

  // Megatron's rules where only groups of `names` are eligible; empty: all.
  [[nodiscard]] plan::residency residency_of(const module_names& names, double fraction) const {
    plan::profile eligible;
    eligible.chunks = step_->chunks;
    eligible.passes = step_->passes;
    for (auto& chunk : eligible.chunks) {
      for (auto& group : chunk.groups) {
        if (!among(group, names)) group.bytes = 0;
      }
    }
    tidepool::options opts;
    opts.fraction = fraction;
    auto stays = plan::megatron_policy(eligible, opts);
    for (std::size_t c = 0; c < stays.size(); ++c) {
      for (std::size_t g = 0; g < stays[c].size(); ++g) {
        if (eligible.chunks[c].groups[g].bytes == 0) stays[c][g] = true;
      }
    }
    return stays;
  }

  // In an arena of the budget; where that refuses, in a pool without a limit.
  [[nodiscard]] contestant by_rule(std::string name, const plan::residency& stays,
                                   std::size_t budget) const {
    return by_actions(std::move(name), plan::actions_of(stays), budget);
  }
  [[nodiscard]] contestant by_actions(std::string name, const plan::actions& what,
                                      std::size_t budget) const {
    auto seen = plan::forecast(*step_, arena(budget), what, false, false);
    const bool fits = seen.expected.runs;
    if (!fits) seen = plan::forecast(*step_, tidepool::options{}, what);
    return {std::move(name), seen.expected, fits, seen.reserved};
  }

  [[nodiscard]] contestant megatron(std::size_t budget) const {
    contestant best;
    const auto try_all = [&](const module_names& names, const char* called) {
      tell(std::string("Megatron's rule, ") + called);
      for (int i = 1; i <= 20; ++i) {
        const double fraction = i / 20.0;
        char text[96];
        std::snprintf(text, sizeof text, "Megatron's rule: %s, fraction %.2f", called, fraction);
        auto next = by_rule(text, residency_of(names, fraction), budget);
        const bool better = next.fits != best.fits ? next.fits
                            : next.fits            ? next.seen.step_us < best.seen.step_us
                                                   : next.seen.peak < best.seen.peak;
        if (best.name.empty() || better) best = std::move(next);
      }
    };
    try_all({}, "all modules");
    try_all({"expert_fc1", "moe_act"}, "MLP");
    return best;
  }

  [[nodiscard]] contestant recomputing(std::string name, const module_names& names,
                                       std::size_t budget) const {
    plan::actions what;
    for (const auto& chunk : step_->chunks) {
      auto& row = what.emplace_back();
      for (const auto& group : chunk.groups) {
        const bool again = group.recompute_us > 0 && among(group, names);
        row.push_back(again ? plan::action::recompute : plan::action::keep);
      }
    }
    return by_actions(std::move(name), what, budget);
  }

  [[nodiscard]] tidepool::options with_places(std::size_t budget) const {
    auto opts = arena(budget);
    if (peer_budget_ == 0) return opts;
    opts.places = {tidepool::place_kind::peer, tidepool::place_kind::host};
    opts.peer_budget = peer_budget_;
    return opts;
  }

  const plan::profile* step_;
  std::function<void(const std::string&)> begins_;
  plan::planner planner_;
  std::size_t peer_budget_;
};

}  // namespace planning
