/// Silent modules: modules that were asked for and moved nothing, with the reason. A trainer would
/// otherwise not notice a misspelt name or a wrong limit.
#pragma once

#include <string>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/trace/counters.hpp"

namespace tidepool::inline v0_3_0::trace {

/// True if a module was asked for, moved no byte in either direction, and was not discarded by a
/// plan. The answer is meaningful after the first step.
[[nodiscard]] bool silent(const module_counters& module);

/// Names of the silent modules in `totals`.
[[nodiscard]] std::vector<std::string> silent_modules(const counters& totals);

/// The reason why a silent module moved nothing, as far as its counters show it, and the remedy.
[[nodiscard]] std::string why_silent(const module_counters& module);

/// A message for each silent module of `totals`, ready to be shown. The message for a module that
/// was never committed names the most similar module. Silent modules are unknown before the end of
/// the first step; if groups have left by then, the only message says that no step has ended.
/// A message also names each module of which more than a quarter does not fit the packed form.
[[nodiscard]] std::vector<std::string> silent_messages(const counters& totals);

}  // namespace tidepool::trace

#if TIDEPOOL_DEFINITIONS
#include "tidepool/trace/detail/silent_impl.hpp"
#endif
