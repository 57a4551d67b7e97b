/// What has been recorded on which lane, and who has already waited for it: no Device in it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tidepool/core/fence.hpp"
#include "tidepool/core/join_site.hpp"

namespace tidepool::inline v0_2_0 {

/// The vector clocks of an offloader's lanes, as its memory sources see them; `lanes` are those of
/// a device. Thread safety: none. Nothing here blocks the host.
class clocks {
 public:
  clocks(const clocks&) = delete;
  clocks& operator=(const clocks&) = delete;

  [[nodiscard]] std::size_t count() const { return count_; }  ///< Lanes so far.

  /// True when everything behind `until` comes before what is issued on `waiter` next.
  [[nodiscard]] bool joined(lane_id waiter, const fence& until) const {
    if (until.order() == 0) return true;
    const auto& known = clock_of(waiter).known;
    for (std::size_t other = 0; other < count_; ++other) {
      if (until.position(other) > known[other] && other != index_of(waiter)) return false;
    }
    return true;
  }
  /// The same for one position.
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

  /// A stream capture is under way, across whose borders nothing may be waited for.
  [[nodiscard]] bool capturing() const { return capturing_; }

  // ---- what asks the device; both throw `device_error` ----

  /// Records the lane's present position.
  virtual ticket record(lane_id on) = 0;
  /// Makes `waiter` wait for `until`; true if that took an event join.
  virtual bool join(lane_id waiter, const fence& until, join_site site) = 0;
  /// True when all behind `until` is over by now, as far as the device says without waiting.
  [[nodiscard]] virtual bool passed(const fence& until) noexcept = 0;

  /// Whose lanes they are: another value for each type of device.
  [[nodiscard]] const void* device_type() const { return device_type_; }

 protected:
  using positions = std::array<std::uint64_t, max_lanes>;

  struct lane_clock {
    std::uint64_t recorded = 0;
    positions known{};  // the position of every other lane that this one has waited for
  };

  explicit clocks(const void* device_type) : device_type_(device_type) {}
  ~clocks() = default;

  [[nodiscard]] lane_clock& clock_of(lane_id lane) { return clocks_[index_of(lane)]; }
  [[nodiscard]] const lane_clock& clock_of(lane_id lane) const { return clocks_[index_of(lane)]; }

  // Every lane has waited for all that every other one has recorded.
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
