/// What plans predicted of whole steps, and what was recorded where the host waits for the device.
#pragma once

#include <cstdio>
#include <string>
#include <tidepool/plan/profile.hpp>

#include "results.hpp"

namespace bench {

/// Waits of the host for the whole device, as a plan's step has them: how much is computed between
/// the call before and the wait, and between the wait and the call behind it.
inline std::string waits_in(const tidepool::plan::profile& step) {
  using enum tidepool::plan::event_kind;
  std::string found;
  for (std::size_t i = 0; i < step.events.size(); ++i) {
    const auto& each = step.events[i];
    if (each.kind != synchronise) continue;
    auto next = i + 1;
    while (next + 1 < step.events.size() && step.events[next].kind == end_forward) ++next;
    const double after_us = next < step.events.size() ? step.events[next].compute_us : step.rest_us;
    char text[96];
    static_cast<void>(std::snprintf(text, sizeof text, "%s call %zu (%.3f + %.3f ms)",
                                    found.empty() ? "" : ",", i, each.compute_us / 1e3,
                                    after_us / 1e3));
    found += text;
  }
  return found.empty() ? " none" : found;
}

/// A line for each plan, of whole steps.
inline void print_predictions(const results& all) {
  for (const auto& each : all.cases) {
    if (each.forecast_ms <= 0 || each.steps.empty()) continue;
    const auto measured = median_of(each, [](const step_times& step) { return step.whole; });
    std::printf("%s: predicted %.2f, measured %.2f ms a step: %+.2f %%; of computing %.2f\n",
                each.plan.name.c_str(), each.forecast_ms * all.run.microbatches,
                measured * all.run.microbatches, 100 * (each.forecast_ms / measured - 1),
                (each.forecast_ms - each.forecast_stall_ms) * all.run.microbatches);
    std::printf("%s: recorded waits of the host for the device:%s\n", each.plan.name.c_str(),
                each.waits_of_host.c_str());
  }
}

}  // namespace bench
