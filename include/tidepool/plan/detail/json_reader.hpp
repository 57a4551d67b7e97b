// What the keys of a profile's or a plan's file mean.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/module.hpp"
#include "tidepool/plan/check.hpp"
#include "tidepool/plan/detail/json_text.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

inline constexpr std::uint32_t json_version = 1;
inline constexpr std::array<std::string_view, 7> event_words{
    "allocate", "commit", "end_forward", "restore", "release", "drop", "synchronise"};
inline constexpr std::array<std::string_view, 2> pass_words{"forward", "backward"};
inline constexpr std::array<std::string_view, 4> action_words{
    name_of(action::keep), name_of(action::offload), name_of(action::recompute),
    name_of(action::offload_to_peer)};
inline constexpr std::array<std::string_view, 4> limit_words{
    name_of(limit::nothing), name_of(limit::compute), name_of(limit::link), name_of(limit::memory)};

inline void read_version(const json_node& top, const std::string& kind) {
  const auto key = "tidepool_" + kind;
  if (!top.has(key)) {
    auto remedy = "a " + kind + " begins with \"" + key + "\": 1";
    for (const std::string other : {"profile", "plan", "machine"}) {
      if (top.has("tidepool_" + other)) remedy = "this is a " + other + ": read it as one";
    }
    top.refuse("the key '" + key + "' is missing", remedy);
  }
  const auto node = top.member(key);
  std::uint32_t version = 0;
  node.read(version);
  if (version != json_version) {
    node.refuse("it is of version " + std::to_string(version),
                "this build reads version 1; write the file anew, or update Tidepool");
  }
}

inline chunk_profile read_chunk(const json_node& from, const std::vector<std::string>& modules) {
  from.only({"model_chunk", "microbatch", "groups"});
  chunk_profile chunk;
  from.perhaps("model_chunk", chunk.model_chunk);
  from.perhaps("microbatch", chunk.microbatch);
  const auto groups = from.member("groups");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto each = groups.item(i);
    each.only({"module", "layer", "bytes", "recompute_us"});
    group_profile group;
    const auto named = each.member("module");
    std::string name;
    named.read(name);
    const auto found = std::find(modules.begin(), modules.end(), name);
    if (found == modules.end()) {
      named.refuse(tidepool::detail::text::in_quotes(name) + " is not one of the modules",
                   "add it to \"modules\", or correct it");
    }
    group.module = static_cast<module_id>(found - modules.begin());
    each.perhaps("layer", group.layer);
    each.member("bytes").read(group.bytes);
    each.perhaps("recompute_us", group.recompute_us);
    chunk.groups.push_back(group);
  }
  return chunk;
}

// A row of so many parts, the first of them a word.
inline std::size_t read_row(const json_node& row, std::size_t size, std::string_view what,
                            std::span<const std::string_view> words) {
  if (row.size() != size) row.refuse("found " + std::to_string(row.size()) + " parts", what);
  const auto first = row.item(0);
  return first.word(words);
}

inline storage_profile read_storage(const json_node& from) {
  from.only({"bytes", "chunk", "group", "place"});
  storage_profile storage;
  from.member("bytes").read(storage.bytes);
  const auto index = [&](std::string_view key, std::uint32_t& into) {
    if (from.has(key)) from.member(key).read(into, none - 1);
  };
  index("chunk", storage.chunk);
  index("group", storage.group);
  index("place", storage.place);
  return storage;
}

inline shared_save read_shared(const json_node& from) {
  from.only({"storage", "chunk", "group", "place"});
  shared_save by;
  from.member("storage").read(by.storage, none - 1);
  from.member("chunk").read(by.chunk, none - 1);
  from.member("group").read(by.group, none - 1);
  if (from.has("place")) from.member("place").read(by.place, none - 1);
  return by;
}

inline event read_event(const json_node& from) {
  event each;
  const bool waits = from.size() == 5;
  each.kind = static_cast<event_kind>(
      read_row(from, waits ? 5 : 4, "give [kind, index, chunk, compute_us]", event_words));
  from.item(1).read(each.index);
  from.item(2).read(each.chunk);
  from.item(3).read(each.compute_us);
  if (waits) from.item(4).read(each.wait_us);
  return each;
}

inline pass read_pass(const json_node& from) {
  pass each;
  each.backward = read_row(from, 2, "give [\"forward\" or \"backward\", chunk]", pass_words) == 1;
  from.item(1).read(each.chunk);
  return each;
}

inline void read_link(const json_node& from, link_rates& link) {
  from.only({"out", "in", "both", "latency_us"});
  from.perhaps("out", link.out);
  from.perhaps("in", link.in);
  from.perhaps("both", link.both);
  from.perhaps("latency_us", link.latency_us);
}

inline void read_expected(const json_node& from, outcome& expected) {
  from.only({"runs", "step_us", "stall_us", "extra_us", "peak", "moved"});
  from.perhaps("runs", expected.runs);
  from.perhaps("step_us", expected.step_us);
  from.perhaps("stall_us", expected.stall_us);
  from.perhaps("extra_us", expected.extra_us);
  from.perhaps("peak", expected.peak);
  from.perhaps("moved", expected.moved);
}

inline std::vector<action> read_actions(const json_node& from, std::size_t expected) {
  from.only({"model_chunk", "microbatch", "groups"});
  const auto groups = from.member("groups");
  if (groups.size() != expected) {
    groups.refuse("found " + std::to_string(groups.size()) + " groups, expected " +
                      std::to_string(expected) + " as in groups_per_chunk",
                  "change actions, not the number of rows");
  }
  std::vector<action> row;
  for (std::size_t i = 0; i < expected; ++i) {
    const auto each = groups.item(i);
    each.only({"module", "layer", "microbatch", "action"});
    const auto what = each.member("action");
    row.push_back(static_cast<action>(what.word(action_words)));
  }
  return row;
}

// `read(node)` for each element of the array `key`, if there is one.
void read_each(const json_node& from, std::string_view key, const auto& read) {
  if (!from.has(key)) return;
  const auto list = from.member(key);
  for (std::size_t i = 0; i < list.size(); ++i) read(list.item(i));
}

inline profile read_profile(const json_source& source, std::string_view text) {
  const auto document = parse_json(source, text);
  const json_node top(source, document);
  read_version(top, "profile");
  top.only({"tidepool_profile", "modules", "chunks", "passes", "storages", "shared", "events",
            "rest_us", "rest_wait_us", "shapes_vary", "stream_ordered", "link", "peer_link",
            "peer_shares_link"});
  profile step;
  read_each(top, "modules", [&](const json_node& each) { each.read(step.modules.emplace_back()); });
  read_each(top, "chunks",
            [&](const json_node& each) { step.chunks.push_back(read_chunk(each, step.modules)); });
  read_each(top, "passes", [&](const json_node& each) { step.passes.push_back(read_pass(each)); });
  read_each(top, "storages",
            [&](const json_node& each) { step.storages.push_back(read_storage(each)); });
  read_each(top, "shared",
            [&](const json_node& each) { step.shared.push_back(read_shared(each)); });
  read_each(top, "events", [&](const json_node& each) { step.events.push_back(read_event(each)); });
  top.perhaps("rest_us", step.rest_us);
  top.perhaps("rest_wait_us", step.rest_wait_us);
  top.perhaps("shapes_vary", step.shapes_vary);
  top.perhaps("stream_ordered", step.stream_ordered);
  if (top.has("link")) read_link(top.member("link"), step.link);
  if (top.has("peer_link")) read_link(top.member("peer_link"), step.peer_link.emplace());
  top.perhaps("peer_shares_link", step.peer_shares_link);
  const auto refuse = [&](const std::string& place, const std::string& problem,
                          std::string_view remedy) { source.refuse(place, problem, remedy); };
  expect_consistent(step, refuse);
  return step;
}

inline step_plan read_plan(const json_source& source, std::string_view text) {
  const auto document = parse_json(source, text);
  const json_node top(source, document);
  read_version(top, "plan");
  top.only({"tidepool_plan", "device_budget", "reload_ahead", "reload_ahead_bytes", "peer_budget",
            "expected", "bound_us", "limited_by", "groups_per_chunk", "chunks"});
  step_plan chosen;
  top.perhaps("device_budget", chosen.device_budget);
  top.perhaps("reload_ahead", chosen.reload_ahead);
  top.perhaps("reload_ahead_bytes", chosen.reload_ahead_bytes);
  top.perhaps("peer_budget", chosen.peer_budget);
  if (top.has("expected")) read_expected(top.member("expected"), chosen.expected);
  top.perhaps("bound_us", chosen.bound_us);
  if (top.has("limited_by")) {
    chosen.limited_by = static_cast<limit>(top.member("limited_by").word(limit_words));
  }
  static_cast<void>(top.member("groups_per_chunk"));  // rows that were deleted would be missed
  std::vector<std::size_t> counts;
  read_each(top, "groups_per_chunk",
            [&](const json_node& each) { each.read(counts.emplace_back()); });
  const auto chunks = top.member("chunks");
  if (chunks.size() != counts.size()) {
    chunks.refuse("found " + std::to_string(chunks.size()) + " chunks, expected " +
                      std::to_string(counts.size()) + " as in groups_per_chunk",
                  "change actions, not the number of rows");
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    chosen.what.push_back(read_actions(chunks.item(i), counts[i]));
  }
  return chosen;
}

}  // namespace tidepool::plan::detail
