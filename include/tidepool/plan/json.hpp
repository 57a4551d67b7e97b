/// Profiles and plans as JSON, in files that people read and edit; needs nlohmann/json.hpp, which
/// is why `tidepool.hpp` leaves it out.
///
///     {"tidepool_profile": 1,
///      "modules": ["core_attn", "expert_fc1"],
///      "chunks": [{"model_chunk": 0, "microbatch": 0, "groups": [
///        {"module": "core_attn", "layer": 0, "bytes": 1048576, "recompute_us": 12.5}]}],
///      "passes": [["forward", 0], ["backward", 0]],
///      "storages": [{"bytes": 1048576, "chunk": 0, "group": 0}],
///      "shared": [{"storage": 0, "chunk": 0, "group": 1}],
///      "events": [["allocate", 0, 0, 1.5, 1], ["commit", 0, 0, 80]],
///      "rest_us": 3, "shapes_vary": false, "stream_ordered": false,
///      "link": {"out": 55.2, "in": 55.2, "both": 101.7, "latency_us": 2},
///      "peer_link": {"out": 396, "in": 394, "both": 782, "latency_us": 2}}
///
/// An event is its kind, an index, a chunk and the computing before it; where that began with a
/// wait for other ranks, that too, and "rest_wait_us" for the rest. A plan has a row like that
/// of a profile for each group, with its action; only the action counts, the rest is for the eye.
/// Kinds are those of `event_kind`.
/// What has a default may be left out, except the sizes of groups and storages.
/// Reading throws `file_error`, writing `profile_error` where the data contradict themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/plan/check.hpp"
#include "tidepool/plan/detail/json_reader.hpp"
#include "tidepool/plan/detail/json_text.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::plan {

namespace detail {

[[nodiscard]] inline std::string finished(const json& document) {
  std::string text;
  write_json(text, document);
  return text += '\n';
}

[[nodiscard]] inline json document_of(const profile& step) {
  json top;
  top["tidepool_profile"] = json_version;
  top["modules"] = step.modules;
  auto& chunks = top["chunks"] = json::array();
  for (const auto& chunk : step.chunks) {
    auto groups = json::array();
    for (const auto& each : chunk.groups) {
      groups.push_back({{"module", step.modules[static_cast<std::size_t>(each.module)]},
                        {"layer", each.layer},
                        {"bytes", each.bytes},
                        {"recompute_us", each.recompute_us}});
    }
    chunks.push_back({{"model_chunk", chunk.model_chunk},
                      {"microbatch", chunk.microbatch},
                      {"groups", std::move(groups)}});
  }
  auto& passes = top["passes"] = json::array();
  for (const auto& each : step.passes) {
    passes.push_back(json::array({pass_words[each.backward ? 1 : 0], each.chunk}));
  }
  auto& storages = top["storages"] = json::array();
  for (const auto& each : step.storages) {
    storages.push_back({{"bytes", each.bytes}});
    if (each.group == none) continue;
    storages.back()["chunk"] = each.chunk;
    storages.back()["group"] = each.group;
    if (each.place > 0) storages.back()["place"] = each.place;
  }
  if (!step.shared.empty()) {
    auto& shared = top["shared"] = json::array();
    for (const auto& each : step.shared) {
      shared.push_back({{"storage", each.storage}, {"chunk", each.chunk}, {"group", each.group}});
      if (each.place > 0) shared.back()["place"] = each.place;
    }
  }
  auto& events = top["events"] = json::array();
  for (const auto& each : step.events) {
    events.push_back(json::array({event_words[static_cast<std::size_t>(each.kind)], each.index,
                                  each.chunk, each.compute_us}));
    if (each.wait_us > 0) events.back().push_back(each.wait_us);
  }
  top["rest_us"] = step.rest_us;
  if (step.rest_wait_us > 0) top["rest_wait_us"] = step.rest_wait_us;
  top["shapes_vary"] = step.shapes_vary;
  if (step.stream_ordered) top["stream_ordered"] = true;
  top["link"] = rates_to_json(step.link);
  if (step.peer_link) top["peer_link"] = rates_to_json(*step.peer_link);
  if (step.peer_shares_link) top["peer_shares_link"] = true;
  return top;
}

inline std::string plain_text(std::size_t number) { return std::to_string(number); }
inline std::string plain_text(double number) { return number_text(number); }
inline std::string plain_text(bool yes) { return yes ? "true" : "false"; }
inline std::string plain_text(action what) { return std::string(name_of(what)); }
inline std::string plain_text(limit what) { return std::string(name_of(what)); }

}  // namespace detail

/// A profile as JSON. Throws `profile_error` where its data contradict themselves.
[[nodiscard]] inline std::string to_json(const profile& step) {
  check(step);
  return detail::finished(detail::document_of(step));
}

/// `step` is what the plan was made for; it gives the rows their names.
[[nodiscard]] inline std::string to_json(const step_plan& chosen, const profile& step) {
  using detail::json;
  check(step);
  check(chosen, step);
  const auto& expected = chosen.expected;
  json top;
  top["tidepool_plan"] = detail::json_version;
  top["device_budget"] = chosen.device_budget;
  top["reload_ahead"] = chosen.reload_ahead;
  top["reload_ahead_bytes"] = chosen.reload_ahead_bytes;
  if (chosen.peer_budget > 0) top["peer_budget"] = chosen.peer_budget;
  top["expected"] = {{"runs", expected.runs},         {"step_us", expected.step_us},
                     {"stall_us", expected.stall_us}, {"extra_us", expected.extra_us},
                     {"peak", expected.peak},         {"moved", expected.moved}};
  top["bound_us"] = chosen.bound_us;
  top["limited_by"] = name_of(chosen.limited_by);
  auto& counts = top["groups_per_chunk"] = json::array();
  auto chunks = json::array();
  for (std::size_t c = 0; c < chosen.what.size(); ++c) {
    const auto& chunk = step.chunks[c];
    counts.push_back(chunk.groups.size());
    auto groups = json::array();
    for (std::size_t g = 0; g < chunk.groups.size(); ++g) {
      const auto& each = chunk.groups[g];
      groups.push_back({{"module", step.modules[static_cast<std::size_t>(each.module)]},
                        {"layer", each.layer},
                        {"microbatch", chunk.microbatch},
                        {"action", name_of(chosen.what[c][g])}});
    }
    chunks.push_back({{"model_chunk", chunk.model_chunk}, {"groups", std::move(groups)}});
  }
  top["chunks"] = std::move(chunks);
  return detail::finished(top);
}

/// A profile from JSON; messages call it `name`. Throws `file_error`.
[[nodiscard]] inline profile profile_from_json(std::string_view text,
                                               std::string_view name = "profile") {
  return detail::read_profile({"profile", name}, text);
}

/// A plan from JSON; messages call it `name`. Throws `file_error`.
[[nodiscard]] inline step_plan plan_from_json(std::string_view text,
                                              std::string_view name = "plan") {
  return detail::read_plan({"plan", name}, text);
}

/// A profile from a file. Throws `file_error`, with line and column.
[[nodiscard]] inline profile load_profile(const std::string& path) {
  return profile_from_json(detail::read_file({"profile", path}), path);
}

/// A plan from a file. Throws `file_error`, with line and column.
[[nodiscard]] inline step_plan load_plan(const std::string& path) {
  return plan_from_json(detail::read_file({"plan", path}), path);
}

/// Replaces the file at once: a reader sees the old one or the new one.
inline void save(const profile& step, const std::string& path) {
  detail::write_file({"profile", path}, to_json(step));
}

/// The same for a plan and the profile that it was made for.
inline void save(const step_plan& chosen, const profile& step, const std::string& path) {
  detail::write_file({"plan", path}, to_json(chosen, step));
}

/// What changed from one plan to another, a line each; none where they are equal.
[[nodiscard]] inline std::vector<std::string> differences(const step_plan& a, const step_plan& b) {
  std::vector<std::string> lines;
  const auto changed = [&](const std::string& what, const auto& before, const auto& after) {
    if (before == after) return;
    lines.push_back(what + ": " + detail::plain_text(before) + " -> " + detail::plain_text(after));
  };
  changed("chunks", a.what.size(), b.what.size());
  for (std::size_t c = 0; c < std::min(a.what.size(), b.what.size()); ++c) {
    const auto chunk = "chunk " + std::to_string(c);
    const auto& before = a.what[c];
    const auto& after = b.what[c];
    changed(chunk + ", groups", before.size(), after.size());
    const auto shared = std::min(before.size(), after.size());
    for (std::size_t g = 0; g < shared; ++g) {
      // Neighbours that change alike make one line.
      const auto first = g;
      while (g + 1 < shared && before[g + 1] == before[first] && after[g + 1] == after[first]) ++g;
      changed(first == g ? chunk + ", group " + std::to_string(g)
                         : chunk + ", groups " + std::to_string(first) + " to " + std::to_string(g),
              before[first], after[first]);
    }
  }
  changed("device_budget", a.device_budget, b.device_budget);
  changed("reload_ahead", a.reload_ahead, b.reload_ahead);
  changed("reload_ahead_bytes", a.reload_ahead_bytes, b.reload_ahead_bytes);
  changed("peer_budget", a.peer_budget, b.peer_budget);
  changed("expected.runs", a.expected.runs, b.expected.runs);
  changed("expected.step_us", a.expected.step_us, b.expected.step_us);
  changed("expected.stall_us", a.expected.stall_us, b.expected.stall_us);
  changed("expected.extra_us", a.expected.extra_us, b.expected.extra_us);
  changed("expected.peak", a.expected.peak, b.expected.peak);
  changed("expected.moved", a.expected.moved, b.expected.moved);
  changed("bound_us", a.bound_us, b.bound_us);
  changed("limited_by", a.limited_by, b.limited_by);
  return lines;
}

}  // namespace tidepool::plan
