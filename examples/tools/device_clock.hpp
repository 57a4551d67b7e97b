/// The clock by which a program times its steps.
#pragma once

#include <chrono>

#include "device_line.hpp"

namespace tools {

/// The time that the device sees: of the virtual clock, if it has one.
template <class Device>
[[nodiscard]] double milliseconds(const Device& dev) {
  if constexpr (simulated<Device>) {
    return dev.now_ns() * 1e-6;
  } else {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(now).count();
  }
}

}  // namespace tools
