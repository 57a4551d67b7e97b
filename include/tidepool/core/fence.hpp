/// The event after which memory may be touched again, as a position on each lane.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tidepool::inline v0_2_0 {

/// Streams that one offloader serves at most, its own copy streams included: two for each place
/// that tensors are offloaded to.
inline constexpr std::size_t max_lanes = 8;

/// Index of a stream within one offloader.
enum class lane_id : std::uint8_t {};

/// The lane as an index, from 0 to `max_lanes`.
[[nodiscard]] constexpr std::size_t index_of(lane_id lane) {
  return static_cast<std::size_t>(lane);
}

/// A recorded position on one lane: everything issued on the lane before it.
///
/// Two words, so that it travels in registers; at a record each nanosecond they last two years.
struct ticket {
  lane_id lane : 8 {};              ///< on which it was recorded
  std::uint64_t position : 56 = 0;  ///< 0: before everything
  std::uint64_t order = 0;          ///< issue order over all lanes, to tell older from younger

  constexpr ticket() = default;
  /// `at` is the position on the lane `on`, `issued` the order over all lanes.
  constexpr ticket(lane_id on, std::uint64_t at, std::uint64_t issued)
      : lane(on), position(at & ((std::uint64_t{1} << 56) - 1)), order(issued) {}
};
static_assert(sizeof(ticket) == 16);

/// A set of tickets, at most one per lane: a vector clock.
///
/// A later position of a lane includes every earlier one, so a union is a maximum and the fence of
/// a range made of several blocks carries the fences of all its parts.
class fence {
 public:
  constexpr fence() = default;
  /// The fence of one ticket.
  constexpr fence(const ticket& only) { add(only); }  // NOLINT(google-explicit-constructor)
  /// A position for each lane, and the order of the youngest.
  constexpr fence(const std::array<std::uint64_t, max_lanes>& positions, std::uint64_t order)
      : positions_(positions), order_(order) {}

  /// Forgets what it held, for one ticket.
  constexpr fence& operator=(const ticket& only) {
    positions_ = {};
    order_ = 0;
    add(only);
    return *this;
  }

  /// Adds a ticket; a later position of a lane replaces an earlier one.
  constexpr void add(const ticket& more) {
    auto& position = positions_[index_of(more.lane)];
    position = std::max<std::uint64_t>(position, more.position);
    order_ = std::max(order_, more.order);
  }

  /// Adds all tickets of another fence.
  constexpr void add(const fence& more) {
    for (std::size_t lane = 0; lane < max_lanes; ++lane) {
      positions_[lane] = std::max(positions_[lane], more.positions_[lane]);
    }
    order_ = std::max(order_, more.order_);
  }

  /// The position on a lane; 0 when there is none.
  [[nodiscard]] constexpr std::uint64_t position(std::size_t lane) const {
    return positions_[lane];
  }
  /// Issue order of the youngest ticket; 0 when there is nothing to wait for.
  [[nodiscard]] constexpr std::uint64_t order() const { return order_; }

 private:
  std::array<std::uint64_t, max_lanes> positions_{};
  std::uint64_t order_ = 0;
};

}  // namespace tidepool
