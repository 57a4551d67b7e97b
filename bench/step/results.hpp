/// What was measured, as plain data, with the statistics and bounds that follow from it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <tidepool/trace/counters.hpp>
#include <tidepool/trace/record.hpp>
#include <vector>

#include "cases.hpp"

namespace bench {

/// GB/s of pinned copies alone, and of both directions together.
struct raw_rates {
  double out = 0;
  double in = 0;
  double both = 0;
};

/// From here on a copy counts as one of a large group, whose rate says what a link gives.
inline constexpr std::size_t large_group = std::size_t{64} << 20;

/// Milliseconds of one step, by events on the compute stream.
struct step_times {
  double whole = 0;     ///< a microbatch's share of the step, filling and draining included
  double steady = 0;    ///< a microbatch's share of the time while the pipeline is full
  double forward = 0;   ///< mean of the forward passes
  double backward = 0;  ///< mean of the backward passes
  double ready = 0;     ///< from the step's begin to the first group that may leave
};

/// Microseconds of host time inside Tidepool, for each commit and its restore.
struct host_cost {
  double pair = 0;   ///< of the two calls, with the host no more than a layer ahead
  double total = 0;  ///< the same with allocations and releases
  double ahead = 0;  ///< of the two calls in the timed steps, where the driver's queues may be full
};

/// What the traced step tells.
struct link_use {
  double out = 0;                       ///< GB/s while an offload was running
  double in = 0;                        ///< GB/s while a reload was running
  double stall = 0;                     ///< ms of a microbatch that compute waited at joins
  std::map<std::string, double> joins;  ///< the same by join
};

/// A whole step as one CUDA graph, against the same step by calls, in turns.
struct graph_times {
  std::vector<double> eager;             ///< ms of a microbatch, by events around the step
  std::vector<double> graph;             ///< the same
  std::vector<double> launch_us;         ///< host time of one launch, a step, on an idle device
  std::vector<double> launch_behind_us;  ///< of one behind another that still runs
};

struct case_result {
  planned_case plan;
  std::string failure;  ///< why it does not run, or not any further; empty when it does
  bool full = false;    ///< that is for want of memory
  std::vector<step_times> steps;
  host_cost host;
  link_use link;
  graph_times graph;
  std::vector<tidepool::trace::level> held;  ///< over one microbatch of the traced step
  double forecast_ms = 0;            ///< of a microbatch of the whole step, by the plan; 0 without
  double forecast_stall_ms = 0;      ///< the part of it that compute stands still
  std::vector<double> warm_ms;       ///< of a microbatch, of each step before any was measured
  double forecast_gap = 0;           ///< of the plan, as a share: at most so far above the best
  std::string waits_of_host;         ///< for the whole device, as recorded; in words
  double driver_bytes = 0;           ///< above the baseline, by cudaMemGetInfo
  double moved_bytes = 0;            ///< each way, of one microbatch
  double peer_bytes = 0;             ///< the part of it that goes to a neighbour
  raw_rates peer_rates;              ///< of large groups beside the step: medians, to and from it
  std::vector<double> lender_ms;     ///< of the neighbour's own work beside each measured step
  std::size_t late_allocations = 0;  ///< device and host, after the warm-up
  tidepool::trace::counters counters;
};

struct hardware {
  std::string gpu;
  std::string driver;
  std::string runtime;
  std::string blas;
  std::string host;
  std::string date;
  double device_bytes = 0;
};

struct results {
  settings run;
  hardware machine;
  raw_rates rates;
  raw_rates peer_rates;       ///< to the neighbour of the cases and back
  double baseline_bytes = 0;  ///< the driver's, before any case: weights, gradients, workspace
  bool alive = false;         ///< all cases were kept built
  std::vector<case_result> cases;
};

/// Of one at a time the whole step counts; of 1F1B the time while the pipeline is full.
inline double headline(const settings& run, const step_times& step) {
  return run.depth > 1 ? step.steady : step.whole;
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

template <class Read>
double median_of(const case_result& of, Read read) {
  std::vector<double> values;
  for (const auto& step : of.steps) values.push_back(read(step));
  return median(std::move(values));
}

inline std::vector<double> headlines(const settings& run, const case_result& of) {
  std::vector<double> values;
  for (const auto& step : of.steps) values.push_back(headline(run, step));
  return values;
}

/// Percent by which the one takes longer: the median over turns of the same round.
inline double percent_over(const std::vector<double>& of, const std::vector<double>& reference) {
  std::vector<double> ratios;
  const auto count = std::min(of.size(), reference.size());
  for (std::size_t i = 0; i < count; ++i) ratios.push_back(of[i] / reference[i]);
  return ratios.empty() ? 0 : 100 * (median(std::move(ratios)) - 1);
}

/// Percent by which `of` is slower than `reference`: the median over turns of the same round, so
/// that what drifts does not count. 0 without a reference.
inline double overhead(const settings& run, const case_result& of, const case_result* reference) {
  if (reference == nullptr) return 0;
  return percent_over(headlines(run, of), headlines(run, *reference));
}

inline const case_result* find_kind(const results& all, case_kind kind) {
  for (const auto& each : all.cases) {
    if (each.plan.kind == kind && each.failure.empty()) return &each;
  }
  return nullptr;
}

/// The floor that moves as much over each link as `of` does, or the nearest; null for a case that
/// moves nothing.
inline const case_result* floor_of(const results& all, const case_result& of) {
  if (of.plan.kind != case_kind::offload) return nullptr;
  const case_result* best = nullptr;
  const auto distance = [&](const case_result& floor) {
    const auto host = [](const case_result& each) { return each.moved_bytes - each.peer_bytes; };
    return std::abs(floor.peer_bytes - of.peer_bytes) + std::abs(host(floor) - host(of));
  };
  for (const auto& each : all.cases) {
    if (each.plan.kind != case_kind::floor || each.steps.empty()) continue;
    if (best == nullptr || distance(each) < distance(*best)) best = &each;
  }
  return best;
}

/// Medians of the rates of the neighbour's large groups in a traced step.
inline raw_rates peer_rates_of(const tidepool::trace::record& step) {
  std::vector<double> out;
  std::vector<double> in;
  for (const auto& span : step.spans) {
    if (span.bytes < large_group || !placed(step, span)) continue;
    const auto& lane = step.lanes[span.lane];
    auto* const into = lane == "offload peer" ? &out : lane == "reload peer" ? &in : nullptr;
    if (into == nullptr) continue;
    into->push_back(static_cast<double>(span.bytes) / (span.end - span.start) / 1e3);
  }
  return {median(std::move(out)), median(std::move(in)), 0};
}

/// GB/s while busy, and stalls, from a traced step.
inline link_use use_of(const tidepool::trace::record& step, int microbatches) {
  using kind = tidepool::trace::span_kind;
  const auto rate = [&](kind which) {
    double bytes = 0;
    double microseconds = 0;
    for (const auto& span : step.spans) {
      if (span.kind != which) continue;
      bytes += static_cast<double>(span.bytes);
      microseconds += span.end - span.start;
    }
    return microseconds > 0 ? bytes / microseconds / 1e3 : 0;
  };
  link_use use{rate(kind::offload), rate(kind::reload), 0, {}};
  for (const auto& span : step.spans) {
    if (span.kind != kind::stall) continue;
    const auto ms = (span.end - span.start) / 1e3 / microbatches;
    use.stall += ms;
    use.joins[span.name] += ms;
  }
  return use;
}

}  // namespace bench
