/// Streams of a device, and the lanes that stand for them.
#pragma once

#include "tidepool/core/clocks.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/device/hardware_of.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/lanes.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// `order` must be lanes of that type of device.
template <device Device>
[[nodiscard]] hardware_of<Device>& hardware_in(const lanes& order) {
  return static_cast<hardware_of<Device>&>(order.device());
}
template <device Device>
[[nodiscard]] lane_id lane_in(lanes& order, const typename Device::stream_ref& stream) {
  const auto found = hardware_in<Device>(order).find(stream, order.count(), order.capturing());
  return found < order.count() ? static_cast<lane_id>(found) : order.add(&stream);
}

}  // namespace detail

/// The lane of a stream, for a memory source that works in the order of one. `order` are the
/// offloader's clocks, which `attach` gives. The stream's first use makes the lane. Throws
/// `misuse_error` where the offloader is of another device.
template <device Device>
[[nodiscard]] lane_id lane_of(clocks& order, typename Device::stream_ref stream) {
  if (order.device_type() != &detail::type_of_device<Device>) {
    throw misuse_error(
        "memory: this source works on streams of another device than its offloader; make it for"
        " the same one");
  }
  return detail::lane_in<Device>(static_cast<lanes&>(order), stream);
}

}  // namespace tidepool
