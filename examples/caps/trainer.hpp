/// A trainer of one module whose kernels do nothing but take their time; `caps` and
/// `bench_inflight` measure it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <tidepool/tidepool.hpp>
#include <utility>
#include <vector>

namespace caps {

namespace tp = tidepool;

/// Offloads of one module in flight, at most; none: as many as there are.
using cap_limit = std::optional<std::size_t>;

/// Forward passes ahead of their backward, at most, and microbatches of a step.
struct schedule {
  int in_flight = 1;
  int microbatches = 1;
};

/// What is trained.
struct workload {
  schedule order;
  std::size_t group_bytes = std::size_t{64} << 20;
  std::size_t groups = 8;  ///< of one microbatch
};

/// Work that a step waits behind, so that the host is ahead of the device from the first group on.
inline constexpr double lead_us = 200;

/// One step of `groups` groups in forward and as many in backward for each microbatch.
///
/// `Machine` has a device `dev` and `busy(stream, ns)`, which queues a kernel of that duration.
template <class Machine>
class trainer {
 public:
  using device = decltype(Machine::dev);

  trainer(Machine& machine, const workload& work, double compute_ns, const tp::options& opts,
          tp::parts parts = {})
      : machine_(machine),
        work_(work),
        compute_ns_(compute_ns),
        off_(machine.dev, opts, std::move(parts)),
        passes_(static_cast<std::size_t>(work.order.in_flight)) {
    for (auto& each : passes_) each.saved.resize(work.groups);
    step_us();  // the first step settles what stays, the second has the memory that it needs
    step_us();
  }

  /// Blocks the host; every step begins and ends with an idle device.
  double step_us() {
    machine_.busy(stream_.ref(), lead_us * 1e3);
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
  [[nodiscard]] auto& offloader() { return off_; }

 private:
  using offloader_type = tp::offloader<device, tp::modules<"expert_fc1">>;

  struct pass {
    typename offloader_type::chunk chunk;
    std::vector<typename offloader_type::buffer> saved;
  };

  void step() {
    const auto& order = work_.order;
    for (int ahead = 0, done = 0; done < order.microbatches;) {
      if (ahead < order.microbatches && ahead - done < order.in_flight) {
        forward(ahead++);
      } else {
        backward(done++);
      }
    }
    off_.end_step();
  }

  void forward(int microbatch) {
    auto& [chunk, saved] = passes_[static_cast<std::size_t>(microbatch % work_.order.in_flight)];
    chunk = off_.begin({.microbatch = microbatch});
    for (std::size_t i = 0; i < work_.groups; ++i) {
      saved[i] = off_.allocate(work_.group_bytes, stream_.ref());
      machine_.busy(stream_.ref(), compute_ns_);
      chunk.template commit<"expert_fc1">(static_cast<int>(i), stream_.ref(), saved[i]);
    }
    chunk.end_forward();
  }

  void backward(int microbatch) {
    auto& [chunk, saved] = passes_[static_cast<std::size_t>(microbatch % work_.order.in_flight)];
    for (std::size_t i = work_.groups; i-- > 0;) {
      chunk.template restore<"expert_fc1">(static_cast<int>(i), stream_.ref(), saved[i]);
      machine_.busy(stream_.ref(), compute_ns_);
      saved[i].reset(stream_.ref());
    }
    chunk.finish();
  }

  Machine& machine_;
  workload work_;
  double compute_ns_;
  typename device::stream stream_ = machine_.dev.make_stream();
  typename device::event begin_ = machine_.dev.make_event(true);
  typename device::event end_ = machine_.dev.make_event(true);
  offloader_type off_;
  std::vector<pass> passes_;
};

/// The options under which everything may leave and a pool takes what the schedule needs, not what
/// rounding adds.
[[nodiscard]] inline tp::options options_for(const workload& work) {
  tp::options opts;
  opts.min_tensor_elements = 1;
  opts.device_step = work.group_bytes;
  return opts;
}

/// Time of the copy of one group with nothing beside it: the quickest of a step that only copies.
template <class Machine>
double copy_ns(Machine& machine, workload work) {
  work.order = {};
  auto opts = options_for(work);
  opts.offload_modules = {"expert_fc1"};
  auto shortest_us = std::numeric_limits<double>::infinity();
  for (const auto& span : trainer<Machine>(machine, work, 0, opts).traced_step().spans) {
    if (span.kind != tp::trace::span_kind::offload) continue;
    shortest_us = std::min(shortest_us, span.end - span.start);
  }
  return shortest_us * 1000;
}

/// What a traced step tells of its waits and its memory.
struct traced {
  double stall_us = 0;   ///< that the compute stream waited: in all
  double cap_us = 0;     ///< and for the cap
  std::size_t held = 0;  ///< most bytes of saved tensors on the device, by the device's clock

  explicit traced(const tp::trace::record& step) {
    for (const auto& span : step.spans) {
      if (span.kind != tp::trace::span_kind::stall) continue;
      stall_us += span.end - span.start;
      if (span.name == tp::name_of(tp::join_site::cap)) cap_us += span.end - span.start;
    }
    for (const auto& level : step.device_bytes) held = std::max(held, level.bytes);
  }
};

}  // namespace caps
