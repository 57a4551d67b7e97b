/// The command line of bench_step.
#pragma once

#include <string>

#include "settings.hpp"

namespace bench {

/// Reads and checks the arguments of `program`. Throws `tools::answer` for --help and --version,
/// and `tidepool::option_error`.
settings read_command_line(const std::string& program, int argc, char** argv);

}  // namespace bench
