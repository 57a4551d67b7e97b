/// Walks over arguments and collects their settings.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/config/option_entries.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/error.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail::text {

/// The flag that `name` most likely meant, such as `--max-inflight`; empty when none is close.
[[nodiscard]] inline std::string nearest_flag(std::string_view name) {
  while (name.starts_with('-')) name.remove_prefix(1);
  std::vector<std::string_view> candidates;
  for (const option_entry& item : option_table) {
    // Names of members count, too, because `--fraction` means `--offload-fraction`.
    for (const std::string_view known : {item.flag, item.field, item.megatron}) {
      if (!known.empty()) candidates.push_back(known);
    }
  }
  const std::string_view close = nearest(name, candidates);
  if (close.empty()) return {};
  for (const option_entry& item : option_table) {
    if (close == item.field) return "--" + std::string(item.flag);
  }
  return "--" + std::string(close);
}

/// The variable that `name` most likely meant; empty when none is close. Other names with the
/// prefix are allowed, because build scripts and launchers may use them.
[[nodiscard]] inline std::string nearest_variable(std::string_view name) {
  constexpr std::string_view prefix = "TIDEPOOL_";
  if (!name.starts_with(prefix)) return {};
  std::string flag = nearest_flag(name.substr(prefix.size()));
  if (flag.empty()) return {};
  const std::string meant = environment_name(*find_option(flag.erase(0, 2)));
  return meant == name ? std::string() : meant;
}

/// Refuses a misspelt name among `variables`, each `NAME=value`, up to a null.
inline void refuse_misspelt(const char* const* variables) {
  for (; variables != nullptr && *variables != nullptr; ++variables) {
    const std::string_view given(*variables);
    const std::string_view name = given.substr(0, given.find('='));
    const std::string meant = nearest_variable(name);
    if (meant.empty()) continue;
    throw option_error("tidepool: unknown variable " + in_quotes(name) +
                       " in the environment; did you mean " + meant + "? Else rename or unset it");
  }
}

/// Collects settings over a base; `finish` returns the options.
class option_reader {
 public:
  explicit option_reader(options base) : value_(std::move(base)) {}

  void set(const option_entry& item, setting given) {
    given.value = trim(given.value);
    if (given.value.empty()) {
      refuse(given, "the value is empty",
             "give " + std::string(item.form.empty() ? "true or false" : item.form) +
                 ", or leave the option out");
    }
    if (item.kind != option_kind::gate) return item.read(value_, given);
    gate_ = toggle_format::read(given);
    gate_name_ = given.name;
  }

  /// Throws `option_error` when the gate is on but no module is named.
  [[nodiscard]] options finish() && {
    if (gate_ == false) value_.offload_modules.clear();
    if (gate_ == true && value_.offload_modules.empty()) {
      const std::string remedy =
          gate_name_.starts_with("TIDEPOOL_") ? "TIDEPOOL_OFFLOAD_MODULES=" : "--offload-modules=";
      refuse({gate_name_, "true"}, "alone it offloads nothing, and no module is named",
             "add " + remedy +
                 "core_attn (or other names, or all); naming modules is enough, "
                 "without this option");
    }
    return std::move(value_);
  }

 private:
  options value_;
  std::optional<bool> gate_;  ///< the last value of `fine-grained-activation-offloading`
  std::string gate_name_;
};

/// Walks over arguments: `--name=value`, `--name value`, `--name a b c`, `--name`, `--no-name`.
class argument_reader {
 public:
  /// Arguments that are not Tidepool's are added to `rest`, or refused if `rest` is null.
  argument_reader(std::span<const std::string> arguments, options base,
                  std::vector<std::string>* rest)
      : arguments_(arguments), into_(std::move(base)), rest_(rest) {}

  [[nodiscard]] options read() && {
    while (next_ < arguments_.size()) {
      const std::string& argument = arguments_[next_++];
      if (argument == "--") {
        // The trainer's parser must see `--`, too, because it ends the options.
        if (rest_ != nullptr) rest_->push_back(argument);
        while (next_ < arguments_.size()) foreign(arguments_[next_++]);
      } else if (!argument.starts_with("--")) {
        foreign(argument);
      } else {
        read_flag(argument);
      }
    }
    return std::move(into_).finish();
  }

 private:
  void read_flag(const std::string& argument) {
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    std::optional<std::string_view> value;
    if (equals != std::string::npos) value = std::string_view(argument).substr(equals + 1);

    std::string flag = name.substr(2);
    for (char& c : flag) c = c == '_' ? '-' : c;
    if (const option_entry* const item = find_option(flag)) {
      previous_ = item;
      if (is_toggle(*item)) {
        into_.set(*item, {name, value ? *value : toggle_word()});
      } else if (value) {
        into_.set(*item, {name, *value});
      } else {
        const std::string words = following_words(*item);
        into_.set(*item, {name, words});
      }
      return;
    }
    const option_entry* const negated =
        flag.starts_with("no-") ? find_option(flag.substr(3)) : nullptr;
    if (negated == nullptr) return foreign(argument);
    const std::string positive = "--" + std::string(negated->flag);
    if (!is_toggle(*negated)) {
      throw option_error("tidepool: option " + name + " is unknown: " + positive +
                         " takes a value; give " + positive + "=" + std::string(negated->form));
    }
    if (value) {
      refuse({name, *value}, "the --no- form takes no value", "use " + positive + "=true or false");
    }
    into_.set(*negated, {name, "false"});
  }

  static bool is_toggle(const option_entry& item) {
    return item.kind == option_kind::toggle || item.kind == option_kind::gate;
  }

  std::string_view toggle_word() {
    if (next_ < arguments_.size() && toggle_format::word(arguments_[next_])) {
      return arguments_[next_++];
    }
    return "true";
  }

  /// The next word, or for a list all words up to the next option, blanks between them.
  std::string following_words(const option_entry& item) {
    std::string words;
    while (next_ < arguments_.size()) {
      const std::string_view word = arguments_[next_];
      if (word.starts_with("--")) break;
      const bool list = item.kind == option_kind::list;
      // A single dash before a letter begins a short option of the trainer; before a digit it is a
      // negative number, which is refused later.
      if (list && word.size() > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9')) break;
      words.append(words.empty() ? "" : " ").append(word);
      ++next_;
      if (!list) break;
    }
    return words;
  }

  void foreign(const std::string& argument) {
    if (rest_ != nullptr) {
      rest_->push_back(argument);
      return;
    }
    const std::string shown = in_quotes(argument);
    if (!argument.starts_with("--")) {
      const bool after_list = previous_ != nullptr && previous_->kind == option_kind::list;
      throw option_error("tidepool: the argument " + shown + " belongs to no option; " +
                         (after_list ? "separate the values of --" + std::string(previous_->flag) +
                                           " by commas, as in a,b"
                                     : std::string("options begin with two dashes, as in "
                                                   "--offload-modules=core_attn")));
    }
    const std::string close = nearest_flag(argument.substr(0, argument.find('=')));
    std::vector<std::string> flags;
    flags.reserve(option_table.size());
    for (const option_entry& item : option_table) flags.push_back("--" + std::string(item.flag));
    throw option_error("tidepool: unknown option " + shown + "; " +
                       (close.empty()
                            ? "parse_known_options passes over those of others; Tidepool's are " +
                                  join(flags, ", ")
                            : "did you mean " + close + "?"));
  }

  std::span<const std::string> arguments_;
  std::size_t next_ = 0;
  option_reader into_;
  std::vector<std::string>* rest_;
  const option_entry* previous_ = nullptr;
};

}  // namespace tidepool::detail::text
