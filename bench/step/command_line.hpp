/// The command line of bench_step.
#pragma once

#include <optional>

#include "settings.hpp"

namespace bench {

/// Reads and checks the arguments. On --help, and on a mistake (which it prints), there are no
/// settings, and `exit_code` is what `main` returns.
std::optional<settings> read_command_line(int argc, char** argv, int& exit_code);

}  // namespace bench
