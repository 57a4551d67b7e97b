/// What a run leaves for the report and the files.
#pragma once

#include <cstddef>
#include <string>
#include <tidepool/plan/step_plan.hpp>
#include <tidepool/trace/counters.hpp>
#include <tidepool/trace/record.hpp>
#include <utility>
#include <vector>

#include "../model/model_parts.hpp"
#include "../parallel/alone.hpp"

namespace moe {

/// What one run did.
struct run_result {
  std::string device;
  std::string options;  ///< those of the library, as text
  std::vector<float> losses;
  std::vector<float> mtp_losses;  ///< of multi-token prediction, mean of its depths; or none
  std::vector<double> step_ms;
  int warm_up_steps = 2;                           ///< in which the offloader finds out what to do
  std::vector<std::pair<int, float>> evaluations;  ///< step and loss on held-out text
  std::size_t driver_peak = 0;  ///< device bytes of everything, as the driver counts them
  tidepool::trace::counters counters;
  tidepool::trace::record trace;   ///< of the last step that was recorded
  double forecast_ms = 0;          ///< of a step, by the plan that was followed; 0 without one
  tidepool::plan::outcome plan;    ///< what that plan expects
  bool limited = false;            ///< experts have a capacity
  choice_counts choices;           ///< of all ranks
  loss_scaling loss_scale;         ///< at the end
  std::size_t order_mistakes = 0;  ///< that `--check-order` found in all runs
  std::string order_report;        ///< in words; empty without it
  std::vector<rank_totals> ranks;  ///< of all ranks; the rest is this rank's own
};

/// Milliseconds for which the traced step's compute waited for Tidepool.
inline double stall_ms(const run_result& run) {
  double us = 0;
  for (const tidepool::trace::span& span : run.trace.spans) {
    if (span.kind == tidepool::trace::span_kind::stall) us += span.end - span.start;
  }
  return us * 1e-3;
}

}  // namespace moe
