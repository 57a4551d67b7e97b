/// Golden forecasts: a recorded step, how it is run, and what was foretold of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tidepool/options.hpp>
#include <tidepool/parse.hpp>
#include <tidepool/plan/follow.hpp>
#include <tidepool/plan/forecast.hpp>
#include <tidepool/plan/json.hpp>
#include <tidepool/plan/policy.hpp>
#include <tidepool/plan/simulator.hpp>
#include <utility>
#include <vector>

namespace golden {

namespace plan = tidepool::plan;
using json = nlohmann::ordered_json;

/// Who decides what leaves, and whether memory has places. Of a plan the saved file decides; with
/// empty options it is forecast in an arena of its own budget.
inline constexpr std::string_view by_rule = "rule";
inline constexpr std::string_view by_plan = "plan";
inline constexpr std::string_view by_plan_unplaced = "plan without places";

struct golden_case {
  std::string profile;  ///< file name without its ending
  std::string by;
  std::string options;  ///< as on a command line
  json results;
};

/// The profiles and plans of a folder, each read once.
class recordings {
 public:
  explicit recordings(std::filesystem::path folder) : folder_(std::move(folder)) {}

  [[nodiscard]] const plan::profile& profile(const std::string& name) {
    const auto found = profiles_.find(name);
    if (found != profiles_.end()) return found->second;
    return profiles_.emplace(name, plan::load_profile(profile_file(name))).first->second;
  }
  [[nodiscard]] plan::step_plan plan_of(const std::string& name) const {
    return plan::load_plan(plan_file(name));
  }
  [[nodiscard]] std::string profile_file(const std::string& name) const {
    return (folder_ / (name + ".profile.json")).string();
  }
  [[nodiscard]] std::string plan_file(const std::string& name) const {
    return (folder_ / (name + ".plan.json")).string();
  }
  [[nodiscard]] std::string golden_file() const { return (folder_ / "golden.json").string(); }

  /// In the order of their names.
  [[nodiscard]] std::vector<std::string> names() const {
    constexpr std::string_view ending = ".profile.json";
    std::vector<std::string> found;
    for (const auto& each : std::filesystem::directory_iterator(folder_)) {
      const auto name = each.path().filename().string();
      if (name.ends_with(ending)) found.push_back(name.substr(0, name.size() - ending.size()));
    }
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  std::filesystem::path folder_;
  std::map<std::string, plan::profile> profiles_;
};

/// As `K3 O2`: three groups stay, then two leave; chunks are set apart by a slash.
[[nodiscard]] inline std::string in_short(const plan::actions& what) {
  std::string text;
  for (const auto& chunk : what) {
    if (!text.empty()) text += " / ";
    for (std::size_t g = 0, end = 0; g < chunk.size(); g = end) {
      while (end < chunk.size() && chunk[end] == chunk[g]) ++end;
      text += g > 0 ? " " : "";
      text += "KOR"[static_cast<std::size_t>(chunk[g])];
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
                                    const plan::knobs& limits) {
  plan::simulator sim(step);
  return to_json(sim.run(sim.map().fold(what), limits));
}

[[nodiscard]] inline json results(const plan::profile& step, const plan::actions& what,
                                  const plan::forecast_result& engine, const plan::knobs& limits) {
  return {{"actions", in_short(what)},
          {"engine", to_json(engine)},
          {"simulator", simulated(step, what, limits)}};
}

[[nodiscard]] inline plan::knobs knobs_of(const tidepool::options& opts) {
  return {opts.device_budget.value_or(0), opts.reload_ahead, opts.reload_ahead_bytes.value_or(0)};
}

/// What both evaluators foretell: the simulator, and the engine on the virtual device.
[[nodiscard]] inline json evaluate(recordings& from, const golden_case& about) {
  const auto& recorded = from.profile(about.profile);
  const auto opts = tidepool::parse_options(about.options);
  if (about.by == by_rule) {
    const auto stays = plan::megatron_policy(recorded, opts);
    return results(recorded, plan::actions_of(stays), plan::forecast(recorded, opts, stays),
                   knobs_of(opts));
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
                 knobs_of(opts));
}

[[nodiscard]] inline std::vector<golden_case> read_cases(const recordings& from) {
  std::ifstream in(from.golden_file());
  std::vector<golden_case> cases;
  for (auto& each : json::parse(in)) {
    cases.push_back({each.at("profile").get<std::string>(), each.at("by").get<std::string>(),
                     each.at("options").get<std::string>(), each.at("results")});
  }
  return cases;
}

/// A line for each case, so that a change shows which.
inline void write_cases(const recordings& to, const std::vector<golden_case>& cases) {
  std::ofstream out(to.golden_file());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& each = cases[i];
    const json row{{"profile", each.profile},
                   {"by", each.by},
                   {"options", each.options},
                   {"results", each.results}};
    out << (i == 0 ? "[" : ",\n ") << row.dump();
  }
  out << "]\n";
  out.close();
  if (!out) throw std::runtime_error(to.golden_file() + ": it cannot be written");
}

/// What differs, a line each, old and new. Doubles are written as the shortest text that reads back
/// to the same bits, so that texts differ where bits do.
inline void differences(const std::string& where, const json& before, const json& after,
                        std::string& lines) {
  if (!before.is_object() || !after.is_object()) {
    if (before.dump() == after.dump()) return;
    lines += "  " + where + ": " + before.dump() + " -> " + after.dump() + "\n";
    return;
  }
  const auto inside = [&](const std::string& key) {
    return where.empty() ? key : where + "." + key;
  };
  for (const auto& [key, value] : before.items()) {
    differences(inside(key), value, after.value(key, json()), lines);
  }
  for (const auto& [key, value] : after.items()) {
    if (!before.contains(key)) differences(inside(key), json(), value, lines);
  }
}

}  // namespace golden
