/// Which cap? Step time, stall and device bytes by cap on offloads in flight, group size and the
/// ratio of compute to copy, for one microbatch at a time and for 1F1B.
///
/// Each row is one step of 8 groups in forward and 8 in backward per microbatch; take the smallest
/// cap whose `over_compute` you accept and read its `peak_MiB`. Columns:
///   Time              of a step, on the device's clock (CPU is the simulation's, or the host's)
///   bytes_per_second  both directions, over the whole step
///   over_compute      step time over that of the same step with nothing offloaded
///   stall, stall_cap  share of the step that the compute stream waits: in all, and for the cap
///   peak_MiB          most bytes of saved tensors on the device at once, on the device's clock
///   pool_MiB          device memory that the pool took for them
///
/// Kernels only take their time, on either device: copies slow none of them down. The program
/// `caps` (examples/caps) measures the same and prints what follows from it; these are the raw
/// figures.
/// `--benchmark_filter='cuda/.*16MiB.*x1.0'` picks rows.
#include <iostream>

#include "../examples/caps/machines.hpp"
#include "google.hpp"
#include "inflight_common.hpp"

int main(int argc, char** argv) {
  const tools::about me{"bench_inflight", "Step time and memory by cap on offloads in flight."};
  return bench::run_google(me, argc, argv, "--benchmark_counters_tabular=true", [] {
    inflight::register_all<caps::virtual_machine>("virtual", 1);  // they are all alike
#if defined(TIDEPOOL_HAS_CUDA)
    inflight::register_cuda();
#else
  std::cerr << "bench_inflight: built without CUDA, the CUDA half is skipped\n";
#endif
  });
}
