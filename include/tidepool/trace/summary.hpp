/// Counters as a table to read, for one rank or several.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/trace/counters.hpp"
#include "tidepool/trace/silent.hpp"

namespace tidepool::inline v0_3_0::trace {

/// The counters of one rank, and its name.
struct rank_counters {
  std::string rank;  ///< name of the rank
  counters totals;   ///< counters of this rank
};

/// Adds the counters of several ranks: modules by name, in order of first appearance. Steps are
/// those of the rank that went furthest; all other counts, peaks as well, are sums over the ranks.
[[nodiscard]] counters merge(std::span<const rank_counters> ranks);

/// Writes a table by module, its totals, and lines on memory; then a message for each silent
/// module. Modules that were not asked for are left out. A `rank_label` stands in the title. Locale
/// and format of `out` have no effect.
void write_summary(std::ostream& out, const counters& totals, std::string_view rank_label = "");

/// Like `write_summary` of one rank to `out`, with a rank column; the totals are over all ranks. A
/// module is silent if it is silent on every rank.
void write_summary(std::ostream& out, std::span<const rank_counters> ranks);

}  // namespace tidepool::trace

#if TIDEPOOL_DEFINITIONS
#include "tidepool/trace/detail/summary_impl.hpp"
#endif
