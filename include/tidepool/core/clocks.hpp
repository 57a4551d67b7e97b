/// Fences, and the positions that lanes have recorded and waited for; no device type is needed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "tidepool/core/join_site.hpp"

namespace tidepool::inline v0_3_0 {

/// The most streams that one offloader serves. Its own streams count, too: two for each place that
/// tensors are offloaded to, and one if tensors are packed.
inline constexpr std::size_t max_lanes = 8;

/// Index of a stream within one offloader.
enum class lane_id : std::uint8_t {};

/// The lane as an index, from 0 to `max_lanes`.
[[nodiscard]] constexpr std::size_t index_of(lane_id lane) {
  return static_cast<std::size_t>(lane);
}

/// A recorded position on one lane: everything issued on the lane before it.
///
/// A ticket has two words, so that it is passed in registers. At one record a nanosecond, 56 bits
/// of position last two years.
struct ticket {
  lane_id lane : 8 {};              ///< lane on which it was recorded
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
/// A later position of a lane includes every earlier one. The union of two fences is therefore a
/// maximum for each lane, and the fence of a merged range stands for the fences of all its parts.
class fence {
 public:
  constexpr fence() = default;
  /// The fence of one ticket.
  constexpr fence(const ticket& only) { add(only); }  // NOLINT(google-explicit-constructor)
  /// A fence with a position for each lane; `order` is the issue order of the youngest.
  constexpr fence(const std::array<std::uint64_t, max_lanes>& positions, std::uint64_t order)
      : positions_(positions), order_(order) {}

  /// Replaces all tickets by one.
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

/// The vector clocks of an offloader's lanes, as its memory sources see them; `lanes` are the
/// clocks of a device. Thread safety: none. No call blocks the host.
class clocks {
 public:
  clocks(const clocks&) = delete;
  clocks& operator=(const clocks&) = delete;

  [[nodiscard]] std::size_t count() const { return count_; }  ///< Lanes so far.

  /// True when all work that `until` stands for comes before the next work of `waiter`.
  [[nodiscard]] bool joined(lane_id waiter, const fence& until) const {
    if (until.order() == 0) return true;
    const auto& known = clock_of(waiter).known;
    for (std::size_t other = 0; other < count_; ++other) {
      if (until.position(other) > known[other] && other != index_of(waiter)) return false;
    }
    return true;
  }
  /// Like `joined`, as a function of the fence.
  [[nodiscard]] auto joined_by(lane_id waiter) const {
    return [this, waiter](const fence& until) { return joined(waiter, until); };
  }
  /// Like `joined`, for one position.
  [[nodiscard]] bool joined(lane_id waiter, const ticket& until) const {
    return until.lane == waiter || until.position <= clock_of(waiter).known[index_of(until.lane)];
  }

  /// All that `lane` has recorded or waited for so far.
  [[nodiscard]] fence past(lane_id lane) const {
    const auto& clock = clock_of(lane);
    fence result(clock.known, order_);
    result.add(ticket(lane, clock.recorded, order_));
    return result;
  }
  /// The position that `lane` records next.
  [[nodiscard]] std::uint64_t next(lane_id lane) const { return clock_of(lane).recorded + 1; }
  /// All that `lane` had recorded or waited for when `next` was `position`, or more.
  [[nodiscard]] fence past(lane_id lane, std::uint64_t position) const {
    if (position > clock_of(lane).recorded) return past(lane);
    return ticket(lane, position, order_);
  }

  /// Issue order of the youngest record.
  [[nodiscard]] std::uint64_t order() const { return order_; }

  /// True while a stream capture is under way: no stream may wait for an event from the other side
  /// of its begin or end.
  [[nodiscard]] bool capturing() const { return capturing_; }

  // ---- calls that ask the device; `record` and `join` throw `device_error` ----

  /// Records the lane's present position.
  virtual ticket record(lane_id on) = 0;
  /// Makes `waiter` wait for `until`; returns true if that took an event join.
  virtual bool join(lane_id waiter, const fence& until, join_site site) = 0;
  /// True when the device says, without waiting, that all work that `until` stands for is over.
  [[nodiscard]] virtual bool passed(const fence& until) noexcept = 0;

  /// A value that identifies the type of the device whose lanes these are.
  [[nodiscard]] const void* device_type() const { return device_type_; }

 protected:
  using positions = std::array<std::uint64_t, max_lanes>;

  struct lane_clock {
    std::uint64_t recorded = 0;
    positions known{};  // the position of every other lane that this one has waited for
  };

  explicit clocks(const void* device_type) : device_type_(device_type) {}
  ~clocks() = default;

  [[nodiscard]] lane_clock& clock_of(lane_id lane) {
    return clocks_[static_cast<std::size_t>(lane)];
  }
  [[nodiscard]] const lane_clock& clock_of(lane_id lane) const {
    return clocks_[static_cast<std::size_t>(lane)];
  }

  // Notes that every lane has waited for all that every other lane has recorded.
  void assume_met() {
    for (std::size_t i = 0; i < count_; ++i) {
      for (std::size_t other = 0; other < count_; ++other) {
        clocks_[i].known[other] = clocks_[other].recorded;
      }
    }
  }

  const void* device_type_;
  std::array<lane_clock, max_lanes> clocks_{};
  std::size_t count_ = 0;
  std::uint64_t order_ = 0;
  bool capturing_ = false;
};

}  // namespace tidepool
