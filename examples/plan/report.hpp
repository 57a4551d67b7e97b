/// Tables of `plan`.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <tidepool/module.hpp>
#include <tidepool/parse.hpp>
#include <tidepool/plan/automatic.hpp>
#include <tidepool/trace/report.hpp>
#include <vector>

#include "study.hpp"

namespace planning {

/// What all memory of a report is counted in.
struct memory_unit {
  std::string name;
  double bytes;

  [[nodiscard]] double of(std::size_t count) const { return static_cast<double>(count) / bytes; }
};

/// One in which `most` bytes have digits before the point, or nearly.
inline memory_unit unit_for(std::size_t most) {
  if (most >= std::size_t{1} << 29) return {"GiB", 0x1p30};
  return most >= std::size_t{1} << 19 ? memory_unit{"MiB", 0x1p20} : memory_unit{"KiB", 0x1p10};
}

inline void print_frontier(const study& of, const std::vector<point>& points,
                           const memory_unit& in) {
  std::printf("\n%10s %11s %11s %9s %11s %7s %10s  %s\n", ("budget " + in.name).c_str(),
              "planned ms", "engine ms", "slower %", "bound ms", "gap %",
              ("moved " + in.name).c_str(), "limited by");
  for (const auto& each : points) {
    const auto& seen = each.made.expected;
    const auto mark = std::string(each.zero_stall ? "  <- zero stall" : "") +
                      (each.chosen ? "  <- the plan below" : "");
    if (!seen.runs) {
      std::printf("%10.2f %59s%s\n", in.of(each.budget), "does not run", mark.c_str());
      continue;
    }
    std::printf("%10.2f %11.2f %11.2f %9.2f %11.2f %7.2f %10.2f  %s%s\n", in.of(each.budget),
                each.planned.step_us / 1e3, seen.step_us / 1e3, 100 * of.slowdown(seen),
                each.made.bound_us / 1e3, std::max(0.0, 100 * each.made.gap()), in.of(seen.moved),
                std::string(plan::name_of(each.made.limited_by)).c_str(), mark.c_str());
  }
}

/// How many microbatches take each action, in the order of `plan::action`, by layer and module.
inline std::map<int, std::map<std::size_t, std::array<std::size_t, 4>>> actions_by_layer(
    const plan::profile& step, const plan::actions& what) {
  std::map<int, std::map<std::size_t, std::array<std::size_t, 4>>> count;
  for (std::size_t c = 0; c < what.size(); ++c) {
    for (std::size_t g = 0; g < what[c].size(); ++g) {
      const auto& group = step.chunks[c].groups[g];
      const auto module = static_cast<std::size_t>(group.module);
      ++count[group.layer][module][static_cast<std::size_t>(what[c][g])];
    }
  }
  return count;
}

/// One line a layer; a letter for each module, with counts where microbatches differ.
inline void print_plan(const plan::profile& step, const plan::actions& what) {
  const auto count = actions_by_layer(step, what);
  std::map<std::size_t, std::size_t> width;
  for (const auto& [layer, modules] : count) {
    for (const auto& [module, counts] : modules) {
      width[module] = std::max<std::size_t>(step.modules[module].size(), 9);
    }
  }
  std::printf(
      "\nK keep, O offload, R recompute, P offload to the neighbour; a number: of how many "
      "microbatches\n%6s",
      "layer");
  for (const auto& [module, wide] : width) {
    std::printf("  %*s", static_cast<int>(wide), step.modules[module].c_str());
  }
  std::printf("\n");
  for (const auto& [layer, modules] : count) {
    std::printf("%6d", layer);
    for (const auto& [module, wide] : width) {
      std::string cell;
      const auto found = modules.find(module);
      if (found != modules.end()) {
        const auto& counts = found->second;
        const auto sum = counts[0] + counts[1] + counts[2] + counts[3];
        for (std::size_t i = 0; i < 4; ++i) {
          if (counts[i] == 0) continue;
          if (!cell.empty()) cell += ' ';
          cell += "KORP"[i];
          if (counts[i] != sum) cell += std::to_string(counts[i]);
        }
      }
      std::printf("  %*s", static_cast<int>(wide), cell.c_str());
    }
    std::printf("\n");
  }
}

inline std::string_view in_words(plan::limit what) {
  switch (what) {
    case plan::limit::nothing:
      return "Nothing limits it: everything fits, and nothing leaves.";
    case plan::limit::compute:
      return "Computing limits it: the copies hide behind it.";
    case plan::limit::link:
      return "The link limits it: at these rates no plan is faster by more than the gap.";
    case plan::limit::memory:
      return "Memory limits it: the step waits although the link stands still at times.";
  }
  return "";
}

inline void print_comparison(const study& of, const std::vector<contestant>& all,
                             std::size_t budget, const memory_unit& in) {
  std::printf("\nAt %.2f %s:\n%-45s %9s %8s %10s %9s %9s  fits\n", in.of(budget), in.name.c_str(),
              "rule", "ms", "slower %", ("needed " + in.name).c_str(), ("taken " + in.name).c_str(),
              ("moved " + in.name).c_str());
  for (const auto& each : all) {
    if (!each.seen.runs) {
      std::printf("%-45s %49s  no\n", each.name.c_str(), "does not run");
      continue;
    }
    std::printf("%-45s %9.2f %8.2f %10.2f %9.2f %9.2f  %s\n", each.name.c_str(),
                each.seen.step_us / 1e3, 100 * of.slowdown(each.seen), in.of(each.seen.peak),
                in.of(each.takes > 0 ? each.takes : each.seen.peak), in.of(each.seen.moved),
                each.fits ? "yes" : "no");
  }
  std::printf(
      "needed: at the peak, in the order of calls. taken: with what still waits for a copy; of "
      "what does not"
      " fit, in a pool\nwithout a limit.\n");
}

/// Options by which a trainer of these modules makes such a plan of its own steps.
[[nodiscard]] inline tidepool::options trainer_options(const plan::profile& step,
                                                       const plan::step_plan& made) {
  tidepool::options opts;
  opts.memory = tidepool::memory_kind::arena;
  opts.policy = tidepool::policy_kind::automatic;
  opts.device_budget = made.device_budget;
  opts.recompute_by_plan = plan::detail::count_of(made.what, plan::action::recompute) > 0;
  if (made.peer_budget > 0) {
    opts.places = {tidepool::place_kind::peer, tidepool::place_kind::host};
    opts.peer_budget = made.peer_budget;
  }
  std::vector<bool> commits(step.modules.size());
  for (const auto& chunk : step.chunks) {
    for (const auto& group : chunk.groups) commits[static_cast<std::size_t>(group.module)] = true;
  }
  for (std::size_t i = 0; i < commits.size(); ++i) {
    if (!commits[i]) continue;
    const auto& name = step.modules[i];
    opts.offload_modules.push_back(name);
    if (std::ranges::find(tidepool::standard_modules, name) == tidepool::standard_modules.end()) {
      opts.own_modules.push_back(name);
    }
  }
  return opts;
}

/// The page of a plan: `measured` is the engine on the virtual device.
inline tidepool::trace::report to_report(const std::vector<std::string>& notes,
                                         const plan::profile& step, const point& chosen,
                                         const plan::forecast_result& seen) {
  using unit = tidepool::trace::planned_figure::unit;
  const auto bytes = [](std::size_t number) { return static_cast<double>(number); };
  const auto& planner = chosen.planned;
  const auto& engine = seen.expected;
  tidepool::trace::report page{
      seen.picture, {}, {}, tidepool::to_text(trainer_options(step, chosen.made)), ""};
  page.where = "a plan; measured: by the engine on the virtual device";
  for (const auto& note : notes) page.where += "; " + note;
  page.planned = {{"step", planner.step_us, engine.step_us},
                  {"stalls", planner.stall_us, engine.stall_us},
                  {"peak needed", bytes(planner.peak), bytes(engine.peak), unit::bytes},
                  {"offloaded a step", bytes(planner.moved), bytes(engine.moved), unit::bytes}};
  return page;
}

}  // namespace planning
