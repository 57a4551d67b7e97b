/// Tables for the reader, JSON for everyone else, a plot of overhead against memory.
#pragma once

#include <string>
#include <vector>

#include "results.hpp"

namespace bench {

/// The table of times, a row each: its head, then all cases, those that did not run as well.
[[nodiscard]] std::vector<std::vector<std::string>> time_rows(const results& all);

/// To stdout.
void print(const results& all);

/// The JSON and the plot that were asked for; false (and said so) when one could not be written.
bool write_files(const results& all);

}  // namespace bench
