// A checked GPU that can leave joins out.
#pragma once

#include "tidepool/core/join_site.hpp"
#include "tidepool/device/checked.hpp"
#include "tidepool/device/cuda.hpp"

namespace tidepool::test {

/// As the virtual device can.
class leaving_device : public checked_device<cuda_device> {
 public:
  leaving_device() : checked_device(0) {}

  void leave_out(join_site site) { left_out_ |= 1U << static_cast<unsigned>(site); }
  [[nodiscard]] bool leaves_out(join_site site) const {
    return (left_out_ >> static_cast<unsigned>(site) & 1U) != 0;
  }

 private:
  unsigned left_out_ = 0;
};

}  // namespace tidepool::test
