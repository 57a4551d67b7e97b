/// The table of all options. A new option needs one entry here and a member of `options`.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/config/formats.hpp"
#include "tidepool/config/list_formats.hpp"
#include "tidepool/config/place_rules.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail::text {

enum class option_kind : std::uint8_t {
  value,   ///< one value
  list,    ///< one value, or several words up to the next option
  toggle,  ///< `--name`, `--no-name`
  gate     ///< a toggle without a member; off, it empties `offload_modules`
};

[[nodiscard]] constexpr bool has_negative(std::size_t value) { return value > most; }
[[nodiscard]] constexpr bool has_negative(int value) { return value < 0; }
template <class Value>
[[nodiscard]] bool has_negative(const std::optional<Value>& value) {
  return value && has_negative(*value);
}
[[nodiscard]] inline bool has_negative(const std::vector<slot_ring>& value) {
  return std::ranges::any_of(
      value, [](const slot_ring& each) { return each.bytes > most || each.count > most; });
}

/// Reads and writes one member of `options`. Numbers have `negative`, which tells if code converted
/// a negative number to the value. Each function is compiled only if it is used.
template <auto Member, class Format, option_kind Kind = option_kind::value>
struct member {
  static constexpr option_kind kind = Kind;
  static void read(options& into, const setting& given) { into.*Member = Format::read(given); }
  static std::string write(const options& from) { return Format::write(from.*Member); }
  static bool negative(const options& from) requires requires { has_negative(from.*Member); }
  { return has_negative(from.*Member); }
};
struct inflight_member : inflight_format {
  static constexpr option_kind kind = option_kind::value;
};
struct places_member : places_format {
  static constexpr option_kind kind = option_kind::list;
};
struct gate {
  static constexpr option_kind kind = option_kind::gate;
};

using optional_bytes = optional_format<bytes_format>;

/// The results of `Make::of(flag, field, megatron, form, help, member)` for every option.
template <class Make>
inline constexpr std::array options_by{
    Make::of("offload-modules", "offload_modules", "", "NAMES|all|none",
             "modules whose saved tensors leave the device",
             member<&options::offload_modules, names_format<true>, option_kind::list>{}),
    Make::of("fine-grained-activation-offloading", "", "fine-grained-activation-offloading", "",
             "offloads nothing without --offload-modules; its --no- form empties that list",
             gate{}),
    Make::of("own-modules", "own_modules", "", "NAMES|none",
             "names of your own beside the standard ones",
             member<&options::own_modules, names_format<false>, option_kind::list>{}),
    Make::of("offload-layers", "offload_layers", "", "LAYERS|all",
             "only these layers offload, such as 0,2,4-7",
             member<&options::offload_layers, layers_format, option_kind::list>{}),
    Make::of("recompute-modules", "recompute_modules", "", "NAMES|none",
             "what is discarded in forward and computed again where the trainer offers it",
             member<&options::recompute_modules, names_format<false>, option_kind::list>{}),
    Make::of("max-inflight", "max_inflight", "fine-grained-offloading-max-inflight-offloads",
             "COUNT|none|NAME:COUNT,...",
             "offloads of one module under way; 0 waits at each commit", inflight_member{}),
    Make::of("max-inflight-bytes", "max_inflight_bytes", "", "SIZE|none",
             "the same cap in bytes; prefer it where groups differ in size",
             member<&options::max_inflight_bytes, optional_bytes>{}),
    Make::of("min-tensor-elements", "min_tensor_elements", "min-offloaded-tensor-size", "COUNT",
             "tensors with fewer elements stay on the device",
             member<&options::min_tensor_elements, elements_format>{}),
    Make::of("offload-fraction", "fraction", "activation-offload-fraction", "0..1",
             "share of the eligible groups of each chunk that leave, first in forward order first",
             member<&options::fraction, fraction_format>{}),
    Make::of("delta-bytes-per-rank", "delta_bytes_per_rank", "delta-offload-bytes-across-pp-ranks",
             "SIZE", "bytes kept on the device, times the pipeline rank",
             member<&options::delta_bytes_per_rank, megatron_bytes_format>{}),
    Make::of("pipeline-rank", "pipeline_rank", "", "RANK", "pipeline rank of this process",
             member<&options::pipeline_rank, number_format<int>>{}),
    Make::of("margin", "margin", "", "",
             "keep the last group of each module of the first backward chunk on the device",
             member<&options::margin, toggle_format, option_kind::toggle>{}),
    Make::of("policy", "policy", "", "megatron|automatic",
             "who decides which groups leave: the options above, or a plan for the device budget",
             member<&options::policy, policy_format>{}),
    Make::of("recompute-by-plan", "recompute_by_plan", "", "",
             "plans may discard what the trainer can compute again in backward",
             member<&options::recompute_by_plan, toggle_format, option_kind::toggle>{}),
    Make::of("timed-step", "timed_step", "", "COUNT|auto",
             "the step that an automatic plan is made of; auto: once computing has settled",
             member<&options::timed_step, optional_format<number_format<int>, "auto">>{}),
    Make::of("adopt-after", "adopt_after", "", "COUNT|auto",
             "steps after which a plan made beside the training is adopted; 0: it is made in line",
             member<&options::adopt_after, optional_format<number_format<std::size_t>, "auto">>{}),
    Make::of("plan-effort", "plan_effort", "", "COUNT|none",
             "steps that each search for a plan may simulate at most; few for tests",
             member<&options::plan_effort, optional_format<number_format<std::size_t>, "none">>{}),
    Make::of("reload-ahead", "reload_ahead", "", "COUNT",
             "groups that are reloaded ahead of their use; 0: on demand, 1000000: without limit",
             member<&options::reload_ahead, number_format<std::size_t>>{}),
    Make::of("reload-ahead-bytes", "reload_ahead_bytes", "", "SIZE|none",
             "the same in bytes, beside the other; prefer it where groups differ in size",
             member<&options::reload_ahead_bytes, optional_bytes>{}),
    Make::of(
        "memory", "memory", "", "pool|arena|slots",
        "where saved tensors live on the device: growing, one fixed budget, rings of fixed slots",
        member<&options::memory, memory_format>{}),
    Make::of("device-budget", "device_budget", "", "SIZE|none",
             "device bytes for saved tensors; the arena needs it, the pool grows up to it",
             member<&options::device_budget, optional_bytes>{}),
    Make::of("slots", "slots", "", "SIZExCOUNT,...|none", "rings for --memory=slots",
             member<&options::slots, rings_format>{}),
    Make::of("device-step", "device_step", "", "SIZE", "bytes by which the device pool grows",
             member<&options::device_step, bytes_format>{}),
    Make::of("borrowed-slack", "borrowed_slack", "", "SIZE|none",
             "borrowed bytes that may wait for copies; none: what the budget allows",
             member<&options::borrowed_slack, optional_bytes>{}),
    Make::of("pack", "pack", "", "NAMES|all|auto|none",
             "modules whose BF16 tensors are packed for the link to the host, bit for bit",
             member<&options::pack, names_format<true>, option_kind::list>{}),
    Make::of("copy-piece", "copy_piece", "", "SIZE",
             "larger copies go in pieces of this size; 0: whole",
             member<&options::copy_piece, bytes_format>{}),
    Make::of("places", "places", "", "PLACES",
             "where groups go that leave, the nearest first: host, or peer,host,file:/path",
             places_member{}),
    Make::of("peer-device", "peer_device", "", "DEVICE",
             "the neighbour whose memory the place 'peer' is",
             member<&options::peer_device, number_format<int>>{}),
    Make::of("peer-budget", "peer_budget", "", "SIZE|none",
             "bytes of its memory that may be taken; the place 'peer' needs it",
             member<&options::peer_budget, optional_bytes>{}),
    Make::of("file-budget", "file_budget", "", "SIZE|none",
             "bytes that the file of the place 'file:/path' may have, which needs it",
             member<&options::file_budget, optional_bytes>{}),
    Make::of("file-ring", "file_ring", "", "SIZE",
             "bytes of pinned host memory that copies to and from the file pass through",
             member<&options::file_ring, bytes_format>{}),
    Make::of("host-budget", "host_budget", "", "SIZE|auto",
             "host bytes of this offloader; auto: what machine or cgroup has, over the local ranks",
             member<&options::host_budget, optional_format<bytes_format, "auto">>{}),
    Make::of("host-step", "host_step", "", "SIZE",
             "bytes by which pinned host memory grows, and room in a file",
             member<&options::host_step, bytes_format>{}),
    Make::of(
        "host-memory", "host_memory", "",
        "automatic|huge-pages|pinned|write-combined|system|managed",
        "what holds the host copies; huge pages registered with the driver where they can be had",
        member<&options::host_memory, host_kind_format>{}),
    Make::of("host-bind", "host_bind", "", "", "put huge pages on the NUMA node next to the device",
             member<&options::host_bind, toggle_format, option_kind::toggle>{}),
    Make::of("poison", "poison", "", "",
             "for tests: fill memory that is handed out or given back, so that stale reads show",
             member<&options::poison, toggle_format, option_kind::toggle>{}),
    Make::of("local-ranks", "local_ranks", "", "COUNT",
             "processes that share this machine's memory; 0: ask the launcher's environment",
             member<&options::local_ranks, number_format<int>>{}),
    Make::of("summary", "summary", "", "", "print the totals by module when the training ends",
             member<&options::summary, toggle_format, option_kind::toggle>{}),
    Make::of("trace-step", "trace_step", "", "STEPS|none",
             "steps to record, from 1 on, such as 12 or 12,40,77; needs --trace-to",
             member<&options::trace_step, steps_format, option_kind::list>{}),
    Make::of("trace-to", "trace_to", "", "PREFIX|none",
             "each recorded step becomes PREFIX-STEP.json (Perfetto) and PREFIX-STEP.html",
             member<&options::trace_to, prefix_format>{}),
};

}  // namespace tidepool::detail::text
