// The members of each struct with their keys in JSON files, in file order. Reading, writing and
// comparing all use this list, so that they cannot disagree.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

// How a member is treated in a file.
enum class presence : std::uint8_t {
  needed,        // must be in the file
  usual,         // is always written, and may be left out
  rate,          // as `usual`, but must be in the file if the reader wants all rates
  unless_none,   // left out if the index is none
  unless_empty,  // left out if it is 0, false or empty
};

template <class T, class Plain>
concept either = std::same_as<std::remove_const_t<T>, Plain>;  // const or not

// Calls `see(key, member)` for each member. A third argument gives a presence other than `usual`,
// a fourth the value that an optional member or a new part of a list begins with.
void each_member(either<link_rates> auto& of, const auto& see) {
  see("out", of.out, presence::rate);
  see("in", of.in, presence::rate);
  see("both", of.both, presence::rate);
  see("latency_us", of.latency_us);
}
void each_member(either<group_profile> auto& of, const auto& see) {
  see("module", of.module, presence::needed);
  see("layer", of.layer);
  see("bytes", of.bytes, presence::needed);
  see("recompute_us", of.recompute_us);
}
void each_member(either<chunk_profile> auto& of, const auto& see) {
  see("model_chunk", of.model_chunk);
  see("microbatch", of.microbatch);
  see("groups", of.groups, presence::needed);
}
void each_member(either<storage_profile> auto& of, const auto& see) {
  see("bytes", of.bytes, presence::needed);
  see("chunk", of.chunk, presence::unless_none);
  see("group", of.group, presence::unless_none);
  see("place", of.place, presence::unless_empty);
  see("bfloat16", of.bfloat16, presence::unless_empty);
  see("moves", of.moves, presence::unless_empty);
}
void each_member(either<packing_profile> auto& of, const auto& see) {
  see("link", of.link);
  see("pack_rate", of.pack_rate);
  see("unpack_rate", of.unpack_rate);
  see("from", of.from);
  see("staging", of.staging);
}
void each_member(either<shared_save> auto& of, const auto& see) {
  see("storage", of.storage, presence::needed);
  see("chunk", of.chunk, presence::needed);
  see("group", of.group, presence::needed);
  see("place", of.place, presence::unless_empty);
}
void each_member(either<profile> auto& of, const auto& see) {
  see("modules", of.modules);  // before the groups that name them
  see("chunks", of.chunks);
  see("passes", of.passes);
  see("storages", of.storages);
  see("shared", of.shared, presence::unless_empty);
  see("events", of.events);
  see("rest_us", of.rest_us);
  see("rest_wait_us", of.rest_wait_us, presence::unless_empty);
  see("shapes_vary", of.shapes_vary);
  see("stream_ordered", of.stream_ordered, presence::unless_empty);
  see("link", of.link);
  see("packing", of.packing, presence::unless_empty);
  see("peer_link", of.peer_link, presence::unless_empty);
  see("peer_shares_link", of.peer_shares_link, presence::unless_empty);
}
void each_member(either<outcome> auto& of, const auto& see) {
  see("runs", of.runs);
  see("step_us", of.step_us);
  see("stall_us", of.stall_us);
  see("extra_us", of.extra_us);
  see("peak", of.peak);
  see("moved", of.moved);
}
// The actions are missing here, because a file has them in rows with more members (`json.hpp`).
void each_member(either<step_plan> auto& of, const auto& see) {
  see("device_budget", of.device_budget);
  see("reload_ahead", of.reload_ahead);
  see("reload_ahead_bytes", of.reload_ahead_bytes);
  see("peer_budget", of.peer_budget, presence::unless_empty);
  see("packs", of.packs, presence::unless_empty);
  see("expected", of.expected);
  see("bound_us", of.bound_us);
  see("limited_by", of.limited_by);
}

// Calls `see` for each member of a struct that is written as a row without keys. Only the last
// member may be left out.
void each_part(either<pass> auto& of, const auto& see) {
  see("\"forward\" or \"backward\"", of.backward);
  see("chunk", of.chunk);
}
void each_part(either<event> auto& of, const auto& see) {
  see("kind", of.kind);
  see("index", of.index);
  see("chunk", of.chunk);
  see("compute_us", of.compute_us);
  see("wait_us", of.wait_us, presence::unless_empty);
}

struct see_nothing {
  void operator()(const auto&...) const {}
};
template <class T>
concept has_members = requires(T& of) {
  each_member(of, see_nothing());
};
template <class T>
concept has_parts = requires(T& of) {
  each_part(of, see_nothing());
};

inline constexpr std::array<std::string_view, 7> event_words{
    "allocate", "commit", "end_forward", "restore", "release", "drop", "synchronise"};
inline constexpr std::array<std::string_view, 4> action_words{
    name_of(action::keep), name_of(action::offload), name_of(action::recompute),
    name_of(action::offload_to_peer)};
inline constexpr std::array<std::string_view, 4> limit_words{
    name_of(limit::nothing), name_of(limit::compute), name_of(limit::link), name_of(limit::memory)};
inline constexpr std::array<std::string_view, 2> pass_words{"forward", "backward"};

[[nodiscard]] constexpr std::span<const std::string_view> words_of(event_kind) {
  return event_words;
}
[[nodiscard]] constexpr std::span<const std::string_view> words_of(action) { return action_words; }
[[nodiscard]] constexpr std::span<const std::string_view> words_of(limit) { return limit_words; }
template <class T>
concept has_words = requires(T of) {
  words_of(of);
};

}  // namespace tidepool::plan::detail
