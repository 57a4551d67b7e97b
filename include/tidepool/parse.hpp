/// Options from text, from arguments and from the environment, and back to text.
///
/// Later sources win: `parse_options(argc, argv, from_environment(code))` reads code, then the
/// environment, then the command line. `validate` (in `validate.hpp`) checks the outcome.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/detail/option_reader.hpp"
#include "tidepool/detail/option_table.hpp"
#include "tidepool/detail/text.hpp"
#include "tidepool/options.hpp"

namespace tidepool {

/// What `parse_known_options` found.
struct known_options {
  options value;
  std::vector<std::string> rest;  ///< the arguments that are not Tidepool's, in their order
};

/// The flag that `name` most likely meant, such as `--max-inflight`; empty when none is close.
[[nodiscard]] inline std::string nearest_option(std::string_view name) {
  return detail::text::nearest_flag(name);
}

/// Reads arguments (without the program's name) over `base`.
///
/// `--name=value`, `--name value`, `--flag`, `--no-flag`; lists take commas, or blanks, or several
/// arguments up to the next option (Megatron's form). Megatron's names are accepted, `_` counts as
/// `-`, and of a repeated option the last one holds. Throws `option_error`.
[[nodiscard]] inline options parse_options(std::span<const std::string> arguments,
                                           options base = {}) {
  return detail::text::argument_reader(arguments, std::move(base), nullptr).read();
}

/// Reads one line of text, split at blanks, over `base`.
[[nodiscard]] inline options parse_options(std::string_view text, options base = {}) {
  const std::vector<std::string_view> words = detail::text::split_blanks(text);
  return parse_options(std::vector<std::string>(words.begin(), words.end()), std::move(base));
}

/// Reads what `main` was given, past the program's name, over `base`.
[[nodiscard]] inline options parse_options(int argc, const char* const* argv, options base = {}) {
  return parse_options(std::vector<std::string>(argc > 0 ? argv + 1 : argv, argv + argc),
                       std::move(base));
}

/// As `parse_options`, but keeps what is not Tidepool's for the trainer's own parser.
///
/// A trainer that refuses an argument of `rest` can ask `nearest_option` whether it was meant for
/// Tidepool. Beside positional arguments write lists with `=`: `--offload-modules a,b FILE` takes
/// FILE for a module, `--offload-modules=a,b FILE` does not.
[[nodiscard]] inline known_options parse_known_options(std::span<const std::string> arguments,
                                                       options base = {}) {
  known_options result;
  result.value = detail::text::argument_reader(arguments, std::move(base), &result.rest).read();
  return result;
}

/// Reads what `main` was given, past the program's name, over `base`.
[[nodiscard]] inline known_options parse_known_options(int argc, const char* const* argv,
                                                       options base = {}) {
  return parse_known_options(std::vector<std::string>(argc > 0 ? argv + 1 : argv, argv + argc),
                             std::move(base));
}

/// As `parse_known_options`, but takes Tidepool's arguments out of what `main` was given, in place:
/// the trainer's own parser, which need not know of them, finds the others in their order.
///
/// `argv[argc]` is null afterwards. On an error nothing has changed.
/// ```cpp
/// const auto options = tidepool::take_options(argc, argv);  // the first line of main
/// ```
[[nodiscard]] inline options take_options(int& argc, char** argv, options base = {}) {
  auto known = parse_known_options(argc, argv, std::move(base));
  if (argc < 1) return std::move(known.value);
  int kept = 1;
  // Those that stay are some of those that were there, in the same order.
  for (int i = 1; i < argc && static_cast<std::size_t>(kept) <= known.rest.size(); ++i) {
    if (argv[i] == known.rest[static_cast<std::size_t>(kept) - 1]) argv[kept++] = argv[i];
  }
  argv[argc = kept] = nullptr;
  return std::move(known.value);
}

/// Reads `TIDEPOOL_OFFLOAD_MODULES`, `TIDEPOOL_MAX_INFLIGHT` and so on over `base`.
///
/// `lookup(const char* name)` returns the text or null, as `std::getenv` does. Values have the
/// form of the flags'; a variable that is set but empty is refused. Throws `option_error`.
template <class Lookup>
[[nodiscard]] options from_environment(options base, Lookup&& lookup) {
  detail::text::option_reader reader(std::move(base));
  for (const detail::text::option_entry& item : detail::text::option_table) {
    std::string name = detail::text::environment_name(item);
    if (const char* const value = lookup(name.c_str())) reader.set(item, {std::move(name), value});
  }
  return std::move(reader).finish();
}

/// Reads the process's own environment over `base`. A variable whose name is close to one of these
/// and none of them, such as `TIDEPOOL_OFFLOAD_MODULE`, is refused like a misspelt flag; one that
/// is not close may be somebody else's.
[[nodiscard]] inline options from_environment(options base = {}) {
  detail::text::refuse_misspelt(::environ);
  return from_environment(std::move(base), [](const char* name) { return std::getenv(name); });
}

/// The options that differ from their defaults, as text that `parse_options` reads back.
///
/// Empty when all are defaults. Only options that `validate` accepts are sure to read back.
[[nodiscard]] inline std::string to_text(const options& value) {
  const options defaults;
  std::vector<std::string> flags;
  for (const detail::text::option_entry& item : detail::text::option_table) {
    if (item.text.kind == detail::text::knob_kind::gate) continue;
    const std::string text = item.text.write(value);
    if (text == item.text.write(defaults)) continue;
    const std::string flag(item.flag);
    flags.push_back(item.text.kind != detail::text::knob_kind::toggle ? "--" + flag + "=" + text
                    : text == "true"                                  ? "--" + flag
                                                                      : "--no-" + flag);
  }
  return detail::text::join(flags, " ");
}

/// What a trainer prints under `--help`: every option with its default and its other names.
[[nodiscard]] inline std::string options_help() {
  const options defaults;
  std::string text;
  for (const detail::text::option_entry& item : detail::text::option_table) {
    const std::string flag(item.flag);
    text += "  --" +
            (item.form.empty() ? flag + ", --no-" + flag : flag + "=" + std::string(item.form));
    text += "\n      " + std::string(item.help) + "\n      [";
    if (item.text.write != nullptr) text += "default " + item.text.write(defaults) + "; ";
    text += detail::text::environment_name(item);
    if (item.megatron != item.flag && !item.megatron.empty()) {
      text += "; also --" + std::string(item.megatron);
    }
    text += "]\n";
  }
  text +=
      "SIZE is a number of bytes, or 512MiB and so on; KB, MB, GB, TB are powers of ten.\n"
      "Lists take commas, or blanks up to the next option. '_' counts as '-'. The command line\n"
      "goes before the environment, and of a repeated option the last one holds.\n";
  return text;
}

}  // namespace tidepool
