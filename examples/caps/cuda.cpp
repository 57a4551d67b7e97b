// The CUDA half of `caps`.
#include <cstdio>

#include "cuda_machine.hpp"
#include "devices.hpp"

int caps::cuda_devices() { return tidepool::cuda_device::count(); }

caps::measured caps::measure_on_cuda(const axes& what, const part_begins& begins) {
  cuda_machine machine;
  int device = 0;
  cudaDeviceProp about{};
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaGetDeviceProperties(&about, device) == cudaSuccess;
  const auto rate = static_cast<double>(what.work.group_bytes) / copy_ns(machine, what.work);
  char text[320];
  std::snprintf(text, sizeof text, "%s, %.1f GB/s from device to host",
                known ? about.name : "a GPU", rate);
  return {text, measure(machine, what, begins)};
}
