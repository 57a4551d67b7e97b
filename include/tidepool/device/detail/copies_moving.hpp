// How the copies that are under way share the links of a machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "tidepool/device/device.hpp"
#include "tidepool/device/machine.hpp"

namespace tidepool::inline v0_2_0::detail {

// Copies that move bytes at one time, by direction. The host and a neighbour have a link each.
class copies_moving {
 public:
  void add(copy_direction direction) { ++counts_[index_of(direction)]; }

  // Bytes per nanosecond of one copy; those of one direction share its rate.
  [[nodiscard]] double rate(copy_direction direction, const machine& on) const {
    const bool peer =
        direction == copy_direction::device_to_peer || direction == copy_direction::peer_to_device;
    const auto out = peer ? on.peer_offload_rate : on.offload_rate;
    const auto in = peer ? on.peer_reload_rate : on.reload_rate;
    const auto both = peer ? on.peer_both_rate : on.both_rate;
    const auto first =
        index_of(peer ? copy_direction::device_to_peer : copy_direction::device_to_host);
    auto total = is_offload(direction) ? out : in;
    if (counts_[first] > 0 && counts_[first + 1] > 0) total *= std::min(1.0, both / (out + in));
    return total / static_cast<double>(counts_[index_of(direction)]);
  }

 private:
  static constexpr std::size_t index_of(copy_direction direction) {
    return static_cast<std::size_t>(direction);
  }

  std::array<std::size_t, 4> counts_{};
};

}  // namespace tidepool::detail
