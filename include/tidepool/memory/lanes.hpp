/// The ordering rules: what has been recorded on which stream, and who has already waited for it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tidepool/detail/tracer.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/fence.hpp"

namespace tidepool {

/// Records positions on streams and makes streams wait for them.
///
/// Each lane keeps its last `ring` events. A ticket older than that is waited for through the
/// oldest event still kept, which lies later on the same lane: more waiting, never less. So tickets
/// are plain numbers that nobody has to give back, and no event is created after a lane's first
/// use.
///
/// A join that the waiter made before, directly or through a lane that had made it, is not issued
/// again. Nothing here blocks the host. Thread safety: none.
template <device Device>
class lanes {
 public:
  static constexpr std::size_t ring = 1024;

  /// `trace` outlives this object; while it is on, waits of compute streams are recorded there.
  lanes(Device& dev, detail::tracer<Device>& trace) : dev_(&dev), trace_(&trace) {}

  /// The lane of a stream; its first use creates the lane's events.
  [[nodiscard]] lane_id of(typename Device::stream_ref stream) {
    const auto key = stream.key();
    for (std::size_t i = 0; i < count_; ++i) {
      if (lanes_[i].key == key) return static_cast<lane_id>(i);
    }
    return add(stream, key);
  }

  [[nodiscard]] typename Device::stream_ref stream(lane_id lane) const { return at(lane).stream; }
  [[nodiscard]] std::size_t count() const { return count_; }

  /// Records the lane's present position.
  ticket record(lane_id on) {
    auto& lane = at(on);
    auto& mark = lane.events[lane.recorded % ring];
    dev_->record(mark.event, lane.stream);
    mark.known = lane.known;
    return {on, ++lane.recorded, ++order_};
  }

  /// True when everything behind `until` comes before what is issued on `waiter` next.
  [[nodiscard]] bool joined(lane_id waiter, const fence& until) const {
    if (until.order() == 0) return true;
    const auto& known = at(waiter).known;
    for (std::size_t other = 0; other < count_; ++other) {
      if (until.position(other) > known[other] && other != index_of(waiter)) return false;
    }
    return true;
  }

  [[nodiscard]] bool joined(lane_id waiter, const ticket& until) const {
    return until.lane == waiter || until.position <= at(waiter).known[index_of(until.lane)];
  }

  /// Makes `waiter` wait for `until`; true if that took an event join.
  bool join(lane_id waiter, const ticket& until, join_site site) {
    if (joined(waiter, until) || left_out(site)) return false;
    auto& lane = at(waiter);
    const auto traced = trace_->begin(waiter, lane.stream);
    wait(lane, index_of(until.lane), until.position);
    trace_->end_stall(traced, waiter, lane.stream, site);
    return true;
  }
  bool join(lane_id waiter, const fence& until, join_site site) {
    if (joined(waiter, until) || left_out(site)) return false;
    auto& lane = at(waiter);
    const auto traced = trace_->begin(waiter, lane.stream);
    // The copy streams come first: having waited for them often makes the rest unnecessary.
    for (std::size_t other = 0; other < count_; ++other) {
      if (other == index_of(waiter) || until.position(other) <= lane.known[other]) continue;
      wait(lane, other, until.position(other));
    }
    trace_->end_stall(traced, waiter, lane.stream, site);
    return true;
  }

  /// Issue order of the youngest record.
  [[nodiscard]] std::uint64_t order() const { return order_; }

 private:
  using clock = std::array<std::uint64_t, max_lanes>;

  struct kept_event {
    typename Device::event event;
    clock known{};  // what the lane had joined when it recorded this
  };

  struct lane_state {
    typename Device::stream_ref stream;
    std::uint64_t key = 0;
    std::uint64_t recorded = 0;
    clock known{};  // the position of every other lane that this one has waited for
    std::vector<kept_event> events;
  };

  lane_state& at(lane_id id) { return lanes_[index_of(id)]; }
  const lane_state& at(lane_id id) const { return lanes_[index_of(id)]; }

  [[nodiscard]] bool left_out([[maybe_unused]] join_site site) const {
    if constexpr (requires { dev_->leaves_out(site); }) {
      return dev_->leaves_out(site);
    } else {
      return false;
    }
  }

  void wait(lane_state& waiter, std::size_t other, std::uint64_t position) {
    auto& source = lanes_[other];
    const auto oldest = source.recorded > ring ? source.recorded - ring + 1 : 1;
    const auto actual = std::max(position, oldest);
    auto& mark = source.events[(actual - 1) % ring];
    dev_->wait(waiter.stream, mark.event);
    for (std::size_t i = 0; i < count_; ++i) {
      waiter.known[i] = std::max(waiter.known[i], mark.known[i]);
    }
    waiter.known[other] = std::max(waiter.known[other], actual);
  }

  lane_id add(typename Device::stream_ref stream, std::uint64_t key) {
    if (count_ == max_lanes) {
      throw misuse_error("an offloader serves at most " + std::to_string(max_lanes - 2) +
                         " streams beside its own two; use fewer streams, or one offloader for each"
                         " set of them");
    }
    lane_state fresh{stream, key, 0, {}, {}};
    fresh.events.reserve(ring);
    for (std::size_t i = 0; i < ring; ++i) fresh.events.push_back({dev_->make_event(false), {}});
    lanes_[count_] = std::move(fresh);
    return static_cast<lane_id>(count_++);
  }

  Device* dev_;
  detail::tracer<Device>* trace_;
  std::array<lane_state, max_lanes> lanes_;
  std::size_t count_ = 0;
  std::uint64_t order_ = 0;
};

}  // namespace tidepool
