/// The one voice of all programs here: `--help`, `--version`, mistakes told in one line, and exit
/// statuses. It needs nothing but Tidepool; `command_line.hpp` adds options of a program's own.
#pragma once

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <tidepool/error.hpp>
#include <tidepool/parse.hpp>
#include <tidepool/plan/refusal.hpp>
#include <tidepool/version.hpp>

namespace tools {

/// Exit statuses of every program.
enum ending : int {
  done = 0,
  failed = 1,   ///< the run failed, or a check that it makes did not hold
  misused = 2,  ///< options, files or budgets that cannot work
};
inline constexpr const char* endings_help =
    "Exit status:\n"
    "  0  done\n"
    "  1  the run failed, or what it checks or promises does not hold\n"
    "  2  wrong use: options, files or budgets that cannot work\n";

/// A program, for its own texts.
struct about {
  std::string name;
  std::string does;  ///< a sentence
};

/// The text of `--help` or `--version`. Parsers throw it, and the program ends with `done`.
struct answer {
  std::string text;
};

[[nodiscard]] inline std::string version_text(const std::string& name) {
  const tidepool::version have;
  return name + " (Tidepool) " + std::to_string(have.major) + "." + std::to_string(have.minor) +
         "." + std::to_string(have.patch) + "\n";
}

/// A message in one line, without the name that the library puts in front: the program says its
/// own.
[[nodiscard]] inline std::string one_line(std::string_view message) {
  if (message.starts_with("tidepool: ")) message.remove_prefix(10);
  std::string text(message);
  while (text.ends_with('\n')) text.pop_back();
  for (auto& c : text) c = c == '\n' ? ' ' : c;
  return text;
}

/// Refuses an argument that no parser knows. `near` may be the option that was meant.
[[noreturn]] inline void refuse_argument(const std::string& argument, const std::string& near) {
  throw tidepool::option_error(argument + ": no such option; " +
                               (near.empty() ? "" : "did you mean " + near + "? ") + "see --help");
}

/// The text of an exception, and the exit status that it means.
struct outcome {
  std::string text;
  int status = failed;

  /// The outcome that the exception under way is.
  static outcome of_exception() {
    try {
      throw;
    } catch (const answer& asked) {
      return {asked.text, done};
    } catch (const tidepool::option_error& e) {
      return {one_line(e.what()), misused};
    } catch (const tidepool::out_of_budget& e) {
      return {one_line(e.what()), misused};
    } catch (const tidepool::plan::profile_error& e) {
      return {one_line(e.what()), misused};
    } catch (const std::exception& e) {
      return {one_line(e.what()), failed};
    }
  }
};

/// Prints an answer, or the one line of a mistake; returns the exit status.
inline int tell(const std::string& program, const outcome& what) {
  std::fflush(stdout);
  if (what.status == done) {
    std::fputs(what.text.c_str(), stdout);
  } else {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), what.text.c_str());
  }
  return what.status;
}

/// The whole of a `main`: `body` returns the exit status.
template <class Body>
int run(const std::string& program, const Body& body) {
  try {
    return body();
  } catch (...) {
    return tell(program, outcome::of_exception());
  }
}

/// Answers `--help` and `--version`, and refuses every other argument, for a program without
/// options of its own. `options` is the help of those that another parser has taken already.
inline void no_options(const about& program, int argc, const char* const* argv,
                       const std::string& options = {}) {
  const std::string head = options.empty() ? "" : " [OPTION]...";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") {
      throw answer{program.does + "\nUsage: " + program.name + head + "\n\nOptions:\n" + options +
                   "  --help\n      print this, and end\n  --version\n      print the version, "
                   "and end\n\n" +
                   endings_help};
    }
    if (word == "--version") throw answer{version_text(program.name)};
    const auto flag = word.substr(0, word.find('='));
    refuse_argument(word, options.empty() ? "" : tidepool::nearest_option(flag));
  }
}

}  // namespace tools
