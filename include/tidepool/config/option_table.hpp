/// The table of every option. A new option is one entry here (and a member of `options`).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tidepool/config/formats.hpp"
#include "tidepool/config/list_formats.hpp"
#include "tidepool/config/place_rules.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_2_0::detail::text {

enum class option_kind : std::uint8_t {
  value,   ///< one value
  list,    ///< one value, or several words up to the next option
  toggle,  ///< `--name`, `--no-name`
  gate     ///< a toggle without a member: allows or empties `offload_modules`
};

/// How an option is read into `options` and written out of it, and whether one of its counts or
/// sizes was a negative number before it was converted.
struct codec {
  option_kind kind = option_kind::value;
  void (*read)(options& into, const setting& given) = nullptr;
  std::string (*write)(const options& from) = nullptr;
  bool (*negative)(const options& from) = nullptr;
};

template <class Value>
[[nodiscard]] bool has_negative(const Value& value) {
  if constexpr (std::is_same_v<Value, std::size_t>) return value > most;
  if constexpr (std::is_same_v<Value, int>) return value < 0;
  if constexpr (std::is_same_v<Value, std::optional<std::size_t>>) return value > most;
  if constexpr (std::is_same_v<Value, std::vector<slot_ring>>) {
    return std::ranges::any_of(
        value, [](const slot_ring& each) { return each.bytes > most || each.count > most; });
  }
  return false;
}

template <auto Member, class Format>
void read_member(options& into, const setting& given) {
  into.*Member = Format::read(given);
}

template <auto Member, class Format>
std::string write_member(const options& from) {
  return Format::write(from.*Member);
}

template <auto Member>
bool negative_member(const options& from) {
  return has_negative(from.*Member);
}

/// The codec of one member of `options`.
template <auto Member, class Format, option_kind Kind = option_kind::value>
inline constexpr codec member{Kind, &read_member<Member, Format>, &write_member<Member, Format>,
                              &negative_member<Member>};

struct option_entry {
  std::string_view flag;      ///< without the leading dashes
  std::string_view field;     ///< the member of `options`
  std::string_view megatron;  ///< Megatron's name where it is another one
  std::string_view form;      ///< what a value looks like
  std::string_view help;      ///< one line, and which option to prefer
  codec text;
};

using optional_bytes = optional_format<bytes_format>;

inline constexpr std::array option_table{
    option_entry{"offload-modules", "offload_modules", "", "NAMES|all|none",
                 "modules whose saved tensors leave the device",
                 member<&options::offload_modules, names_format<true>, option_kind::list>},
    option_entry{"fine-grained-activation-offloading",
                 "",
                 "fine-grained-activation-offloading",
                 "",
                 "offloads nothing without --offload-modules; its --no- form empties that list",
                 {option_kind::gate}},
    option_entry{"own-modules", "own_modules", "", "NAMES|none",
                 "names of your own beside the standard ones",
                 member<&options::own_modules, names_format<false>, option_kind::list>},
    option_entry{"offload-layers", "offload_layers", "", "LAYERS|all",
                 "only these layers offload, such as 0,2,4-7",
                 member<&options::offload_layers, layers_format, option_kind::list>},
    option_entry{
        "recompute-modules", "recompute_modules", "", "NAMES|none",
        "what the trainer discards in forward and computes again; it may not be offloaded as well",
        member<&options::recompute_modules, names_format<false>, option_kind::list>},
    option_entry{"max-inflight", "max_inflight", "fine-grained-offloading-max-inflight-offloads",
                 "COUNT|none|NAME:COUNT,...",
                 "offloads of one module under way; 0 waits at each commit",
                 codec{option_kind::value, &inflight_format::read, &inflight_format::write,
                       &inflight_format::negative}},
    option_entry{"max-inflight-bytes", "max_inflight_bytes", "", "SIZE|none",
                 "the same cap in bytes; prefer it where groups differ in size",
                 member<&options::max_inflight_bytes, optional_bytes>},
    option_entry{"min-tensor-elements", "min_tensor_elements", "min-offloaded-tensor-size", "COUNT",
                 "tensors with fewer elements stay on the device",
                 member<&options::min_tensor_elements, elements_format>},
    option_entry{
        "offload-fraction", "fraction", "activation-offload-fraction", "0..1",
        "share of the eligible groups of each chunk that leave, first in forward order first",
        member<&options::fraction, fraction_format>},
    option_entry{"delta-bytes-per-rank", "delta_bytes_per_rank",
                 "delta-offload-bytes-across-pp-ranks", "SIZE",
                 "bytes kept on the device, times the pipeline rank",
                 member<&options::delta_bytes_per_rank, bytes_format>},
    option_entry{"pipeline-rank", "pipeline_rank", "", "RANK", "pipeline rank of this process",
                 member<&options::pipeline_rank, number_format<int>>},
    option_entry{"margin", "margin", "", "",
                 "keep the last group of each module of the first backward chunk on the device",
                 member<&options::margin, toggle_format, option_kind::toggle>},
    option_entry{
        "policy", "policy", "", "megatron|automatic",
        "who decides which groups leave: the options above, or a plan for the device budget",
        member<&options::policy, policy_format>},
    option_entry{"recompute-by-plan", "recompute_by_plan", "", "",
                 "plans may discard what the trainer can compute again in backward",
                 member<&options::recompute_by_plan, toggle_format, option_kind::toggle>},
    option_entry{"timed-step", "timed_step", "", "COUNT",
                 "the step that an automatic plan is made of; later ones predicts better",
                 member<&options::timed_step, number_format<int>>},
    option_entry{
        "plan-effort", "plan_effort", "", "COUNT|none",
        "steps that each search for a plan may simulate at most; few for tests",
        member<&options::plan_effort, optional_format<number_format<std::size_t>, "none">>},
    option_entry{
        "reload-ahead", "reload_ahead", "", "COUNT",
        "groups that are reloaded ahead of their use; 0: on demand, 1000000: without limit",
        member<&options::reload_ahead, number_format<std::size_t>>},
    option_entry{"reload-ahead-bytes", "reload_ahead_bytes", "", "SIZE|none",
                 "the same in bytes, beside the other; prefer it where groups differ in size",
                 member<&options::reload_ahead_bytes, optional_bytes>},
    option_entry{
        "memory", "memory", "", "pool|arena|slots",
        "where saved tensors live on the device: growing, one fixed budget, rings of fixed slots",
        member<&options::memory, memory_format>},
    option_entry{"device-budget", "device_budget", "", "SIZE|none",
                 "device bytes for saved tensors; the arena needs it, the pool grows up to it",
                 member<&options::device_budget, optional_bytes>},
    option_entry{"slots", "slots", "", "SIZExCOUNT,...|none", "rings for --memory=slots",
                 member<&options::slots, rings_format>},
    option_entry{"device-step", "device_step", "", "SIZE", "bytes by which the device pool grows",
                 member<&options::device_step, bytes_format>},
    option_entry{"borrowed-slack", "borrowed_slack", "", "SIZE|none",
                 "borrowed bytes that may wait for copies; none: what the budget allows",
                 member<&options::borrowed_slack, optional_bytes>},
    option_entry{"copy-piece", "copy_piece", "", "SIZE",
                 "larger copies go in pieces of this size; 0: whole",
                 member<&options::copy_piece, bytes_format>},
    option_entry{"places", "places", "", "PLACES",
                 "where groups go that leave, the nearest first: host, or peer,host,file:/path",
                 codec{option_kind::list, &places_format::read, &places_format::write}},
    option_entry{"peer-device", "peer_device", "", "DEVICE",
                 "the neighbour whose memory the place 'peer' is",
                 member<&options::peer_device, number_format<int>>},
    option_entry{"peer-budget", "peer_budget", "", "SIZE|none",
                 "bytes of its memory that may be taken; the place 'peer' needs it",
                 member<&options::peer_budget, optional_bytes>},
    option_entry{"file-budget", "file_budget", "", "SIZE|none",
                 "bytes that the file of the place 'file:/path' may have, which needs it",
                 member<&options::file_budget, optional_bytes>},
    option_entry{"file-ring", "file_ring", "", "SIZE",
                 "bytes of pinned host memory that copies to and from the file pass through",
                 member<&options::file_ring, bytes_format>},
    option_entry{
        "host-budget", "host_budget", "", "SIZE|auto",
        "host bytes of this offloader; auto: what machine or cgroup has, over the local ranks",
        member<&options::host_budget, optional_format<bytes_format, "auto">>},
    option_entry{"host-step", "host_step", "", "SIZE",
                 "bytes by which the pinned host arena grows, and other places",
                 member<&options::host_step, bytes_format>},
    option_entry{
        "host-memory", "host_memory", "",
        "automatic|huge-pages|pinned|write-combined|system|managed",
        "what holds the host copies; huge pages registered with the driver where they can be had",
        member<&options::host_memory, host_kind_format>},
    option_entry{"host-bind", "host_bind", "", "",
                 "put huge pages on the NUMA node next to the device",
                 member<&options::host_bind, toggle_format, option_kind::toggle>},
    option_entry{
        "poison", "poison", "", "",
        "for tests: fill memory that is handed out or given back, so that stale reads show",
        member<&options::poison, toggle_format, option_kind::toggle>},
    option_entry{"local-ranks", "local_ranks", "", "COUNT",
                 "processes that share this machine's memory; 0: ask the launcher's environment",
                 member<&options::local_ranks, number_format<int>>},
};

/// The environment variable of an option: `TIDEPOOL_MAX_INFLIGHT`.
[[nodiscard]] inline std::string environment_name(const option_entry& item) {
  return variable_of(item.flag);
}

/// The option of a flag or of Megatron's name for it, in dashes; null when there is none.
[[nodiscard]] inline const option_entry* find_option(std::string_view flag) {
  for (const option_entry& item : option_table) {
    if (flag == item.flag || (!item.megatron.empty() && flag == item.megatron)) return &item;
  }
  return nullptr;
}

}  // namespace tidepool::detail::text
