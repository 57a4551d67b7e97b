// The bodies of validate.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tidepool/config/module_rules.hpp"
#include "tidepool/config/place_rules.hpp"
#include "tidepool/config/value_rules.hpp"
#include "tidepool/module.hpp"
#include "tidepool/options.hpp"
#include "tidepool/validate.hpp"

namespace tidepool::inline v0_3_0 {

TIDEPOOL_INLINE std::vector<std::string_view> open_module_list(const options& value) {
  std::vector<std::string_view> names(standard_modules.begin(), standard_modules.end());
  names.insert(names.end(), value.own_modules.begin(), value.own_modules.end());
  return names;
}

TIDEPOOL_INLINE std::uint64_t resolve_modules(const options& value,
                                              std::span<const std::string_view> known_modules,
                                              bool open) {
  return detail::rules::enabled_modules(value, {known_modules, open});
}

TIDEPOOL_INLINE module_id find_module(std::string_view name,
                                      std::span<const std::string_view> known_modules, bool open) {
  const detail::rules::module_list known{known_modules, open};
  const auto at = known.index(name);
  if (at == known_modules.size()) known.refuse(name, "module()");
  return static_cast<module_id>(at);
}

TIDEPOOL_INLINE void validate(const options& value, std::span<const std::string_view> known_modules,
                              bool open) {
  const detail::rules::module_list list{known_modules, open};
  detail::rules::check_negative(value);
  detail::rules::check_own_modules(value, list);
  const std::uint64_t enabled = detail::rules::enabled_modules(value, list);
  detail::rules::check_combinations(value, list, enabled);
  detail::rules::check_recompute(value, list, enabled);
  detail::rules::check_pack(value, list, enabled);
  detail::rules::check_limits(value, list, enabled);
  detail::rules::check_memory(value);
  detail::rules::check_places(value);
}

}  // namespace tidepool
