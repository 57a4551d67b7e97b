/// Tables for the reader, JSON for everyone else, a plot of overhead against memory.
#pragma once

#include "results.hpp"

namespace bench {

/// To stdout.
void print(const results& all);

/// The JSON and the plot that were asked for; false (and said so) when one could not be written.
bool write_files(const results& all);

}  // namespace bench
