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

namespace inflight {

namespace tp = tidepool;

/// Forward passes ahead of their backward, at most, and microbatches of a step.
struct schedule {
  const char* name;
  int in_flight;
  int microbatches;
};

/// One point of the axes.
struct point {
  schedule order;
  std::size_t group_mib;
  double ratio;  ///< compute time of a group, in forward as in backward, over its copy time
  std::optional<std::size_t> cap;

  [[nodiscard]] std::size_t group_bytes() const { return group_mib << 20; }
};

/// The axes.
inline std::vector<point> all_points() {
  std::vector<point> points;
  for (const auto& order : {schedule{"one_microbatch", 1, 1}, schedule{"1f1b_depth_2", 2, 4}}) {
    for (const std::size_t mib : {1U, 16U, 64U}) {
      for (const double ratio : {0.5, 1.0, 2.0}) {
        for (const std::optional<std::size_t> cap :
             {std::optional<std::size_t>{}, {0}, {1}, {2}, {4}, {8}}) {
          points.push_back({order, mib, ratio, cap});
        }
      }
    }
  }
  return points;
}

constexpr std::size_t groups = 8;  // of one microbatch

/// A trainer of one module, whose kernels do nothing but take their time.
///
/// `Machine` has a device `dev`, `busy(stream, ns)`, which queues a kernel of that duration, and
/// `scale`: how many bytes each byte that really moves stands for.
template <class Machine>
class trainer {
 public:
  using device = decltype(Machine::dev);

  trainer(Machine& machine, const point& at, double compute_ns, const tp::options& opts)
      : machine_(machine),
        order_(at.order),
        bytes_(at.group_bytes() / Machine::scale),
        compute_ns_(compute_ns),
        off_(machine.dev, opts),
        passes_(static_cast<std::size_t>(at.order.in_flight)) {
    step_us();  // the first step settles what stays, the second has the memory that it needs
    step_us();
  }

  /// Blocks the host; every step begins and ends with an idle device.
  double step_us() {
    // Work to wait behind, so that the host is ahead of the device from the first group on.
    machine_.busy(stream_.ref(), 2e5);
    machine_.dev.record(begin_, stream_.ref());
    step();
    machine_.dev.record(end_, stream_.ref());
    machine_.dev.synchronize();
    return machine_.dev.elapsed_us(begin_, end_);
  }

  /// What one more step did.
  [[nodiscard]] tp::trace::record traced_step() {
    off_.start_trace("step", stream_.ref());
    step_us();
    return off_.finish_trace();
  }

  [[nodiscard]] tp::trace::counters counters() const { return off_.counters(); }

 private:
  using offloader = tp::offloader<device, tp::modules<"expert_fc1">>;

  struct pass {
    typename offloader::chunk chunk;
    std::array<typename offloader::buffer, groups> saved;
  };

  void step() {
    for (int ahead = 0, done = 0; done < order_.microbatches;) {
      if (ahead < order_.microbatches && ahead - done < order_.in_flight) {
        forward(ahead++);
      } else {
        backward(done++);
      }
    }
    off_.end_step();
  }

  void forward(int microbatch) {
    auto& [chunk, saved] = passes_[static_cast<std::size_t>(microbatch % order_.in_flight)];
    chunk = off_.begin({.microbatch = microbatch});
    for (std::size_t i = 0; i < groups; ++i) {
      saved[i] = off_.allocate(bytes_, stream_.ref());
      machine_.busy(stream_.ref(), compute_ns_);
      chunk.template commit<"expert_fc1">(static_cast<int>(i), stream_.ref(), saved[i]);
    }
    chunk.end_forward();
  }

  void backward(int microbatch) {
    auto& [chunk, saved] = passes_[static_cast<std::size_t>(microbatch % order_.in_flight)];
    for (std::size_t i = groups; i-- > 0;) {
      chunk.template restore<"expert_fc1">(static_cast<int>(i), stream_.ref(), saved[i]);
      machine_.busy(stream_.ref(), compute_ns_);
      saved[i].reset(stream_.ref());
    }
    chunk.finish();
  }

  Machine& machine_;
  schedule order_;
  std::size_t bytes_;
  double compute_ns_;
  typename device::stream stream_ = machine_.dev.make_stream();
  typename device::event begin_ = machine_.dev.make_event(true);
  typename device::event end_ = machine_.dev.make_event(true);
  offloader off_;
  std::vector<pass> passes_;
};

/// Time of the copy of one group with nothing beside it: the quickest of a step that only copies.
template <class Machine>
double copy_ns(Machine& machine, point at, const tp::options& opts) {
  at.order = {"", 1, 1};
  auto shortest_us = std::numeric_limits<double>::infinity();
  for (const auto& span : trainer<Machine>(machine, at, 0, opts).traced_step().spans) {
    if (span.kind != tp::trace::span_kind::offload) continue;
    shortest_us = std::min(shortest_us, span.end - span.start);
  }
  return shortest_us * 1000;
}

/// One row: the trainer without offload, then with; counters of the timed steps, and the stalls and
/// bytes of one more that is traced.
template <class Machine>
void measure(benchmark::State& state, const point& at) try {
  Machine machine;
  tp::options opts;
  opts.min_tensor_elements = 1;
  opts.copy_piece /= Machine::scale;
  // So that the pool takes what the schedule needs, not what rounding adds.
  opts.device_step = at.group_bytes() / Machine::scale;
  const auto none = opts;
  opts.offload_modules = {"expert_fc1"};
  const auto compute_ns = at.ratio * copy_ns(machine, at, opts);
  const auto compute_us = trainer<Machine>(machine, at, compute_ns, none).step_us();

  opts.max_inflight = at.cap;
  trainer<Machine> work(machine, at, compute_ns, opts);
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

  const auto record = work.traced_step();
  double stall_us = 0;
  double cap_us = 0;
  for (const auto& span : record.spans) {
    if (span.kind != tp::trace::span_kind::stall) continue;
    stall_us += span.end - span.start;
    if (span.name == tp::name_of(tp::join_site::cap)) cap_us += span.end - span.start;
  }
  std::size_t held = 0;
  for (const auto& level : record.device_bytes) held = std::max(held, level.bytes);

  const auto share = [&](double us) { return std::round(us / whole_us * 1e4) / 1e4; };
  const auto in_mib = [](std::size_t bytes) {
    return static_cast<double>(bytes * Machine::scale) / (1 << 20);
  };
  state.SetBytesProcessed(static_cast<std::int64_t>(moved * Machine::scale));
  state.counters["over_compute"] = whole_us / compute_us;
  state.counters["stall"] = share(stall_us);
  state.counters["stall_cap"] = share(cap_us);
  state.counters["peak_MiB"] = in_mib(held);
  state.counters["pool_MiB"] = in_mib(totals.device_peak);
} catch (const std::exception& failure) {
  state.SkipWithError(failure.what());
}

/// Registers every point of the axes for one machine.
template <class Machine>
void register_all(const std::string& device) {
  for (const auto& at : all_points()) {
    const auto ratio = std::to_string(at.ratio);
    const auto name = device + "/" + at.order.name + "/" + std::to_string(at.group_mib) +
                      "MiB/compute_x" + ratio.substr(0, 3) + "/cap_" +
                      (at.cap ? std::to_string(*at.cap) : "none");
    benchmark::RegisterBenchmark(name.c_str(), measure<Machine>, at)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(Machine::steps);
  }
}

/// The CUDA half; where no GPU is found it says so and registers nothing.
void register_cuda();

}  // namespace inflight
