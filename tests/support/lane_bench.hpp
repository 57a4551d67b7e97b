/// Lanes over a device, for tests of what hands memory out.
#pragma once

#include <vector>

#include "counting_device.hpp"
#include "tidepool/device/allocators.hpp"
#include "tidepool/memory/lane_of.hpp"
#include "tidepool/memory/lanes.hpp"

namespace tidepool::test {

/// `Base` with `count` streams; lane `i` is the i-th of them.
template <class Base>
struct lane_bench {
  using device_type = counting_device<Base>;

  device_type dev;
  tidepool::detail::hardware_of<device_type> hardware{dev};
  tidepool::detail::observers heard;
  lanes order{hardware, heard};
  device_allocator<device_type> pages{dev};
  host_allocator<device_type> host{dev};
  std::vector<typename device_type::stream> streams;

  template <class... Arguments>
  explicit lane_bench(int count, const Arguments&... arguments) : dev(arguments...) {
    for (int i = 0; i < count; ++i) streams.push_back(dev.make_stream());
    for (const auto& each : streams) static_cast<void>(of(each.ref()));
  }

  lane_id of(typename device_type::stream_ref stream) {
    return lane_of<device_type>(order, stream);
  }
  static lane_id id(int lane) { return static_cast<lane_id>(lane); }
  ticket record(int lane) { return order.record(id(lane)); }
  bool join(int waiter, const fence& until) {
    return order.join(id(waiter), until, join_site::device_reuse);
  }
  [[nodiscard]] bool joined(int waiter, const fence& until) const {
    return order.joined(id(waiter), until);
  }
};

}  // namespace tidepool::test
