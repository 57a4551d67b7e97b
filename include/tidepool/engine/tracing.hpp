// What an engine adds to a trace: the budget, memory without offload, and where passes begin and
// end.
#pragma once

#include <string>
#include <utility>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

TIDEPOOL_INLINE void engine::start_trace(std::string title, const void* origin) {
  trace_.start(std::move(title), store_.live(), store_.live_without(), origin);
  tracing_ = true;
}

TIDEPOOL_INLINE trace::record engine::finish_trace() {
  tracing_ = false;
  auto result = trace_.finish(order_.count());
  result.budget = opts_.device_budget.value_or(0);
  return result;
}

// A pass begins and ends where the latest call on a compute stream was.
TIDEPOOL_INLINE void engine::trace_pass(const chunk_state& chunk, bool backward,
                                        bool begins) noexcept {
  if (!tracing_ || trace_.copies(last_lane_)) return;
  trace_.pass(last_lane_, chunk.ordinal, backward, begins, chunk.info.microbatch,
              chunk.info.model_chunk);
}

}  // namespace tidepool::detail
