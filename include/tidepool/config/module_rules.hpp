/// Rules for names of modules: they must be known, and fit each other.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/module_name.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/error.hpp"
#include "tidepool/module.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail::rules {

/// The label `option fraction (--offload-fraction or TIDEPOOL_OFFLOAD_FRACTION)`. The label has
/// both names, because options do not record which name gave the value.
[[nodiscard]] inline std::string option_label(std::string_view field, std::string_view flag = {}) {
  std::string name(flag.empty() ? field : flag);
  std::replace(name.begin(), name.end(), '_', '-');
  return "option " + std::string(field) + " (--" + name + " or " + text::variable_of(name) + ")";
}

[[noreturn]] inline void reject(const std::string& label, const std::string& value,
                                const std::string& problem, const std::string& remedy) {
  throw option_error("tidepool: " + label + " is " + text::in_quotes(value) + ": " + problem +
                     "; " + remedy);
}

[[nodiscard]] inline bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The names that checks accept, and the messages about others.
struct module_list {
  std::span<const std::string_view> known;
  bool open = true;

  [[nodiscard]] std::size_t index(std::string_view name) const {
    return static_cast<std::size_t>(std::find(known.begin(), known.end(), name) - known.begin());
  }

  [[nodiscard]] std::uint64_t bit(std::string_view name) const {
    const std::size_t i = index(name);
    return i < known.size() && i < max_modules ? std::uint64_t{1} << i : 0;
  }

  [[nodiscard]] std::uint64_t all() const {
    std::uint64_t mask = 0;
    for (const std::string_view name : known) mask |= bit(name);
    if (mask & (bit("expert_fc1") | bit("moe_act"))) mask &= ~bit("fused_group_mlp");
    return mask;
  }

  /// Returns `name` as a bit of the mask; refuses an unknown name, for the option `label`.
  [[nodiscard]] std::uint64_t require(std::string_view name, const std::string& label) const {
    if (const std::uint64_t mask = bit(name)) return mask;
    refuse(name, label);
  }

  /// Refuses a name in an option or a call, `label`.
  [[noreturn]] void refuse(std::string_view name, const std::string& label) const {
    if (open) {
      unknown(name, label, "is no known module", known,
              "Declare a module of your own in own_modules (--own-modules=NAME)");
    }
    unknown(name, label, "is not compiled into this program", known,
            "To compile it in: " + list_with(name));
  }

  /// The compile-time list with `name` added.
  [[nodiscard]] std::string list_with(std::string_view name) const {
    return "tidepool::modules<\"" + text::join(known, "\", \"") + "\", \"" + text::printable(name) +
           "\">";
  }

  [[noreturn]] static void unknown(std::string_view name, const std::string& label,
                                   const std::string& problem,
                                   std::span<const std::string_view> choices,
                                   const std::string& remedy) {
    const std::string_view close = text::nearest(name, choices);
    throw unknown_module(
        "tidepool: " + label + " names " + text::in_quotes(name) + ", which " + problem +
        (close.empty() ? ". " : "; did you mean " + text::in_quotes(close) + "? ") +
        "Known here: " + text::join(choices, ", ") + ". " + remedy);
  }
};

[[nodiscard]] inline std::uint64_t enabled_modules(const options& value, const module_list& list) {
  const std::string label = option_label("offload_modules");
  const std::vector<std::string>& names = value.offload_modules;
  for (const std::string_view word : {"all", "none"}) {
    if (std::find(names.begin(), names.end(), word) == names.end()) continue;
    if (names.size() == 1) return word == "all" ? list.all() : 0;
    reject(label, text::join(names, ","),
           text::in_quotes(word) + " cannot stand beside other names",
           "give either " + text::in_quotes(word) + " alone or the names");
  }
  std::uint64_t mask = 0;
  for (const std::string& name : names) mask |= list.require(name, label);
  return mask;
}

inline void check_own_modules(const options& value, const module_list& list) {
  const std::string label = option_label("own_modules");
  // The number is checked first, because the loop below compares each name with all others.
  const auto all = std::max(list.known.size(), value.own_modules.size());
  if (all > max_modules) {
    reject(label, std::to_string(value.own_modules.size()) + " names",
           "an offloader serves at most " + std::to_string(max_modules) + " modules, here are " +
               std::to_string(all),
           "give several of yours one name");
  }
  std::vector<std::string_view> seen;
  for (const std::string& name : value.own_modules) {
    const bool legible = std::all_of(name.begin(), name.end(), [](char c) {
      return text::to_lower(c) != text::to_upper(c) || (c >= '0' && c <= '9') || c == '_' ||
             c == '-' || c == '.' || c == '/';
    });
    if (name.empty() || name.front() == '-' || !legible || name == "all" || name == "none") {
      reject(label, name, "this cannot name a module",
             "use letters, digits, '_', '-', '.' and '/', and not the words all and none");
    }
    if (contains(seen, name)) reject(label, name, "the name stands twice", "take one out");
    if (list.open && contains(standard_modules, name)) {
      reject(label, name, "the name is a standard module already", "take it out of own_modules");
    }
    seen.push_back(name);
  }
  for (const std::string& name : value.own_modules) {
    static_cast<void>(list.require(name, label));
  }
}

/// Refuses to pack a module that is not offloaded.
inline void check_pack(const options& value, const module_list& list, std::uint64_t enabled) {
  const std::string label = option_label("pack");
  const std::string shown = text::join(value.pack, ",");
  for (const std::string& name : value.pack) {
    if (name == "all" && value.pack.size() == 1) return;
    if (name == "auto" && value.pack.size() == 1) {
      if (value.policy == policy_kind::automatic) return;
      reject(label, shown, "a plan decides whether tensors are packed, and this policy makes none",
             "add --policy=automatic, name the modules, or give all");
    }
    if ((enabled & list.require(name, label)) == 0) {
      reject(label, shown, name + " is not offloaded",
             "add " + name + " to --offload-modules, or take it out of --pack");
    }
  }
}

/// Refuses modules that cannot be offloaded together, or one without the other.
inline void check_combinations(const options& value, const module_list& list,
                               std::uint64_t enabled) {
  const std::string label = option_label("offload_modules");
  const std::string shown = text::join(value.offload_modules, ",");
  const auto on = [&](std::string_view name) { return (enabled & list.bit(name)) != 0; };
  if (on("attn_proj") && !on("core_attn")) {
    const bool missing = list.bit("core_attn") == 0;
    reject(label, shown,
           "attn_proj cannot leave without core_attn, whose backward needs the same tensor",
           "add core_attn" + std::string(missing ? " (and compile it in)" : "") +
               ", or take attn_proj out");
  }
  for (const std::string_view part : {"expert_fc1", "moe_act"}) {
    if (on("fused_group_mlp") && on(part)) {
      reject(label, shown, "fused_group_mlp already holds " + std::string(part),
             "take out either fused_group_mlp or " + std::string(part));
    }
  }
}

/// Refuses a module inside of a region that is recomputed whole.
inline void check_recompute(const options& value, const module_list& list, std::uint64_t enabled) {
  struct region {
    std::string_view whole, part;
  };
  constexpr std::array<region, 5> inside{{{"moe", "expert_fc1"},
                                          {"moe", "moe_act"},
                                          {"moe", "fused_group_mlp"},
                                          {"fused_group_mlp", "expert_fc1"},
                                          {"fused_group_mlp", "moe_act"}}};
  // Regions that discard the tensor of a module. With `all` most pairs are no mistake, because the
  // model then just lacks that module.
  constexpr std::array<region, 6> discards{{{"gdp_in_proj", "gdp_qkv"},
                                            {"layernorm", "qkv_linear"},
                                            {"moe_permute", "expert_fc1"},
                                            {"moe_permute", "fused_group_mlp"},
                                            {"mhc", "attn_norm"},
                                            {"mhc", "mlp_norm"}}};
  const bool by_all = value.offload_modules == std::vector<std::string>{"all"};
  const std::string label = option_label("recompute_modules");
  const std::string shown = text::join(value.recompute_modules, ",");
  std::vector<std::string_view> choices(list.known.begin(), list.known.end());
  choices.insert(choices.end(), recompute_regions.begin(), recompute_regions.end());
  for (const std::string& name : value.recompute_modules) {
    if (!contains(choices, name)) {
      const bool standard = contains(standard_modules, name);
      module_list::unknown(
          name, label,
          standard ? "is not compiled into this program" : "is nothing that can be recomputed",
          choices,
          list.open ? "Declare a region of your own in own_modules (--own-modules=NAME)"
                    : (standard ? "To compile it in: " : "To recompute a region of your own: ") +
                          list.list_with(name));
    }
    for (const region& pair : discards) {
      const bool counts = !by_all || name == "gdp_in_proj";
      if (name == pair.whole && counts && (enabled & list.bit(pair.part)) != 0) {
        const std::string part(pair.part);
        reject(label, shown, name + " discards the tensor that " + part + " offloads",
               "take " + part + " out of --offload-modules, or " + name +
                   " out of --recompute-modules");
      }
    }
    for (const region& pair : inside) {
      if (name == pair.whole && (enabled & list.bit(pair.part)) != 0) {
        const std::string part(pair.part);
        reject(label, shown, name + " is recomputed whole, and " + part + " inside it is offloaded",
               "take " + part + " out of --offload-modules, or recompute less than " + name);
      }
    }
  }
}

}  // namespace tidepool::detail::rules
