/// The options as the readers of text see them: names, forms, and functions that read and write.
#pragma once

#include <string>
#include <string_view>

#include "tidepool/config/formats.hpp"
#include "tidepool/config/option_table.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail::text {

struct option_entry {
  std::string_view flag;      ///< without the leading dashes
  std::string_view field;     ///< the member of `options`
  std::string_view megatron;  ///< Megatron's name if it differs
  std::string_view form;      ///< form of a value
  std::string_view help;      ///< one line, with the option to prefer
  option_kind kind = option_kind::value;
  /// `read` and `write` are null for a gate.
  void (*read)(options& into, const setting& given) = nullptr;
  std::string (*write)(const options& from) = nullptr;
};

struct entry_of_option {
  template <class Member>
  static constexpr option_entry of(std::string_view flag, std::string_view field,
                                   std::string_view megatron, std::string_view form,
                                   std::string_view help, Member /*member*/) {
    option_entry entry{flag, field, megatron, form, help, Member::kind};
    if constexpr (Member::kind != option_kind::gate) {
      entry.read = &Member::read;
      entry.write = &Member::write;
    }
    return entry;
  }
};
inline constexpr const auto& option_table = options_by<entry_of_option>;

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
