/// Writes traced steps as a file for Perfetto (ui.perfetto.dev) or `chrome://tracing`.
#pragma once

#include <iosfwd>
#include <span>

#include "tidepool/core/linkage.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace {

/// Writes steps, one after another on one time axis, in the trace event format (JSON).
///
/// A lane is a thread with the name that it has in the record. Lanes of the same name continue over
/// steps, and a lane `steps` above them shows where each step begins. A span is a complete event;
/// its arguments are module, layer, microbatch, bytes and GB/s; a stall has its reason, too. A span
/// of no duration is an instant; a stall of no duration is left out. Device bytes, and the bytes
/// without offload, are counters, beside the budget. Spans for which `placed` is false are left
/// out. Check the state of `out` for errors.
void write_chrome_trace(std::ostream& out, std::span<const record> steps);

/// Writes one step as `write_chrome_trace` writes several.
void write_chrome_trace(std::ostream& out, const record& step);

}  // namespace tidepool::trace

#if TIDEPOOL_DEFINITIONS
#include "tidepool/trace/detail/timeline_impl.hpp"
#endif
