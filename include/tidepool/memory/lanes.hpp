/// The clocks of a device: records positions on its streams and makes them wait.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/tracer.hpp"

namespace tidepool::inline v0_2_0 {

namespace detail {
template <device Device>
inline constexpr char device_type = 0;  // its address is what counts
}  // namespace detail

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
class lanes final : public clocks {
 public:
  /// Events of each lane; older positions are joined through a later one.
  static constexpr std::size_t ring = 1024;

  /// `trace` outlives this object; while it is on, waits of compute streams are recorded there.
  lanes(Device& dev, detail::tracer<Device>& trace)
      : clocks(&detail::device_type<Device>), dev_(&dev), trace_(&trace) {}

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

  /// The stream of a lane.
  [[nodiscard]] typename Device::stream_ref stream(lane_id lane) const { return at(lane).stream; }
  /// Those that there are so far are an offloader's own.
  void own_all() { own_ = leading_ = count_; }
  /// Lanes for `more` streams of the offloader's own, which `open` makes; where it throws, they are
  /// gone. In the others' way they are not: those come later, or were there before.
  template <class Open>
  void own_more(std::size_t more, const Open& open) {
    const auto before = count_;
    try {
      open();
    } catch (...) {
      count_ = before;
      throw;
    }
    own_ += more;
  }
  /// A capture has made a graph.
  void made_graph() { ++graphs_; }
  /// So many have.
  [[nodiscard]] std::uint64_t graphs() const { return graphs_; }
  /// The device whose streams they are.
  [[nodiscard]] Device& device() const { return *dev_; }

  /// Records the lane's present position.
  [[gnu::always_inline]] ticket record(lane_id on) override {
    auto& lane = at(on);
    auto& clock = clock_of(on);
    auto& mark = lane.events[clock.recorded % ring];
    dev_->record(mark.event, lane.stream);
    mark.known = clock.known;
    return {on, ++clock.recorded, ++order_};
  }

  /// Makes `to` wait for all that `from` has been given: the position of that.
  [[gnu::always_inline]] ticket hand_on(lane_id from, lane_id to, join_site site) {
    const auto all = record(from);
    join(to, all, site);
    return all;
  }

  /// Makes `waiter` wait for `until`; true if that took an event join.
  [[gnu::always_inline]] bool join(lane_id waiter, const ticket& until, join_site site) {
    if (joined(waiter, until) || left_out(site)) return false;
    const auto& lane = at(waiter);
    const auto traced = trace_->on ? trace_->begin(lane.stream) : trace_->off;
    wait(waiter, index_of(until.lane), until.position);
    if (traced != trace_->off) trace_->end_stall(traced, waiter, lane.stream, site);
    return true;
  }
  bool join(lane_id waiter, const fence& until, join_site site) override {
    return !joined(waiter, until) && join_all(waiter, until, site);
  }

  /// False where the device cannot tell, and for work inside a capture, which may never run.
  [[nodiscard]] bool passed([[maybe_unused]] const fence& until) noexcept override {
    if constexpr (detail::tells_what_is_over<Device>) {
      if (capturing_) return false;
      try {
        for (std::size_t lane = 0; lane < count_; ++lane) {
          if (until.position(lane) > passed_[lane] && !lane_passed(lane, until.position(lane))) {
            return false;
          }
        }
        return true;
      } catch (...) {  // whoever waits for it on the device is told
      }
    }
    return false;
  }

  /// Makes `waiter` wait for all that `other` had been given when its `next` was `position`: what
  /// nobody has recorded since is recorded now. In a capture that is work from before it, behind
  /// which every launch comes anyway.
  void join_work(lane_id waiter, lane_id other, std::uint64_t position, join_site site) {
    if (joined(waiter, ticket(other, position, order_))) return;
    if (position > clock_of(other).recorded) {
      if (capturing_) return;
      record(other);
    }
    join(waiter, ticket(other, position, order_), site);
  }

  // ---- around a stream capture, where no event may be waited for from the other side ----

  /// Makes `into` wait for all that every lane has been given; without `own`, that the trainer's
  /// have.
  void gather(lane_id into, join_site site, bool own = true) {
    if (left_out(site)) return assume_met();
    for (std::size_t other = own ? 0 : leading_; other < count_; ++other) {
      if (other == index_of(into)) continue;
      wait(into, other, record(static_cast<lane_id>(other)).position);
    }
  }

  /// Makes every lane wait for all that the others have been given.
  void meet(join_site site) {
    if (left_out(site)) return assume_met();
    positions now{};
    for (std::size_t i = 0; i < count_; ++i) now[i] = record(static_cast<lane_id>(i)).position;
    for (std::size_t waiter = 0; waiter < count_; ++waiter) {
      for (std::size_t other = 0; other < count_; ++other) {
        if (other != waiter) wait(static_cast<lane_id>(waiter), other, now[other]);
      }
    }
  }

  /// The capture has begun on `origin`; `forks` take part in it from now on. Every position so far
  /// counts as joined by all, since a launch comes after all that was given to any lane.
  void begin_capture(lane_id origin, const std::vector<lane_id>& forks) {
    capturing_ = bounded_ = true;
    assume_met();
    for (std::size_t i = 0; i < count_; ++i) before_capture_[i] = clocks_[i].recorded;
    if (left_out(join_site::fork)) return;
    const auto start = record(origin);
    for (const auto fork : forks) wait(fork, index_of(origin), start.position);
  }
  /// Joins `forks` back into `origin`; the capture is about to end.
  void join_back(lane_id origin, const std::vector<lane_id>& forks) {
    if (left_out(join_site::join_back)) return;
    for (const auto fork : forks) wait(origin, index_of(fork), record(fork).position);
  }
  /// The capture is over. Nothing in it has run, so nothing in it is waited for either.
  void end_capture() {
    capturing_ = false;
    for (std::size_t i = 0; i < count_; ++i) captured_[i] = clocks_[i].recorded;
    assume_met();
    meet(join_site::after_capture);
  }

 private:
  [[nodiscard]] bool lane_passed(std::size_t lane, std::uint64_t position) {
    if (position <= captured_[lane]) return false;
    // One that has been recorded anew since stands for later work.
    if (!dev_->passed(lanes_[lane].events[(position - 1) % ring].event)) return false;
    passed_[lane] = position;
    return true;
  }

  [[nodiscard]] std::uint64_t key_of(const typename Device::stream_ref& stream) const {
    if constexpr (requires { stream.key_in_capture(); }) {
      if (capturing_) return stream.key_in_capture();
    }
    return stream.key();
  }

  bool join_all(lane_id waiter, const fence& until, join_site site) {
    if (left_out(site)) return false;
    const auto& lane = at(waiter);
    const auto& known = clock_of(waiter).known;
    const auto traced = trace_->on ? trace_->begin(lane.stream) : trace_->off;
    // The copy streams come first: having waited for them often makes the rest unnecessary.
    for (std::size_t other = 0; other < count_; ++other) {
      if (other == index_of(waiter) || until.position(other) <= known[other]) continue;
      wait(waiter, other, until.position(other));
    }
    trace_->end_stall(traced, waiter, lane.stream, site);
    return true;
  }

  struct kept_event {
    typename Device::event event;
    positions known{};  // what the lane had joined when it recorded this
  };

  struct lane_state {
    typename Device::stream_ref stream;
    std::uint64_t key = 0;
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

  [[gnu::always_inline]] void wait(lane_id waiter, std::size_t other, std::uint64_t position) {
    const auto recorded = clocks_[other].recorded;
    const auto oldest = recorded > ring ? recorded - ring + 1 : 1;
    const auto actual = std::max(position, oldest);
    const auto& mark = lanes_[other].events[(actual - 1) % ring];
    dev_->wait(at(waiter).stream, mark.event);
    auto& known = clock_of(waiter).known;
    for (std::size_t i = 0; i < count_; ++i) known[i] = std::max(known[i], mark.known[i]);
    known[other] = std::max(known[other], actual);
  }

  lane_id add(typename Device::stream_ref stream, std::uint64_t key) {
    if (count_ == max_lanes) {
      throw misuse_error("an offloader serves at most " + std::to_string(max_lanes - own_) +
                         " streams beside its own " + (own_ == 2 ? "two" : std::to_string(own_)) +
                         "; use fewer streams, or one offloader for each set of them");
    }
    lane_state fresh{stream, key, {}};
    fresh.events.reserve(ring);
    for (std::size_t i = 0; i < ring; ++i) fresh.events.push_back({dev_->make_event(false), {}});
    lanes_[count_] = std::move(fresh);
    clocks_[count_] = {};
    const auto id = static_cast<lane_id>(count_++);
    // It knows nothing yet, and must never wait for what is on the other side of a capture. In a
    // capture it takes part by the trainer's own fork, which is behind all that came before the
    // capture, but not behind what the copy streams have been given in it.
    if (capturing_) {
      clock_of(id).known = before_capture_;
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
  std::size_t own_ = 2;      // an offloader's
  std::size_t leading_ = 2;  // those of them that come before the trainer's
  bool bounded_ = false;     // there has been a capture
  std::uint64_t graphs_ = 0;
  positions before_capture_{};  // positions at the begin of the latest
  positions captured_{};        // and at its end
  positions passed_{};          // that the device said it has passed
};

/// The lane of a stream, for a memory source that works in the order of one: what `attach` gives
/// are the clocks of an offloader. Throws `misuse_error` where that is one of another device.
template <device Device>
[[nodiscard]] lane_id lane_of(clocks& order, typename Device::stream_ref stream) {
  if (order.device_type() != &detail::device_type<Device>) {
    throw misuse_error(
        "memory: this source works on streams of another device than its offloader; make it for"
        " the same one");
  }
  return static_cast<lanes<Device>&>(order).of(stream);
}

}  // namespace tidepool
