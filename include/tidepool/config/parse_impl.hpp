// The bodies of parse.hpp.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/config/option_entries.hpp"
#include "tidepool/config/option_reader.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/options.hpp"
#include "tidepool/parse.hpp"

namespace tidepool::inline v0_3_0 {

TIDEPOOL_INLINE std::string nearest_option(std::string_view name) {
  return detail::text::nearest_flag(name);
}

TIDEPOOL_INLINE options parse_options(std::span<const std::string> arguments, options base) {
  return detail::text::argument_reader(arguments, std::move(base), nullptr).read();
}

TIDEPOOL_INLINE options parse_options(std::string_view text, options base) {
  const std::vector<std::string_view> words = detail::text::split_blanks(text);
  return parse_options(std::vector<std::string>(words.begin(), words.end()), std::move(base));
}

TIDEPOOL_INLINE options parse_options(int argc, const char* const* argv, options base) {
  return parse_options(std::vector<std::string>(argc > 0 ? argv + 1 : argv, argv + argc),
                       std::move(base));
}

TIDEPOOL_INLINE known_options parse_known_options(std::span<const std::string> arguments,
                                                  options base) {
  known_options result;
  result.value = detail::text::argument_reader(arguments, std::move(base), &result.rest).read();
  return result;
}

TIDEPOOL_INLINE known_options parse_known_options(int argc, const char* const* argv, options base) {
  return parse_known_options(std::vector<std::string>(argc > 0 ? argv + 1 : argv, argv + argc),
                             std::move(base));
}

TIDEPOOL_INLINE options take_options(int& argc, char** argv, options base) {
  return take_options(argc, const_cast<const char**>(argv), std::move(base));
}

TIDEPOOL_INLINE options take_options(int& argc, const char** argv, options base) {
  auto known = parse_known_options(argc, argv, std::move(base));
  if (argc < 1) return std::move(known.value);
  int kept = 1;
  // A single search finds the rest, because the rest is a subsequence of the arguments.
  for (int i = 1; i < argc && static_cast<std::size_t>(kept) <= known.rest.size(); ++i) {
    if (argv[i] == known.rest[static_cast<std::size_t>(kept) - 1]) argv[kept++] = argv[i];
  }
  argv[argc = kept] = nullptr;
  return std::move(known.value);
}

TIDEPOOL_INLINE options from_environment(options base,
                                         const std::function<const char*(const char*)>& lookup) {
  detail::text::option_reader reader(std::move(base));
  for (const detail::text::option_entry& item : detail::text::option_table) {
    std::string name = detail::text::environment_name(item);
    if (const char* const value = lookup(name.c_str())) reader.set(item, {std::move(name), value});
  }
  return std::move(reader).finish();
}

TIDEPOOL_INLINE options from_environment(options base) {
  detail::text::refuse_misspelt(::environ);
  return from_environment(std::move(base), [](const char* name) { return std::getenv(name); });
}

TIDEPOOL_INLINE std::string to_text(const options& value) {
  const options defaults;
  std::vector<std::string> flags;
  for (const detail::text::option_entry& item : detail::text::option_table) {
    if (item.kind == detail::text::option_kind::gate) continue;
    const std::string text = item.write(value);
    if (text == item.write(defaults)) continue;
    const std::string flag(item.flag);
    flags.push_back(item.kind != detail::text::option_kind::toggle ? "--" + flag + "=" + text
                    : text == "true"                               ? "--" + flag
                                                                   : "--no-" + flag);
  }
  return detail::text::join(flags, " ");
}

TIDEPOOL_INLINE std::string options_help() {
  const options defaults;
  std::string text;
  for (const detail::text::option_entry& item : detail::text::option_table) {
    const std::string flag(item.flag);
    text += "  --" +
            (item.form.empty() ? flag + ", --no-" + flag : flag + "=" + std::string(item.form));
    text += "\n      " + std::string(item.help) + "\n      [";
    if (item.write != nullptr) text += "default " + item.write(defaults) + "; ";
    text += detail::text::environment_name(item);
    if (item.megatron != item.flag && !item.megatron.empty()) {
      text += "; also --" + std::string(item.megatron);
    }
    text += "]\n";
  }
  text +=
      "SIZE is 512MiB and so on; KB, MB, GB, TB are powers of ten. 0 needs no unit.\n"
      "Lists take commas, or blanks up to the next option. '_' counts as '-'. The command line\n"
      "goes before the environment, and of a repeated option the last one holds.\n";
  return text;
}

}  // namespace tidepool
