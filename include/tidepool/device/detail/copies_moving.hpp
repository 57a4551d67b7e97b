// How the copies that are under way share the links of a machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "tidepool/device/device.hpp"
#include "tidepool/device/machine.hpp"

namespace tidepool::inline v0_3_0::detail {

// Copies that move bytes at one time, by direction. The host and a neighbour have a link each, or
// share one.
class copies_moving {
 public:
  void add(copy_direction direction) { ++counts_[index_of(direction)]; }

  // Bytes per nanosecond of one copy; those of one direction share its rate.
  [[nodiscard]] double rate(copy_direction direction, const machine& on) const {
    const bool to_peer =
        direction == copy_direction::device_to_peer || direction == copy_direction::peer_to_device;
    const bool peer = to_peer && !on.peer_shares_link;
    const auto out = peer ? on.peer_offload_rate : on.offload_rate;
    const auto in = peer ? on.peer_reload_rate : on.reload_rate;
    const auto both = peer ? on.peer_both_rate : on.both_rate;
    const auto copying = [&](copy_direction host, copy_direction neighbour) {
      if (on.peer_shares_link) return counts_[index_of(host)] + counts_[index_of(neighbour)];
      return counts_[index_of(peer ? neighbour : host)];
    };
    const auto leaving = copying(copy_direction::device_to_host, copy_direction::device_to_peer);
    const auto coming = copying(copy_direction::host_to_device, copy_direction::peer_to_device);
    auto total = is_offload(direction) ? out : in;
    if (leaving > 0 && coming > 0) total *= std::min(1.0, both / (out + in));
    return total / static_cast<double>(is_offload(direction) ? leaving : coming);
  }

 private:
  static constexpr std::size_t index_of(copy_direction direction) {
    return static_cast<std::size_t>(direction);
  }

  std::array<std::size_t, 4> counts_{};
};

}  // namespace tidepool::detail
