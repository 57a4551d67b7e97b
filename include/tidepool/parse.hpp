/// Options from text, from arguments and from the environment, and back to text.
///
/// Later sources win: `parse_options(argc, argv, from_environment(code))` reads code, then the
/// environment, then the command line. `validate` (in `validate.hpp`) checks the outcome.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0 {

/// The result of `parse_known_options`.
struct known_options {
  options value;                  ///< the options, read over the base
  std::vector<std::string> rest;  ///< arguments that are not Tidepool's, in their order
};

/// The flag that `name` most likely meant, such as `--max-inflight`; empty when none is close.
[[nodiscard]] std::string nearest_option(std::string_view name);

/// Reads arguments (without the program's name) over `base`.
///
/// `--name=value`, `--name value`, `--flag`, `--no-flag`; lists take commas, or blanks, or several
/// Accepts `--name=value`, `--name value`, `--flag`, `--no-flag`; lists take commas, or blanks, or
/// several arguments up to the next option (Megatron's form). Megatron's names are accepted, `_`
/// counts as `-`, and the last of a repeated option holds. Throws `option_error`.
[[nodiscard]] options parse_options(std::span<const std::string> arguments, options base = {});

/// Reads one line of `text`, split at blanks, over `base`. Throws `option_error`.
[[nodiscard]] options parse_options(std::string_view text, options base = {});

/// Reads the arguments of `main` (`argc`, `argv`), past the program's name, over `base`. Throws
/// `option_error`.
[[nodiscard]] options parse_options(int argc, const char* const* argv, options base = {});

/// Like `parse_options` of `arguments` over `base`, but keeps arguments that are not Tidepool's for
/// the trainer's own parser.
///
/// A trainer that refuses an argument of `rest` can ask `nearest_option` whether it was meant for
/// Tidepool. Beside positional arguments write lists with `=`: `--offload-modules a,b FILE` takes
/// FILE for a module, `--offload-modules=a,b FILE` does not.
[[nodiscard]] known_options parse_known_options(std::span<const std::string> arguments,
                                                options base = {});

/// Reads the arguments of `main` (`argc`, `argv`), past the program's name, over `base`. Throws
/// `option_error`.
[[nodiscard]] known_options parse_known_options(int argc, const char* const* argv,
                                                options base = {});

/// Like `parse_known_options` over `base`, but takes Tidepool's arguments out of `argv`, in place,
/// so that the trainer's own parser need not know them. The others keep their order.
///
/// `argv[argc]` is null afterwards. Throws `option_error`, and then changes nothing.
/// ```cpp
/// const auto options = tidepool::take_options(argc, argv);  // the first line of main
/// ```
[[nodiscard]] options take_options(int& argc, const char** argv, options base = {});
/// Like `take_options` of a `const char* argv[]`, with `argc`, `argv` and `base`.
[[nodiscard]] options take_options(int& argc, char** argv, options base = {});

/// Reads `TIDEPOOL_OFFLOAD_MODULES`, `TIDEPOOL_MAX_INFLIGHT` and so on over `base`.
///
/// `lookup(const char* name)` returns the text or null, as `std::getenv` does. Values have the
/// form of the flags'; a variable that is set but empty is refused. Throws `option_error`.
[[nodiscard]] options from_environment(options base,
                                       const std::function<const char*(const char*)>& lookup);

/// Reads the process's own environment over `base`. A variable whose name is close to one of
/// Tidepool's, such as `TIDEPOOL_OFFLOAD_MODULE`, is refused like a misspelt flag; other names may
/// be another program's.
[[nodiscard]] options from_environment(options base = {});

/// The options of `value` that differ from their defaults, as text that `parse_options` reads back.
///
/// Empty when all are defaults. Only options that `validate` accepts are sure to read back.
[[nodiscard]] std::string to_text(const options& value);

/// The text for a trainer's `--help`: every option with its default and its other names.
[[nodiscard]] std::string options_help();

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/config/parse_impl.hpp"
#endif
