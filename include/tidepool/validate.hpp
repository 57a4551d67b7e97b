/// What options must satisfy before an offloader takes them, and which modules they enable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/detail/module_rules.hpp"
#include "tidepool/detail/value_rules.hpp"
#include "tidepool/module.hpp"
#include "tidepool/options.hpp"

namespace tidepool {

/// The modules of an offloader with an open list: the standard names, then `own_modules`.
/// The views point into `value`.
[[nodiscard]] inline std::vector<std::string_view> open_module_list(const options& value) {
  std::vector<std::string_view> names(standard_modules.begin(), standard_modules.end());
  names.insert(names.end(), value.own_modules.begin(), value.own_modules.end());
  return names;
}

/// The modules that `value` enables: bit i stands for `known_modules[i]`.
///
/// `all` enables every known module, except `fused_group_mlp` beside `expert_fc1` or `moe_act`,
/// which are its parts. Throws `unknown_module`; checks nothing else.
[[nodiscard]] inline std::uint64_t resolve_modules(const options& value,
                                                   std::span<const std::string_view> known_modules,
                                                   bool open) {
  return detail::rules::enabled_modules(value, {known_modules, open});
}

/// Checks every option, and options against each other.
///
/// `known_modules` is the compile-time list, or `open_module_list(value)` when `open`. Rings that
/// the trainer computes are filled in before this call. Throws `unknown_module` or `option_error`,
/// which name option, value and remedy.
inline void validate(const options& value, std::span<const std::string_view> known_modules,
                     bool open) {
  const detail::rules::module_list list{known_modules, open};
  detail::rules::check_own_modules(value, list);
  const std::uint64_t enabled = detail::rules::enabled_modules(value, list);
  detail::rules::check_combinations(value, list, enabled);
  detail::rules::check_recompute(value, list, enabled);
  detail::rules::check_limits(value, list, enabled);
  detail::rules::check_memory(value);
}

}  // namespace tidepool
