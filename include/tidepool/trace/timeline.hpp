/// A traced step as a file for Perfetto (ui.perfetto.dev) or `chrome://tracing`.
#pragma once

#include <iosfwd>
#include <span>

#include "tidepool/core/linkage.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace {

/// Writes steps, one after the other on one time axis, in the trace event format (JSON).
///
/// A lane is a thread, named as in the record; lanes of the same name continue over steps, and a
/// lane `steps` above them shows where each begins. A span is a complete event with module, layer,
/// microbatch, bytes and GB/s as arguments; a stall has its reason. A span that took no time is an
/// instant, and a stall that took none is left out. Device bytes are a counter, and the bytes
/// without offload another, beside the budget. Spans for which `placed` is false are left out. Look
/// at the state of `out` for errors.
void write_chrome_trace(std::ostream& out, std::span<const record> steps);

/// Like `write_chrome_trace` of several steps, for one.
void write_chrome_trace(std::ostream& out, const record& step);

}  // namespace tidepool::trace

#if TIDEPOOL_DEFINITIONS
#include "tidepool/trace/detail/timeline_impl.hpp"
#endif
