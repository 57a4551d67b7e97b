/// The options of a program, read with CLI11 in the voice of `voice.hpp`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <tidepool/config/formats.hpp>
#include <tidepool/core/text.hpp>
#include <tidepool/error.hpp>
#include <tidepool/parse.hpp>
#include <vector>

#include "voice.hpp"

namespace tools {

/// Bytes as a command line has them: `512MiB`. Throws `tidepool::option_error`.
[[nodiscard]] inline std::size_t read_size(const std::string& option, const std::string& text) {
  namespace parts = tidepool::detail::text;
  const parts::setting given{option, parts::trim(text)};
  if (given.value.empty()) parts::refuse(given, "it is empty", parts::bytes_format::remedy);
  return parts::bytes_format::read(given);
}

class command_line : public CLI::App {
 public:
  explicit command_line(const about& program) : CLI::App(program.does, program.name) {
    set_version_flag("--version", version_text(program.name), "Print the version, and end");
    get_help_ptr()->description("Print this, and end");
    footer(endings_help);
  }

  /// Bytes with a unit.
  CLI::Option* add_size(const std::string& name, std::size_t& into, const std::string& help) {
    const auto read = [&into, name](const std::string& text) { into = read_size(name, text); };
    return add_option_function<std::string>(name, read, help)
        ->type_name("SIZE")
        ->default_str(tidepool::detail::text::bytes_format::write(into));
  }
  CLI::Option* add_file(const std::string& name, std::string& into, const std::string& help) {
    return add_option(name, into, help)->type_name("FILE");
  }
  /// The help names Tidepool's options as well, which another parser has taken.
  void add_library() {
    has_library_ = true;
    footer("Tidepool's options:\n" + tidepool::options_help() + "\n" + endings_help);
  }

  /// Reads the arguments. Throws `answer`, or `tidepool::option_error`.
  void read(int argc, const char* const* argv) {
    read(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  }
  void read(const std::vector<std::string>& words) {
    allow_extras();
    try {
      parse(std::vector<std::string>(words.rbegin(), words.rend()));
    } catch (const CLI::CallForHelp&) {
      throw answer{help()};
    } catch (const CLI::CallForVersion&) {
      throw answer{version()};
    } catch (const CLI::ParseError& e) {
      throw tidepool::option_error(one_line(e.what()) + "; see --help");
    }
    for (const auto& extra : remaining()) {
      refuse_argument(extra, nearest(extra.substr(0, extra.find('='))));
    }
  }

 private:
  [[nodiscard]] std::string nearest(const std::string& flag) const {
    if (has_library_) {
      const auto found = tidepool::nearest_option(flag);
      if (!found.empty()) return found;
    }
    std::vector<std::string> names;
    for (const auto* each : get_options()) {
      for (const auto& name : each->get_lnames()) names.push_back(name);
    }
    const auto dashes = flag.find_first_not_of('-');
    const std::vector<std::string_view> known(names.begin(), names.end());
    const auto found = tidepool::detail::text::nearest(
        dashes == std::string::npos ? "" : std::string_view(flag).substr(dashes), known);
    return found.empty() ? "" : "--" + std::string(found);
  }

  bool has_library_ = false;
};

}  // namespace tools
