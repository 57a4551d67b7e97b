/// The cases that are compared, from the command line.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <tidepool/error.hpp>
#include <tidepool/options.hpp>
#include <tidepool/parse.hpp>
#include <tidepool/validate.hpp>
#include <vector>

#include "settings.hpp"

namespace bench {

/// `by_hand`: the calls of a commit and a restore, written out; for the host's time alone.
enum class case_kind { none, floor, recompute, offload, by_hand };

inline const char* name_of(case_kind kind) {
  constexpr const char* names[]{"none", "floor", "recompute", "offload", "by_hand"};
  return names[static_cast<int>(kind)];
}

struct planned_case {
  std::string name;
  case_kind kind = case_kind::none;
  std::string text;  ///< of its options
  tidepool::options options;
  double held_bytes = 0;  ///< saved by one microbatch in the offloader's memory
  double share = 1;       ///< floor: of the bytes that the experts save, how much is copied
  double peer_share = 0;  ///< floor: how much of them to a neighbour and back
};

namespace detail {

inline bool names_attention(const tidepool::options& options) {
  const auto& names = options.offload_modules;
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name == "core_attn" || name == "all"; });
}

/// Replaces each `75%` by that share of `whole`.
inline std::string without_percents(std::string text, double whole) {
  for (auto at = text.find('%'); at != std::string::npos; at = text.find('%')) {
    auto from = at;
    while (from > 0 && std::string("0123456789.").find(text[from - 1]) != std::string::npos) --from;
    if (from == at) throw tidepool::option_error("--case: a '%' without a number: " + text);
    const auto percent = std::strtod(text.substr(from, at - from).c_str(), nullptr);
    const auto bytes = static_cast<std::size_t>(whole * percent / 100);
    text.replace(from, at - from + 1, std::to_string(bytes));
  }
  return text;
}

inline double held_by(const tidepool::options& options, const model_sizes& n) {
  const bool attention = n.attention && names_attention(options);
  return static_cast<double>(n.expert_bytes() +
                             (attention ? static_cast<std::size_t>(n.layers) * n.attn_bytes() : 0));
}

inline std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

}  // namespace detail

/// One `NAME: OPTIONS`. At check sizes, budgets in bytes shrink as the model does.
inline planned_case plan_case(const settings& run, const std::string& given) {
  const auto colon = given.find(':');
  const auto name = detail::trimmed(given.substr(0, colon));
  if (colon == std::string::npos || name.empty()) {
    throw tidepool::option_error("--case \"" + given +
                                 "\": write a name, a colon, and options, such as"
                                 " --case \"arena75: --offload-modules=expert_fc1,moe_act"
                                 " --memory=arena --device-budget=75%\"");
  }
  planned_case plan;
  plan.name = name;
  plan.kind = case_kind::offload;
  plan.text = detail::trimmed(given.substr(colon + 1));
  tidepool::options base;
  if (run.check) base.min_tensor_elements = 1;
  // Read twice: what a percent is of depends on the modules that the same text names.
  const auto draft = tidepool::parse_options(detail::without_percents(plan.text, 1e12), base);
  plan.held_bytes = detail::held_by(draft, run.sizes);
  plan.options = tidepool::parse_options(
      detail::without_percents(plan.text, plan.held_bytes * run.depth), base);
  if (run.check && plan.options.device_budget && plan.text.find('%') == std::string::npos) {
    const auto ratio = plan.held_bytes / detail::held_by(draft, model_sizes{});
    plan.options.device_budget =
        static_cast<std::size_t>(static_cast<double>(*plan.options.device_budget) * ratio);
  }
  tidepool::validate(plan.options, module_names, false);
  return plan;
}

/// A case without offloading: `none`, `recompute` or a floor.
inline planned_case plan_without(const settings& run, case_kind kind, const std::string& name) {
  planned_case plan;
  plan.name = name;
  plan.kind = kind;
  plan.held_bytes = static_cast<double>(run.sizes.expert_bytes());
  return plan;
}

/// The neighbour of the cases; -1 where none has one. Floors have traffic with one alone.
inline int peer_of(const std::vector<planned_case>& plans) {
  int found = -1;
  for (const auto& each : plans) {
    const auto& places = each.options.places;
    if (std::find(places.begin(), places.end(), tidepool::place_kind::peer) == places.end()) {
      continue;
    }
    if (found >= 0 && found != each.options.peer_device) {
      throw tidepool::option_error("--case: all cases must have one --peer-device");
    }
    found = each.options.peer_device;
  }
  return found;
}

/// All cases but the floors, which depend on what the others turn out to move. `none` comes first.
inline std::vector<planned_case> plan_cases(const settings& run) {
  std::vector<planned_case> plans{plan_without(run, case_kind::none, "none")};
  if (run.recompute) plans.push_back(plan_without(run, case_kind::recompute, "recompute"));
  const std::string both = "--offload-modules=expert_fc1,moe_act ";
  for (const auto percent : run.budgets) {
    auto share = std::to_string(percent);
    share.erase(share.find_last_not_of('0') + 1);
    if (share.back() == '.') share.pop_back();
    plans.push_back(plan_case(run, "arena " + share + "%: " + both +
                                       "--memory=arena --device-budget=" + share + "% " +
                                       run.budget_options));
  }
  for (const auto& text : run.cases) plans.push_back(plan_case(run, text));
  if (run.check && run.budgets.empty() && run.cases.empty()) {
    for (const auto& text :
         {"pool: " + both, "pool, cap 0: " + both + "--max-inflight=0",
          "pool, cap 1, no margin: " + both + "--max-inflight=1 --no-margin --reload-ahead=8",
          "on demand: " + both + "--reload-ahead=0 --no-margin",
          "arena 100%: " + both + "--memory=arena --device-budget=100%",
          "arena 75%: " + both + "--memory=arena --device-budget=75% --no-margin",
          "arena 60%: " + both + "--memory=arena --device-budget=60% --no-margin",
          std::string(
              "attention too: --offload-modules=core_attn,expert_fc1,moe_act --no-margin")}) {
      plans.push_back(plan_case(run, text));
    }
  }
  return plans;
}

}  // namespace bench
