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

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/plan/check.hpp"
#include "tidepool/plan/detail/json_file.hpp"
#include "tidepool/plan/detail/json_structs.hpp"
#include "tidepool/plan/detail/json_text.hpp"
#include "tidepool/plan/detail/profile_check.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/refusal.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan {

namespace detail {

[[nodiscard]] inline json document_of(const profile& step) {
  return json_writer(step.modules).document("profile", step);
}

// A row of a plan's file for each group.
inline void write_actions(json& top, const actions& what, const profile& step) {
  auto& counts = top["groups_per_chunk"] = json::array();
  auto chunks = json::array();
  for (std::size_t c = 0; c < what.size(); ++c) {
    const auto& chunk = step.chunks[c];
    counts.push_back(chunk.groups.size());
    auto groups = json::array();
    for (std::size_t g = 0; g < chunk.groups.size(); ++g) {
      const auto& each = chunk.groups[g];
      groups.push_back({{"module", step.modules[static_cast<std::size_t>(each.module)]},
                        {"layer", each.layer},
                        {"microbatch", chunk.microbatch},
                        {"action", name_of(what[c][g])}});
    }
    chunks.push_back({{"model_chunk", chunk.model_chunk}, {"groups", std::move(groups)}});
  }
  top["chunks"] = std::move(chunks);
}

inline void read_actions(json_reader& reader, actions& what) {
  constexpr std::string_view of_chunk[]{"model_chunk", "microbatch", "groups"};
  constexpr std::string_view of_group[]{"module", "layer", "microbatch", "action"};
  std::vector<std::size_t> counts;
  reader.read(reader.member(reader.top(), "groups_per_chunk"), counts);
  const auto& chunks = reader.member(reader.top(), "chunks");
  reader.expect_size(chunks, counts.size(), "found {} chunks, expected {} as in groups_per_chunk");
  for (std::size_t c = 0; c < counts.size(); ++c) {
    reader.only(chunks[c], of_chunk);
    const auto& groups = reader.member(chunks[c], "groups");
    reader.expect_size(groups, counts[c], "found {} groups, expected {} as in groups_per_chunk");
    auto& row = what.emplace_back();
    for (const auto& group : groups) {
      reader.only(group, of_group);
      reader.read(reader.member(group, "action"), row.emplace_back());
    }
  }
}

}  // namespace detail

/// A profile as JSON. Throws `profile_error` where its data contradict themselves.
[[nodiscard]] inline std::string to_json(const profile& step) {
  check(step);
  return detail::finished(detail::document_of(step));
}

/// `step` is what the plan was made for; it gives the rows their names.
[[nodiscard]] inline std::string to_json(const step_plan& chosen, const profile& step) {
  check(step);
  check(chosen, step);
  auto top = detail::json_writer().document("plan", chosen);
  detail::write_actions(top, chosen.what, step);
  return detail::finished(top);
}

/// A profile from JSON; messages call it `name`. Throws `file_error`.
[[nodiscard]] inline profile profile_from_json(std::string_view text,
                                               std::string_view name = "profile") {
  const detail::subject source{"profile", name};
  detail::json_reader reader(source, text);
  profile step;
  reader.read_top(step);
  static_cast<void>(detail::profile_check(step, source));
  return step;
}

/// A plan from JSON; messages call it `name`. Throws `file_error`.
[[nodiscard]] inline step_plan plan_from_json(std::string_view text,
                                              std::string_view name = "plan") {
  const detail::subject source{"plan", name};
  detail::json_reader reader(source, text);
  step_plan chosen;
  reader.read_top(chosen, {"groups_per_chunk", "chunks"});
  detail::read_actions(reader, chosen.what);
  return chosen;
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

}  // namespace tidepool::plan
