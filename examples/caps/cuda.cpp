// The CUDA half of `caps`.
#include <cstdio>

#include "../tools/device_line.hpp"
#include "cuda_machine.hpp"
#include "devices.hpp"

int caps::cuda_devices() { return tidepool::cuda_device::count(); }

caps::measured caps::measure_on_cuda(const axes& what, const part_begins& begins) {
  cuda_machine machine;
  const auto rate = static_cast<double>(what.work.group_bytes) / copy_ns(machine, what.work);
  char text[320];
  std::snprintf(text, sizeof text, "%s, %.1f GB/s from device to host",
                tools::device_line<tidepool::cuda_device>(machine.dev.ordinal()).c_str(), rate);
  return {text, measure(machine, what, begins)};
}
