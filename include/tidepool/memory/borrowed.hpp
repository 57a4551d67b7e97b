/// Memory that belongs to an allocator of another owner, and its way back.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/memory/memory_owner.hpp"

namespace tidepool::inline v0_3_0 {

/// The memory that an offloader has borrowed: in use, or on its way back to owners that know
/// streams, but no fences.
///
/// An owner gets its memory once its own stream, `home`, has joined the fence behind which the
/// memory is free, so that the stream may use it again at once. Most often `home` has joined that
/// fence anyhow, or the work is over by now (asked where the device can tell without waiting). Else
/// the memory waits, and while more than the slack waits, `home` joins the oldest fence. The host
/// never blocks. Inside a stream capture nothing is given back.
///
/// An owner may call the offloader when it gets memory back. Thread safety: none.
class borrowed_memory {
 public:
  /// Fences are positions of `order`, which must outlive this object.
  explicit borrowed_memory(clocks& order) : order_(&order) { ends_.fill({none, none}); }
  borrowed_memory(const borrowed_memory&) = delete;
  borrowed_memory& operator=(const borrowed_memory&) = delete;
  ~borrowed_memory() { abandon(); }

  /// Most bytes that may wait before a stream is made to join; no limit at first.
  void set_slack(std::size_t bytes) { slack_ = bytes; }

  /// Takes memory over from `owner`, until `release` of the number that it returns. Where it throws
  /// (no memory on the heap), `owner` is as before.
  [[nodiscard]] std::uint32_t hold(memory_owner& owner, lane_id home, std::size_t bytes) {
    if (spare_ == none) {
      entries_.emplace_back();
      spare_ = static_cast<std::uint32_t>(entries_.size() - 1);
      entries_.back().next = none;
    }
    const auto number = spare_;
    auto& fresh = entries_[number];
    spare_ = fresh.next;
    fresh = {std::move(owner), {}, bytes, none, home};
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return number;
  }
  /// Releases memory that only the work behind `after` still uses.
  void release(std::uint32_t number, const fence& after) noexcept {
    auto& done = entries_[number];
    done.ready = after;
    auto& line = ends_[index_of(done.home)];
    (line.first == none ? line.first : entries_[line.last].next) = number;
    line.last = number;
    waiting_ += done.bytes;
    give_back(slack_);
  }

  /// Gives memory back that may go, with joins while more than `most` bytes wait. A join that the
  /// device refuses is left for later.
  void give_back(std::size_t most) noexcept {
    if (waiting_ == 0 || giving_ || order_->capturing()) return;
    giving_ = true;
    for (std::size_t home = 0; home < order_->count(); ++home) give_joined(home);
    try {
      while (waiting_ > most) {
        const auto home = oldest();
        const auto lane = static_cast<lane_id>(home);
        if (order_->join(lane, entries_[ends_[home].first].ready, join_site::give_back)) ++joins_;
        give_first(home);
        give_joined(home);
      }
    } catch (...) {  // the next call tries again
    }
    giving_ = false;
  }
  /// Gives memory back that may go, with joins while more than the slack waits.
  void give_back() noexcept { give_back(slack_); }

  /// Gives all memory back, used or not; the device must run nothing any more.
  void abandon() noexcept {
    for (auto& line : ends_) line = {none, none};
    for (auto& each : entries_) each.owner.give_back();
    held_ = waiting_ = 0;
  }

  [[nodiscard]] bool giving() const { return giving_; }     ///< true while an owner is being called
  [[nodiscard]] std::size_t held() const { return held_; }  ///< bytes, waiting ones as well
  [[nodiscard]] std::size_t peak() const { return peak_; }  ///< the most bytes ever held
  [[nodiscard]] std::size_t waiting() const { return waiting_; }  ///< bytes on their way back
  /// Times that a stream was made to wait for its owner's sake.
  [[nodiscard]] std::uint64_t joins() const { return joins_; }

 private:
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

  struct entry {
    memory_owner owner;
    fence ready;
    std::size_t bytes = 0;
    std::uint32_t next = none;  // next entry that waits for the same home, or is not in use
    lane_id home{};
  };
  struct line_of_home {
    std::uint32_t first = none;
    std::uint32_t last = none;
  };

  void give_joined(std::size_t home) noexcept {
    const auto lane = static_cast<lane_id>(home);
    for (auto& line = ends_[home]; line.first != none;) {
      const auto& ready = entries_[line.first].ready;
      if (!order_->joined(lane, ready) && !order_->passed(ready)) return;
      give_first(home);
    }
  }

  // The books are in order before the owner is called, because the owner may call back.
  void give_first(std::size_t home) noexcept {
    auto& line = ends_[home];
    const auto number = line.first;
    auto& gone = entries_[number];
    line.first = gone.next;
    waiting_ -= gone.bytes;
    held_ -= gone.bytes;
    auto owner = std::move(gone.owner);
    gone.next = std::exchange(spare_, number);
    owner.give_back();
  }

  // The lane that waits for the oldest fence.
  [[nodiscard]] std::size_t oldest() const {
    std::size_t best = ends_.size();
    for (std::size_t home = 0; home < ends_.size(); ++home) {
      if (ends_[home].first == none) continue;
      if (best == ends_.size() || order_of(home) < order_of(best)) best = home;
    }
    return best;
  }
  [[nodiscard]] std::uint64_t order_of(std::size_t home) const {
    return entries_[ends_[home].first].ready.order();
  }

  clocks* order_;
  std::vector<entry> entries_;
  std::array<line_of_home, max_lanes> ends_;  // queue of entries for each lane, oldest first
  std::uint32_t spare_ = none;
  std::size_t slack_ = std::numeric_limits<std::size_t>::max();
  std::size_t held_ = 0;
  std::size_t peak_ = 0;
  std::size_t waiting_ = 0;
  std::uint64_t joins_ = 0;
  bool giving_ = false;
};

}  // namespace tidepool
