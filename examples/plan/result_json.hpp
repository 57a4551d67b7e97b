/// The figures of `plan` as JSON: bytes, microseconds, and slowdown as a share of the step that
/// keeps everything.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <tidepool/parse.hpp>
#include <vector>

#include "report.hpp"
#include "study.hpp"

namespace planning {

inline nlohmann::ordered_json to_json(const study& of, const point& each) {
  const auto& made = each.made;
  nlohmann::ordered_json json{{"budget_bytes", each.budget}, {"runs", made.expected.runs}};
  json["planned_us"] = each.planned.step_us;
  if (made.expected.runs) {
    json["step_us"] = made.expected.step_us;
    json["slowdown"] = of.slowdown(made.expected);
    json["bound_us"] = made.bound_us;
    json["gap"] = made.gap();
    json["moved_bytes"] = made.expected.moved;
    json["limited_by"] = plan::name_of(made.limited_by);
  }
  json["zero_stall"] = each.zero_stall;
  json["chosen"] = each.chosen;
  return json;
}

inline nlohmann::ordered_json to_json(const study& of, const contestant& each) {
  nlohmann::ordered_json json{{"rule", each.name}, {"runs", each.seen.runs}};
  if (!each.seen.runs) return json;
  json["fits"] = each.fits;
  json["step_us"] = each.seen.step_us;
  json["slowdown"] = of.slowdown(each.seen);
  json["needed_bytes"] = each.seen.peak;
  json["taken_bytes"] = each.takes > 0 ? each.takes : each.seen.peak;
  json["moved_bytes"] = each.seen.moved;
  return json;
}

/// The plan of one point: its options, and how many microbatches do what with a group.
inline nlohmann::ordered_json plan_to_json(const plan::profile& step, const plan::step_plan& made) {
  nlohmann::ordered_json json{{"limited_by", plan::name_of(made.limited_by)},
                              {"reload_ahead_groups", made.reload_ahead},
                              {"reload_ahead_bytes", made.reload_ahead_bytes},
                              {"options", tidepool::to_text(trainer_options(step, made))}};
  for (const auto& [layer, modules] : actions_by_layer(step, made.what)) {
    for (const auto& [module, counts] : modules) {
      json["groups"].push_back({{"layer", layer},
                                {"module", step.modules[module]},
                                {"keep", counts[0]},
                                {"offload", counts[1]},
                                {"recompute", counts[2]},
                                {"offload_to_neighbour", counts[3]}});
    }
  }
  return json;
}

}  // namespace planning
