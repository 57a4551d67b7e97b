/// Counters as a table to read, for one rank or several, and what did not happen though asked for.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/trace/counters.hpp"

namespace tidepool::inline v0_2_0::trace {

/// The counters of one rank, and what to call it.
struct rank_counters {
  std::string rank;  ///< what to call it
  counters totals;   ///< of this rank
};

/// Adds the counters of several ranks: modules by name, in order of first appearance. Steps are
/// those of the rank that went furthest; all else, peaks as well, is the sum over the ranks.
[[nodiscard]] counters merge(std::span<const rank_counters> ranks);

/// Whether a module was asked for and moved no byte, neither out nor in, nor was discarded by plan.
/// Ask after the first step.
[[nodiscard]] bool silent(const module_counters& module);

/// Names of the silent modules in `totals`.
[[nodiscard]] std::vector<std::string> silent_modules(const counters& totals);

/// Why a silent module moved nothing, as far as its counters tell, and what to do about it.
[[nodiscard]] std::string why_silent(const module_counters& module);

/// One message for each silent module of `totals`, to be shown as it is; for one that was never
/// committed, with the nearest name. Before the end of the first step it
/// is not known which they are: where groups have left by then, the message is that it lacks.
[[nodiscard]] std::vector<std::string> silent_messages(const counters& totals);

/// Writes a table by module, its totals, and lines on memory; then a message for each silent
/// module. Modules that were not asked for are left out. `rank_label`, where there is one, stands
/// in the title. Locale and format of `out` do not count.
void write_summary(std::ostream& out, const counters& totals, std::string_view rank_label = "");

/// The same for several ranks, with a rank column; the totals are over all ranks. A module is
/// silent here when it is so on every rank.
void write_summary(std::ostream& out, std::span<const rank_counters> ranks);

}  // namespace tidepool::trace

#if TIDEPOOL_DEFINITIONS
#include "tidepool/trace/detail/summary_impl.hpp"
#endif
