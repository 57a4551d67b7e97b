/// A virtual device that passes for a real one, whose steps may take another time each.
#pragma once

#include "counting_device.hpp"
#include "tidepool/device/virtual.hpp"

namespace tidepool::test {

struct unsimulated_device : counting_device<virtual_device> {
  using counting_device::counting_device;
  static constexpr bool simulates_time = false;
};

}  // namespace tidepool::test
