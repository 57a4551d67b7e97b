/// The ordering rules: what has been recorded on which stream, and who has already waited for it.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
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
/// oldest event still kept, which is later on the same lane: more waiting, never less. So tickets
/// are plain numbers that nobody has to give back, and no event is created after a lane's first
/// use.
///
/// A join that the waiter made before, directly or through a lane that had made it, is not issued
/// again. Nothing here blocks the host. Thread safety: none. Inlined by force as in `ranges`.
template <device Device>
class lanes {
 public:
  static constexpr std::size_t ring = 1024;

  /// `trace` outlives this object; while it is on, waits of compute streams are recorded there.
  lanes(Device& dev, detail::tracer<Device>& trace) : dev_(&dev), trace_(&trace) {}

  /// The lane of a stream; its first use creates the lane's events.
  [[nodiscard]] lane_id of(typename Device::stream_ref stream) {
    if constexpr (std::equality_comparable<typename Device::stream_ref>) {
      // A stream under capture may not be asked for its key.
      for (std::size_t i = 0; capturing_ && i < count_; ++i) {
        if (lanes_[i].stream == stream) return static_cast<lane_id>(i);
      }
    }
    const auto key = key_of(stream);
    for (std::size_t i = 0; i < count_; ++i) {
      if (lanes_[i].key == key) return static_cast<lane_id>(i);
    }
    return add(stream, key);
  }

  [[nodiscard]] typename Device::stream_ref stream(lane_id lane) const { return at(lane).stream; }
  [[nodiscard]] std::size_t count() const { return count_; }

  /// Records the lane's present position.
  [[gnu::always_inline]] ticket record(lane_id on) {
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
  [[gnu::always_inline]] bool join(lane_id waiter, const ticket& until, join_site site) {
    if (joined(waiter, until) || left_out(site)) return false;
    auto& lane = at(waiter);
    const auto traced = trace_->begin(waiter, lane.stream);
    wait(lane, index_of(until.lane), until.position);
    if (traced != detail::tracer<Device>::off) {
      trace_->end_stall(traced, waiter, lane.stream, site);
    }
    return true;
  }
  bool join(lane_id waiter, const fence& until, join_site site) {
    return until.order() != 0 && join_all(waiter, until, site);
  }

  /// Makes `waiter` wait for all that `other` had been given when its `next` was `position`: what
  /// nobody has recorded since is recorded now. In a capture that is work from before it, behind
  /// which every launch comes anyway.
  void join_work(lane_id waiter, lane_id other, std::uint64_t position, join_site site) {
    if (joined(waiter, ticket(other, position, order_))) return;
    if (position > at(other).recorded) {
      if (capturing_) return;
      record(other);
    }
    join(waiter, ticket(other, position, order_), site);
  }

  /// All that `lane` has recorded or waited for so far.
  [[nodiscard]] fence past(lane_id lane) const {
    const auto& state = at(lane);
    fence result(state.known, order_);
    result.add(ticket(lane, state.recorded, order_));
    return result;
  }

  /// The position that `lane` records next.
  [[nodiscard]] std::uint64_t next(lane_id lane) const { return at(lane).recorded + 1; }
  /// All that `lane` had recorded or waited for when `next` was `position`, or more.
  [[nodiscard]] fence past(lane_id lane, std::uint64_t position) const {
    if (position > at(lane).recorded) return past(lane);
    return ticket(lane, position, order_);
  }

  /// Issue order of the youngest record.
  [[nodiscard]] std::uint64_t order() const { return order_; }

  // ---- around a stream capture, where no event may be waited for from the other side ----

  [[nodiscard]] bool capturing() const { return capturing_; }

  /// Makes `into` wait for all that every lane has been given.
  void gather(lane_id into, join_site site) {
    if (left_out(site)) return assume_met();
    for (std::size_t other = 0; other < count_; ++other) {
      if (other == index_of(into)) continue;
      wait(at(into), other, record(static_cast<lane_id>(other)).position);
    }
  }

  /// Makes every lane wait for all that the others have been given.
  void meet(join_site site) {
    if (left_out(site)) return assume_met();
    std::array<std::uint64_t, max_lanes> now{};
    for (std::size_t i = 0; i < count_; ++i) now[i] = record(static_cast<lane_id>(i)).position;
    for (std::size_t waiter = 0; waiter < count_; ++waiter) {
      for (std::size_t other = 0; other < count_; ++other) {
        if (other != waiter) wait(lanes_[waiter], other, now[other]);
      }
    }
  }

  /// The capture has begun on `origin`; `forks` take part in it from now on. Every position so far
  /// counts as joined by all, since a launch comes after all that was given to any lane.
  void begin_capture(lane_id origin, std::initializer_list<lane_id> forks) {
    capturing_ = bounded_ = true;
    assume_met();
    for (std::size_t i = 0; i < count_; ++i) before_capture_[i] = lanes_[i].recorded;
    if (left_out(join_site::fork)) return;
    const auto start = record(origin);
    for (const auto fork : forks) wait(at(fork), index_of(origin), start.position);
  }
  /// Joins `forks` back into `origin`; the capture is about to end.
  void join_back(lane_id origin, std::initializer_list<lane_id> forks) {
    if (left_out(join_site::join_back)) return;
    for (const auto fork : forks) wait(at(origin), index_of(fork), record(fork).position);
  }
  /// The capture is over. Nothing in it has run, so nothing in it is waited for either.
  void end_capture() {
    capturing_ = false;
    assume_met();
    meet(join_site::after_capture);
  }

 private:
  void assume_met() {
    for (std::size_t i = 0; i < count_; ++i) {
      for (std::size_t other = 0; other < count_; ++other) {
        lanes_[i].known[other] = lanes_[other].recorded;
      }
    }
  }

  [[nodiscard]] std::uint64_t key_of(const typename Device::stream_ref& stream) const {
    if constexpr (requires { stream.key_in_capture(); }) {
      if (capturing_) return stream.key_in_capture();
    }
    return stream.key();
  }

  bool join_all(lane_id waiter, const fence& until, join_site site) {
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

  [[gnu::always_inline]] void wait(lane_state& waiter, std::size_t other, std::uint64_t position) {
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
    const auto id = static_cast<lane_id>(count_++);
    // It knows nothing yet, and must never wait for what is on the other side of a capture. In a
    // capture it takes part by the trainer's own fork, which is behind all that came before the
    // capture, but not behind what the copy streams have been given in it.
    if (capturing_) {
      lanes_[index_of(id)].known = before_capture_;
    } else if (bounded_) {
      try {
        gather(id, join_site::new_stream);
      } catch (...) {
        --count_;
        throw;
      }
    }
    return id;
  }

  Device* dev_;
  detail::tracer<Device>* trace_;
  std::array<lane_state, max_lanes> lanes_;
  std::size_t count_ = 0;
  std::uint64_t order_ = 0;
  bool capturing_ = false;
  bool bounded_ = false;    // there has been a capture
  clock before_capture_{};  // positions at the begin of the latest
};

}  // namespace tidepool
