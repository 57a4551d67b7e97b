/// Modules that were asked for and moved nothing: their names, and the reasons.
#pragma once

#include <string>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/trace/counters.hpp"

namespace tidepool::inline v0_3_0::trace {

/// True if a module was asked for and moved no byte, neither out nor in, nor was discarded by plan.
/// Ask after the first step.
[[nodiscard]] bool silent(const module_counters& module);

/// Names of the silent modules in `totals`.
[[nodiscard]] std::vector<std::string> silent_modules(const counters& totals);

/// The reason why a silent module moved nothing, as far as its counters tell, and the remedy.
[[nodiscard]] std::string why_silent(const module_counters& module);

/// One message for each silent module of `totals`, to be shown as it is. The message for a module
/// that was never committed has the nearest name. Before the end of the first step silent modules
/// are not known: if groups have left by then, the message says that.
[[nodiscard]] std::vector<std::string> silent_messages(const counters& totals);

}  // namespace tidepool::trace

#if TIDEPOOL_DEFINITIONS
#include "tidepool/trace/detail/silent_impl.hpp"
#endif
