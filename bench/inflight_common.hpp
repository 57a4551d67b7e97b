/// What both halves of bench_inflight share: the axes, the trainer that is timed, its figures.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "../examples/caps/trainer.hpp"

namespace inflight {

namespace tp = tidepool;

/// One point of the axes.
struct point {
  const char* name;
  caps::schedule order;
  std::size_t group_mib;
  double ratio;  ///< compute time of a group, in forward as in backward, over its copy time
  std::optional<std::size_t> cap;

  [[nodiscard]] caps::workload work() const { return {order, group_mib << 20}; }
};

/// The axes.
inline std::vector<point> all_points() {
  std::vector<point> points;
  struct named {
    const char* name;
    caps::schedule order;
  };
  for (const auto& [name, order] :
       {named{"one_microbatch", {1, 1}}, named{"1f1b_depth_2", {2, 4}}}) {
    for (const std::size_t mib : {1U, 16U, 64U}) {
      for (const double ratio : {0.5, 1.0, 2.0}) {
        for (const std::optional<std::size_t> cap :
             {std::optional<std::size_t>{}, {0}, {1}, {2}, {4}, {8}}) {
          points.push_back({name, order, mib, ratio, cap});
        }
      }
    }
  }
  return points;
}

/// One row: the trainer without offload, then with; counters of the timed steps, and the stalls and
/// bytes of one more that is traced.
template <class Machine>
void measure(benchmark::State& state, const point& at) try {
  Machine machine;
  const auto none = caps::options_for(at.work());
  const auto compute_ns = at.ratio * caps::copy_ns(machine, at.work());
  const auto compute_us = caps::trainer<Machine>(machine, at.work(), compute_ns, none).step_us();

  auto opts = none;
  opts.offload_modules = {"expert_fc1"};
  opts.max_inflight = at.cap;
  caps::trainer<Machine> work(machine, at.work(), compute_ns, opts);
  const auto before = work.counters().modules[0];
  double whole_us = 0;
  for (auto _ : state) {
    const auto step_us = work.step_us();
    state.SetIterationTime(step_us / 1e6);
    whole_us += step_us / static_cast<double>(state.max_iterations);
  }
  const auto totals = work.counters();
  const auto& after = totals.modules[0];
  const auto moved =
      after.bytes_offloaded - before.bytes_offloaded + after.bytes_reloaded - before.bytes_reloaded;

  const caps::traced seen(work.traced_step());
  const auto share = [&](double us) { return std::round(us / whole_us * 1e4) / 1e4; };
  const auto in_mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  state.SetBytesProcessed(static_cast<std::int64_t>(moved));
  state.counters["over_compute"] = whole_us / compute_us;
  state.counters["stall"] = share(seen.stall_us);
  state.counters["stall_cap"] = share(seen.cap_us);
  state.counters["peak_MiB"] = in_mib(seen.held);
  state.counters["pool_MiB"] = in_mib(totals.device_peak);
} catch (const std::exception& failure) {
  state.SkipWithError(failure.what());
}

/// Registers every point of the axes for one machine; `steps` are timed.
template <class Machine>
void register_all(const std::string& device, int steps) {
  for (const auto& at : all_points()) {
    const auto ratio = std::to_string(at.ratio);
    const auto name = device + "/" + at.name + "/" + std::to_string(at.group_mib) +
                      "MiB/compute_x" + ratio.substr(0, 3) + "/cap_" +
                      (at.cap ? std::to_string(*at.cap) : "none");
    benchmark::RegisterBenchmark(name.c_str(), measure<Machine>, at)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(steps);
  }
}

/// The CUDA half; where no GPU is found it says so and registers nothing.
void register_cuda();

}  // namespace inflight
