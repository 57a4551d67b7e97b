/// Rules for limits, sizes and kinds of memory, and for pairs of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "tidepool/config/formats.hpp"
#include "tidepool/config/list_formats.hpp"
#include "tidepool/config/module_rules.hpp"
#include "tidepool/config/option_table.hpp"
#include "tidepool/core/block.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail::rules {

// A member of `options`. `negative` tells if its value is negative; null if the member has no sign.
struct signed_option {
  std::string_view flag;
  std::string_view field;
  std::string_view form;
  std::string_view help;
  bool (*negative)(const options& from) = nullptr;
  std::string (*write)(const options& from) = nullptr;

  template <class Member>
  static constexpr signed_option of(std::string_view flag, std::string_view field,
                                    std::string_view /*megatron*/, std::string_view form,
                                    std::string_view help, Member /*member*/) {
    signed_option result{flag, field, form, help};
    if constexpr (requires(const options& from) { Member::negative(from); }) {
      result.negative = &Member::negative;
      result.write = &Member::write;
    }
    return result;
  }
};

/// Refuses negative counts, sizes and numbers, by the table of options. In code, -1 turns into a
/// huge count, which would remove the limit.
inline void check_negative(const options& value) {
  for (const auto& item : text::options_by<signed_option>) {
    if (item.negative == nullptr || !item.negative(value)) continue;
    const std::string word = item.form.find("none") != std::string_view::npos   ? "none"
                             : item.form.find("auto") != std::string_view::npos ? "auto"
                                                                                : "";
    reject(option_label(item.field, item.flag), item.write(value), std::string(text::negative),
           word.empty() ? "give 0 or more (" + std::string(item.help) + ")" : text::zero_or(word));
  }
}

inline void check_limits(const options& value, const module_list& list, std::uint64_t enabled) {
  const std::string caps = option_label("module_max_inflight", "max_inflight");
  for (const auto& [name, cap] : value.module_max_inflight) {
    if ((enabled & list.require(name, caps)) == 0) {
      reject(caps, name + ":" + std::to_string(cap), name + " is not offloaded",
             "add " + name + " to --offload-modules, or take its cap out");
    }
  }
  const std::string layers = option_label("offload_layers");
  for (const int layer : value.offload_layers) {
    if (layer < 0 || layer > text::max_layer) {
      reject(layers, std::to_string(layer), "there is no such layer",
             "layers count from 0 to " + std::to_string(text::max_layer));
    }
  }
  if (!value.offload_layers.empty() && enabled == 0) {
    reject(layers, text::layers_format::write(value.offload_layers),
           "no module of them is offloaded",
           "add --offload-modules=all for everything these layers save, or take the layers out");
  }
  // The condition is negated as a whole, so that it refuses a NaN, too.
  if (!(value.fraction >= 0.0 && value.fraction <= 1.0)) {
    reject(option_label("fraction", "offload_fraction"),
           text::fraction_format::write(value.fraction), "a fraction is in [0, 1]",
           "give 1 to offload every eligible group");
  }
  if (value.policy > policy_kind::automatic) {
    reject(option_label("policy"), text::policy_format::write(value.policy),
           "there is no such policy", "give " + std::string(text::policy_words::all));
  }
  if (value.timed_step && *value.timed_step < 2) {
    reject(option_label("timed_step"), std::to_string(*value.timed_step),
           "the first step cannot be timed, since memory is not in place yet", "give 2 or more");
  }
  if (value.plan_effort && *value.plan_effort == 0) {
    reject(option_label("plan_effort"), "0", "a plan is not found without simulating a step",
           "give 1 or more, or none for what is worth while");
  }
  if (value.policy == policy_kind::automatic && value.fraction < 1.0) {
    reject(option_label("fraction", "offload_fraction"),
           text::fraction_format::write(value.fraction),
           "with --policy=automatic the plan decides how much leaves",
           "take the fraction out, or give --policy=megatron");
  }
  if (value.policy == policy_kind::automatic && value.delta_bytes_per_rank > 0) {
    reject(option_label("delta_bytes_per_rank"),
           text::bytes_format::write(value.delta_bytes_per_rank),
           "with --policy=automatic the plan decides what stays",
           "take the delta out, or give --policy=megatron");
  }
  const auto times = static_cast<std::size_t>(std::max(value.pipeline_rank, 1));
  if (value.delta_bytes_per_rank > std::numeric_limits<std::size_t>::max() / times) {
    reject(option_label("delta_bytes_per_rank"),
           text::bytes_format::write(value.delta_bytes_per_rank),
           "times pipeline rank " + std::to_string(times) + " it does not fit 64 bits",
           "give a smaller size");
  }
}

inline void check_memory(const options& value) {
  const std::string kind = option_label("memory");
  const std::string rings = option_label("slots");
  const std::string budget = option_label("device_budget");
  if (value.memory > memory_kind::slots) {
    reject(kind, text::memory_format::write(value.memory), "there is no such kind of memory",
           "give pool, arena or slots");
  }
  if (value.host_memory > host_kind::managed) {
    reject(option_label("host_memory"), text::host_kind_format::write(value.host_memory),
           "there is no such kind of host memory", "give " + std::string(text::host_words::all));
  }
  if (value.device_budget == std::size_t{0}) {
    reject(budget, "0", "nothing fits it", "give a size such as 8GiB, or none");
  }
  if (value.host_budget == std::size_t{0}) {
    reject(option_label("host_budget"), "0", "nothing fits it",
           "give a size such as 64GiB, or auto");
  }
  if (value.memory == memory_kind::arena && !value.device_budget) {
    reject(kind, "arena", "an arena is one fixed allocation, and its size is not given",
           "add device_budget (--device-budget=8GiB)");
  }
  if (value.memory == memory_kind::slots && value.slots.empty()) {
    reject(kind, "slots", "no rings of slots are given", "add slots (--slots=64MiBx4,1MiBx2)");
  }
  if (value.memory != memory_kind::slots && !value.slots.empty()) {
    reject(rings, text::rings_format::write(value.slots),
           "rings have no effect with --memory=" + text::memory_format::write(value.memory),
           "add --memory=slots, or take the rings out");
  }
  std::size_t total = 0;
  for (const slot_ring& ring : value.slots) {
    const std::string shown = text::rings_format::write({ring});
    if (ring.bytes == 0 || ring.count == 0) {
      reject(rings, shown, "a ring needs slots of at least one byte, and at least one",
             "give SIZExCOUNT such as 64MiBx4");
    }
    const auto slot = aligned(ring.bytes);
    if (ring.count > (std::numeric_limits<std::size_t>::max() - total) / slot) {
      reject(rings, shown, "the rings together do not fit 64 bits", "give smaller rings");
    }
    total += slot * ring.count;
  }
  if (value.memory == memory_kind::slots && value.device_budget && total > *value.device_budget) {
    reject(rings, text::rings_format::write(value.slots),
           "the rings, in whole blocks of " + std::to_string(block_alignment) + " bytes, take " +
               text::bytes_format::write(total) + ", above device_budget " +
               text::bytes_format::write(*value.device_budget),
           "give smaller rings or raise --device-budget");
  }
  const auto step = [](std::size_t bytes, std::string_view field) {
    if (bytes == 0) {
      reject(option_label(field), "0", "memory cannot grow by nothing",
             "give a size such as 32MiB");
    }
  };
  step(value.device_step, "device_step");
  step(value.host_step, "host_step");
}

}  // namespace tidepool::detail::rules
