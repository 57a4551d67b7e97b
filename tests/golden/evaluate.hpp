/// What is predicted of a case now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <tidepool/decide/policy.hpp>
#include <tidepool/error.hpp>
#include <tidepool/options.hpp>
#include <tidepool/parse.hpp>
#include <tidepool/plan/follow.hpp>
#include <tidepool/plan/forecast.hpp>
#include <tidepool/plan/simulator.hpp>

#include "cases.hpp"
#include "trainer.hpp"

namespace golden {

/// As `K3 O2`: three groups stay, then two leave; chunks are set apart by a slash.
[[nodiscard]] inline std::string in_short(const plan::actions& what) {
  std::string text;
  for (const auto& chunk : what) {
    if (!text.empty()) text += " / ";
    for (std::size_t g = 0, end = 0; g < chunk.size(); g = end) {
      while (end < chunk.size() && chunk[end] == chunk[g]) ++end;
      text += g > 0 ? " " : "";
      text += "KORP"[static_cast<std::size_t>(chunk[g])];
      text += std::to_string(end - g);
    }
  }
  return text;
}

[[nodiscard]] inline json to_json(const plan::outcome& seen) {
  if (!seen.runs) return {{"runs", false}};
  return {{"runs", true},
          {"step_us", seen.step_us},
          {"stall_us", seen.stall_us},
          {"extra_us", seen.extra_us},
          {"peak", seen.peak},
          {"moved", seen.moved}};
}

[[nodiscard]] inline json to_json(const plan::forecast_result& seen) {
  auto row = to_json(seen.expected);
  if (!seen.expected.runs) return row;
  row["reserved"] = seen.reserved;
  row["host"] = seen.host;
  return row;
}

[[nodiscard]] inline json simulated(const plan::profile& step, const plan::actions& what,
                                    const plan::run_limits& limits) {
  plan::simulator sim(step);
  return to_json(sim.run(sim.map().fold(what), limits));
}

[[nodiscard]] inline json results(const plan::profile& step, const plan::actions& what,
                                  const plan::forecast_result& engine,
                                  const plan::run_limits& limits) {
  return {{"actions", in_short(what)},
          {"engine", to_json(engine)},
          {"simulator", simulated(step, what, limits)}};
}

[[nodiscard]] inline plan::run_limits limits_of(const tidepool::options& opts) {
  return {opts.device_budget.value_or(0), opts.reload_ahead, opts.reload_ahead_bytes.value_or(0)};
}

/// A fifth stays, a fifth is computed again where it can be, the rest leaves.
[[nodiscard]] inline plan::actions drawn(const plan::profile& step, std::uint64_t number) {
  std::mt19937_64 random(number);
  plan::actions what;
  for (const auto& chunk : step.chunks) {
    auto& row = what.emplace_back();
    for (const auto& group : chunk.groups) {
      const auto roll = random() % 5;
      const bool again = roll == 1 && group.recompute_us > 0;
      row.push_back(roll == 0 ? plan::action::keep
                    : again   ? plan::action::recompute
                              : plan::action::offload);
    }
  }
  return what;
}

/// What the public calls do, step by step.
[[nodiscard]] inline json lived(const recordings& from, const golden_case& about,
                                const plan::profile& step) try {
  auto opts = tidepool::parse_options(about.options);
  const bool first = about.by == live_first;
  if (first) opts.policy = tidepool::policy_kind::automatic;
  trainer run(step, opts);
  if (about.by == live_plan) run.off().follow(from.plan_of(about.profile), step);
  json row;
  auto& steps = row["steps_us"] = json::array();
  for (int i = 0; i < (first ? 1 : 4); ++i) steps.push_back(run.run(!first));
  const auto seen = run.off().counters();
  std::size_t moved = 0;
  std::size_t cap_joins = 0;
  for (const auto& each : seen.modules) {
    moved += each.bytes_offloaded;
    cap_joins += each.cap_joins;
  }
  row["moved"] = moved;
  row["cap_joins"] = cap_joins;
  row["arena_waits"] = seen.arena_waits;
  row["evictions"] = seen.evictions;
  row["peak"] = seen.live_peak;
  row["reserved"] = seen.device_reserved;
  row["host"] = seen.host_peak;
  return {{"live", row}};
} catch (const tidepool::out_of_budget&) {
  return {{"live", {{"runs", false}}}};
}

/// What both evaluators predicts: the simulator, and the engine on the virtual device.
[[nodiscard]] inline json evaluate(recordings& from, const golden_case& about) {
  const auto& recorded = from.profile(about.profile);
  if (about.is_live()) return lived(from, about, recorded);
  const auto opts = tidepool::parse_options(about.options);
  if (about.by.starts_with(by_draw)) {
    const auto what = drawn(recorded, about.draw);
    const bool placed = about.by == by_draw;
    auto row = results(recorded, what, plan::forecast(recorded, opts, what, false, placed),
                       limits_of(opts));
    row.erase("actions");
    return row;
  }
  if (about.by == by_rule) {
    const auto stays = plan::megatron_policy(recorded, opts);
    return results(recorded, plan::actions_of(stays), plan::forecast(recorded, opts, stays),
                   limits_of(opts));
  }
  const auto made = from.plan_of(about.profile);
  const auto step = plan::fitted(made, recorded, recorded.modules,
                                 std::numeric_limits<std::uint64_t>::max(), std::nullopt);
  if (about.options.empty()) {
    return results(step, made.what, plan::forecast(step, made),
                   {made.device_budget, made.reload_ahead, made.reload_ahead_bytes});
  }
  const bool placed = about.by == by_plan;
  return results(step, made.what, plan::forecast(step, opts, made.what, false, placed),
                 limits_of(opts));
}

}  // namespace golden
