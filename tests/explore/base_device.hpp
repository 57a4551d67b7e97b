// The device under both kinds of programs. In `explore_checked` it checks the order of accesses as
// it does for a user, so that two judges see every program: both must find a race in it, or
// neither.
#pragma once

#include <string>

#include "tidepool/device/virtual.hpp"
#if defined(TIDEPOOL_EXPLORE_CHECKED)
#include "tidepool/device/checked.hpp"
#endif

namespace explore {

#if defined(TIDEPOOL_EXPLORE_CHECKED)
using base_device = tidepool::checked_device<tidepool::virtual_device>;
#else
using base_device = tidepool::virtual_device;
#endif

/// Whether the judges disagree, in words; `races` is what the recording says.
template <class Device>
[[nodiscard]] std::string disagreement([[maybe_unused]] const Device& dev,
                                       [[maybe_unused]] bool races) {
  if constexpr (requires { dev.findings(); }) {
    if (dev.findings().empty() == !races) return {};
    return races ? "the checked device missed the race"
                 : "the checked device alone: " + dev.report();
  } else {
    return {};
  }
}

}  // namespace explore
