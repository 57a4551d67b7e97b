// The CUDA half of bench_inflight.
#include <iostream>

#include "../examples/caps/cuda_machine.hpp"
#include "inflight_common.hpp"

void inflight::register_cuda() {
  if (tidepool::cuda_device::count() > 0) {
    register_all<caps::cuda_machine>("cuda", 10);
  } else {
    std::cerr << "bench_inflight: no CUDA device, the CUDA half is skipped\n";
  }
}
