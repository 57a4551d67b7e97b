/// Tables for the reader, JSON for everyone else, a plot of overhead against memory.
#pragma once

#include <string>
#include <vector>

#include "../../examples/tools/json_file.hpp"
#include "results.hpp"

namespace bench {

/// The table of times, a row each: its head, then all cases, those that did not run as well.
[[nodiscard]] std::vector<std::vector<std::string>> time_rows(const results& all);

/// To stdout.
void print(const results& all);

/// The JSON and the plot that were asked for as files; false (and said so) when one could not be
/// written.
bool write_files(const results& all);

/// The JSON of `--json -`.
void fill(tools::json_file& out, const results& all);

}  // namespace bench
