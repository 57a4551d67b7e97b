// A GPU as `caps` and `bench_inflight` use it: kernels spin for a calibrated number of cycles.
#pragma once

#include <tidepool/tidepool.hpp>

namespace caps {

/// Keeps the stream busy for so many cycles of its multiprocessors.
void spin(long long cycles, cudaStream_t on);

struct cuda_machine {
  tidepool::cuda_device dev;

  void busy(tidepool::cuda_device::stream_ref on, double ns) {
    static const double cycles_per_ns = calibrate(dev);
    spin(static_cast<long long>(ns * cycles_per_ns), on.get());
  }

 private:
  static double calibrate(tidepool::cuda_device& dev) {
    constexpr long long cycles = 50'000'000;
    const auto stream = dev.make_stream();
    auto begin = dev.make_event(true);
    auto end = dev.make_event(true);
    spin(cycles, stream.get());  // the clocks rise
    dev.record(begin, stream.ref());
    spin(cycles, stream.get());
    dev.record(end, stream.ref());
    dev.synchronize();
    return static_cast<double>(cycles) / (dev.elapsed_us(begin, end) * 1000);
  }
};

}  // namespace caps
