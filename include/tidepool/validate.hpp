/// Checks of options before an offloader takes them, and the modules that they enable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/module.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0 {

/// The modules of an offloader with an open list: the standard names, then `own_modules`.
/// The views point into `value`.
[[nodiscard]] std::vector<std::string_view> open_module_list(const options& value);

/// The modules that `value` enables: bit i stands for `known_modules[i]`.
///
/// `all` enables every known module, except `fused_group_mlp` beside `expert_fc1` or `moe_act`,
/// which are its parts. `open` is true if the list is `open_module_list(value)`; messages then name
/// another remedy. Throws `unknown_module`; checks nothing else.
[[nodiscard]] std::uint64_t resolve_modules(const options& value,
                                            std::span<const std::string_view> known_modules,
                                            bool open);

/// The id of the module `name`: its index in `known_modules`. `open` as for `resolve_modules`.
/// Throws `unknown_module`, with the nearest name.
[[nodiscard]] module_id find_module(std::string_view name,
                                    std::span<const std::string_view> known_modules, bool open);

/// Checks every option, and every option against the others.
///
/// `known_modules` is the compile-time list, or `open_module_list(value)` when `open`. Rings that
/// the trainer computes are filled in before this call. Throws `unknown_module` or `option_error`;
/// both name option, value and remedy.
void validate(const options& value, std::span<const std::string_view> known_modules, bool open);

namespace detail {

// Adds to `pack` the enabled modules that the list `Modules` packs. `all` and `auto` include them
// already.
template <class Modules>
[[nodiscard]] options with_packed(options value, [[maybe_unused]] std::uint64_t enabled) {
  if constexpr (requires { Modules::packed_names; }) {
    if (!value.pack.empty() && (value.pack.front() == "all" || value.pack.front() == "auto")) {
      return value;
    }
    for (const auto name : Modules::packed_names) {
      const bool on = (enabled >> static_cast<unsigned>(Modules::id(name)) & 1U) != 0;
      if (on) value.pack.emplace_back(name);
    }
  }
  return value;
}

}  // namespace detail
}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/config/validate_impl.hpp"
#endif
