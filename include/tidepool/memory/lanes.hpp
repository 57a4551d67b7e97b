/// The clocks of a device: records positions on its streams and makes them wait.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/happening.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0 {

/// Records positions on streams and makes streams wait for them.
///
/// Each lane keeps its last `ring` events. A ticket older than that is waited for through the
/// oldest event still kept, which is later on the same lane: more waiting, never less. So tickets
/// are plain numbers that nobody has to give back, and no event is created after a lane's first
/// use.
///
/// A join that the waiter made before, directly or through a lane that had made it, is not issued
/// again. Nothing here blocks the host. Thread safety: none. Calls of each step are inlined by
/// force, as in `ranges`.
class lanes final : public clocks {
 public:
  /// Events of each lane; older positions are joined through a later one.
  static constexpr std::size_t ring = detail::hardware::ring;

  /// `dev` and `heard` must outlive this object; `heard` are told of each wait.
  lanes(detail::hardware& dev, const detail::observers& heard)
      : clocks(dev.device_type()), dev_(&dev), heard_(&heard) {}

  /// Adds a lane, with its events, for a stream that has none. `stream` points to the stream, whose
  /// type `lane_of` knows.
  lane_id add(const void* stream) {
    return add_by([&](lane_id fresh) { dev_->open(fresh, stream, capturing_); });
  }
  /// Like `add`, for a stream of the lane's own.
  lane_id add_own() {
    return add_by([&](lane_id fresh) { dev_->open_own(fresh); });
  }

  /// Counts all lanes so far as the offloader's own.
  void own_all() { own_ = leading_ = count_; }
  /// Counts `more` lanes as the offloader's own, which `open` adds; where it throws, they are gone.
  /// Lanes of the trainer's keep their numbers: they come later, or were there before.
  template <class Open>
  void own_more(std::size_t more, const Open& open) {
    const auto before = count_;
    try {
      open();
    } catch (...) {
      while (count_ > before) dev_->close(static_cast<lane_id>(--count_));
      throw;
    }
    own_ += more;
  }
  /// Counts a graph that a capture has made.
  void made_graph() { ++graphs_; }
  /// Graphs that captures have made.
  [[nodiscard]] std::uint64_t graphs() const { return graphs_; }
  /// The device whose streams the lanes stand for.
  [[nodiscard]] detail::hardware& device() const { return *dev_; }

  /// Records the lane's present position.
  [[gnu::always_inline]] ticket record(lane_id on) override {
    auto& clock = clock_of(on);
    const auto event = clock.recorded % ring;
    dev_->record(on, event);
    marks_[index_of(on)][event] = clock.known;
    return {on, ++clock.recorded, ++order_};
  }

  /// Makes `to` wait for all work that `from` has been given; returns the position of that.
  [[gnu::always_inline]] ticket hand_on(lane_id from, lane_id to, join_site site) {
    const auto all = record(from);
    join(to, all, site);
    return all;
  }

  /// Makes `waiter` wait for `until`; returns true if that took an event join.
  [[gnu::always_inline]] bool join(lane_id waiter, const ticket& until, join_site site) {
    if (joined(waiter, until) || left_out(site)) return false;
    auto mark = detail::observers::no_mark;
    heard_->begin_span(waiter, mark);
    wait(waiter, index_of(until.lane), until.position);
    heard_->end_span(waiter, mark, {trace::span_kind::stall, name_of(site)});
    return true;
  }
  bool join(lane_id waiter, const fence& until, join_site site) override {
    return !joined(waiter, until) && join_all(waiter, until, site);
  }

  /// Returns false where the device cannot tell, and for work inside a capture, which may never
  /// run.
  [[nodiscard]] bool passed(const fence& until) noexcept override {
    if (!dev_->can().tells_what_is_over || capturing_) return false;
    try {
      for (std::size_t lane = 0; lane < count_; ++lane) {
        if (until.position(lane) > passed_[lane] && !lane_passed(lane, until.position(lane))) {
          return false;
        }
      }
      return true;
    } catch (...) {  // a lane that waits on the device is told
      return false;
    }
  }

  /// Makes `waiter` wait for all that `other` had been given when its `next` was `position`. A
  /// position that nobody has recorded since is recorded now; in a capture it is work from before
  /// the capture, behind which every launch comes anyway.
  void join_work(lane_id waiter, lane_id other, std::uint64_t position, join_site site) {
    if (joined(waiter, ticket(other, position, order_))) return;
    if (position > clock_of(other).recorded) {
      if (capturing_) return;
      record(other);
    }
    join(waiter, ticket(other, position, order_), site);
  }

  // ---- around a stream capture, where no event may be waited for from the other side ----

  /// Makes `into` wait for all that every lane has been given; without `own`, only for the
  /// trainer's lanes.
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

  /// Notes that a capture has begun on `origin`; `forks` take part in it from now on. Every
  /// position so far counts as joined by all, because a launch comes after all work that any lane
  /// was given.
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
  /// Notes that the capture is over. Its work has not run, so no lane waits for that work.
  void end_capture() {
    capturing_ = false;
    for (std::size_t i = 0; i < count_; ++i) captured_[i] = clocks_[i].recorded;
    assume_met();
    meet(join_site::after_capture);
  }

 private:
  [[nodiscard]] bool lane_passed(std::size_t lane, std::uint64_t position) {
    if (position <= captured_[lane]) return false;
    // An event that has been recorded anew since stands for later work.
    if (!dev_->passed(static_cast<lane_id>(lane), (position - 1) % ring)) return false;
    passed_[lane] = position;
    return true;
  }

  bool join_all(lane_id waiter, const fence& until, join_site site) {
    if (left_out(site)) return false;
    const auto& known = clock_of(waiter).known;
    auto mark = detail::observers::no_mark;
    heard_->begin_span(waiter, mark);
    // The copy streams come first: having waited for them often makes the rest unnecessary.
    for (std::size_t other = 0; other < count_; ++other) {
      if (other == index_of(waiter) || until.position(other) <= known[other]) continue;
      wait(waiter, other, until.position(other));
    }
    heard_->end_span(waiter, mark, {trace::span_kind::stall, name_of(site)});
    return true;
  }

  [[nodiscard]] bool left_out(join_site site) const {
    return dev_->can().drops_joins && dev_->leaves_out(site);
  }

  [[gnu::always_inline]] void wait(lane_id waiter, std::size_t other, std::uint64_t position) {
    const auto recorded = clocks_[other].recorded;
    const auto oldest = recorded > ring ? recorded - ring + 1 : 1;
    const auto actual = std::max(position, oldest);
    const auto event = (actual - 1) % ring;
    dev_->wait(waiter, static_cast<lane_id>(other), event);
    auto& known = clock_of(waiter).known;
    const auto& mark = marks_[other][event];
    for (std::size_t i = 0; i < count_; ++i) known[i] = std::max(known[i], mark[i]);
    known[other] = std::max(known[other], actual);
  }

  template <class Open>
  lane_id add_by(const Open& open) {
    if (count_ == max_lanes) {
      throw misuse_error("an offloader serves at most " + std::to_string(max_lanes - own_) +
                         " streams beside its own " + (own_ == 2 ? "two" : std::to_string(own_)) +
                         "; use fewer streams, or one offloader for each set of them");
    }
    const auto id = static_cast<lane_id>(count_);
    marks_[count_].assign(ring, {});
    open(id);
    clocks_[count_++] = {};
    // The lane knows nothing yet, and must never wait for work on the other side of a capture. In a
    // capture it takes part by the trainer's own fork, which is behind all work from before the
    // capture, but not behind the work that the copy streams have been given in it.
    if (capturing_) {
      clock_of(id).known = before_capture_;
    } else if (bounded_) {
      try {
        gather(id, join_site::new_stream);
      } catch (...) {
        dev_->close(static_cast<lane_id>(--count_));
        throw;
      }
    }
    return id;
  }

  detail::hardware* dev_;
  const detail::observers* heard_;
  // The positions that a lane had joined when it recorded each of its events.
  std::array<std::vector<positions>, max_lanes> marks_;
  std::size_t own_ = 2;      // lanes of the offloader's own
  std::size_t leading_ = 2;  // own lanes that come before the trainer's
  bool bounded_ = false;     // there has been a capture
  std::uint64_t graphs_ = 0;
  positions before_capture_{};  // positions at the begin of the latest capture
  positions captured_{};        // positions at the end of the latest capture
  positions passed_{};          // positions that the device said it has passed
};

}  // namespace tidepool
