/// The first line of what a program prints names the device, so that nobody reads simulated
/// milliseconds as measured ones.
#pragma once

#include <cstdio>
#include <string>
#include <tidepool/device/cuda.hpp>

namespace tools {

template <class Device>
concept simulated = Device::simulates_time;

/// The line of a virtual device, or of the GPU with this number.
template <class Device>
[[nodiscard]] std::string device_line([[maybe_unused]] int ordinal = 0) {
  if constexpr (simulated<Device>) {
    return "virtual device: simulated time";
  } else {
    std::string line = "GPU " + std::to_string(ordinal);
#if defined(TIDEPOOL_HAS_CUDA)
    cudaDeviceProp gpu{};
    if (cudaGetDeviceProperties(&gpu, ordinal) == cudaSuccess) line.append(": ").append(gpu.name);
#endif
    return line;
  }
}

template <class Device>
void print_device(int ordinal = 0) {
  std::printf("%s\n", device_line<Device>(ordinal).c_str());
}
template <class Device>
void print_device_of([[maybe_unused]] const Device& dev) {
  if constexpr (simulated<Device>) {
    print_device<Device>();
  } else {
    print_device<Device>(dev.ordinal());
  }
}

}  // namespace tools
