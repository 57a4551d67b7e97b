// The CUDA half of bench_inflight: kernels that spin for a calibrated number of clock cycles.
#include <iostream>

#include "inflight_common.hpp"

namespace {

__global__ void spin(long long cycles) {
  const auto start = clock64();
  while (clock64() - start < cycles) {
  }
}

struct cuda_machine {
  static constexpr std::size_t scale = 1;
  static constexpr int steps = 10;

  tidepool::cuda_device dev;

  void busy(tidepool::cuda_device::stream_ref on, double ns) {
    static const double cycles_per_ns = calibrate(dev);
    spin<<<1, 1, 0, on.get()>>>(static_cast<long long>(ns * cycles_per_ns));
  }

 private:
  static double calibrate(tidepool::cuda_device& dev) {
    constexpr long long cycles = 50'000'000;
    const auto stream = dev.make_stream();
    auto begin = dev.make_event(true);
    auto end = dev.make_event(true);
    spin<<<1, 1, 0, stream.get()>>>(cycles);  // the clocks rise
    dev.record(begin, stream.ref());
    spin<<<1, 1, 0, stream.get()>>>(cycles);
    dev.record(end, stream.ref());
    dev.synchronize();
    return static_cast<double>(cycles) / (dev.elapsed_us(begin, end) * 1000);
  }
};

}  // namespace

void inflight::register_cuda() {
  if (tidepool::cuda_device::count() > 0) {
    register_all<cuda_machine>("cuda");
  } else {
    std::cerr << "bench_inflight: no CUDA device, the CUDA half is skipped\n";
  }
}
