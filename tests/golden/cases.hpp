/// Golden forecasts: a recorded step, how it is run, and what was predicted of it. The files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tidepool/plan/json.hpp>
#include <tidepool/plan/profile.hpp>
#include <tidepool/plan/step_plan.hpp>
#include <utility>
#include <vector>

namespace golden {

namespace plan = tidepool::plan;
using json = nlohmann::ordered_json;

/// Who decides what leaves, and who says what comes of it. Forecasts:
inline constexpr std::string_view by_rule = "rule";  ///< Megatron's
inline constexpr std::string_view by_plan = "plan";  ///< the saved one
inline constexpr std::string_view by_plan_unplaced = "plan without places";
inline constexpr std::string_view by_draw = "draw";  ///< actions at random, by fixed numbers
inline constexpr std::string_view by_draw_unplaced = "draw without places";
/// The public calls on the virtual device:
inline constexpr std::string_view live_rule = "live rule";
inline constexpr std::string_view live_plan = "live plan";
inline constexpr std::string_view live_first = "live first step";  ///< of the automatic policy

struct golden_case {
  std::string profile;  ///< file name without its ending
  std::string by;
  std::string options;     ///< as on a command line; empty: the plan's own
  std::uint64_t draw = 0;  ///< which of those at random
  json results;

  [[nodiscard]] bool is_live() const { return by.starts_with("live"); }
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

[[nodiscard]] inline std::vector<golden_case> read_cases(const recordings& from) {
  std::ifstream in(from.golden_file());
  std::vector<golden_case> cases;
  for (auto& each : json::parse(in)) {
    cases.push_back({each.at("profile").get<std::string>(), each.at("by").get<std::string>(),
                     each.at("options").get<std::string>(), each.value("draw", std::uint64_t{0}),
                     each.at("results")});
  }
  return cases;
}

/// A line for each case, so that a change shows which.
inline void write_cases(const recordings& to, const std::vector<golden_case>& cases) {
  std::ofstream out(to.golden_file());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& each = cases[i];
    json row{{"profile", each.profile}, {"by", each.by}};
    if (each.draw > 0) row["draw"] = each.draw;
    row["options"] = each.options;
    row["results"] = each.results;
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
