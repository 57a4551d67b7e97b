// The link and the free memory of a simulated step. `links` predicts when a copy ends
// (microseconds) from its bytes and the rates in GB/s. `freed_queue` holds bytes that become free
// at a later time. The simulator handles calls in order, so both only append.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

// Two queues of copies, one for each direction, each first in, first out. A copy that overlaps with
// earlier copies of the other direction gets the part of the combined rate that those leave. The
// total rate is right at any time; only the split between the two directions may differ from the
// machine.
class links {
 public:
  enum direction : std::size_t { out, in };

  void reset(const link_rates& rates) {
    rate_ = {rates.out, rates.in};
    both_ = std::max({rates.both, rates.out, rates.in});
    latency_ = rates.latency_us;
    for (auto& lane : lanes_) {
      lane.busy.clear();
      lane.end = 0;
      lane.seen = 0;
    }
  }

  // The time at which a copy that may start at `ready` begins, in microseconds.
  [[nodiscard]] double begins(direction which, double ready) const {
    return std::max(ready, lanes_[which].end);
  }
  // Queues copies of `bytes` in all that may start at `ready`, and returns when the last one ends.
  double copy(direction which, std::size_t bytes, double ready, std::size_t copies = 1) {
    auto& lane = lanes_[which];
    const auto& other = lanes_[1 - which];
    const auto begin = begins(which, ready);
    auto now = begin + static_cast<double>(copies) * latency_;
    auto left = static_cast<double>(bytes) / 1e3;  // kB; divided by GB/s they give microseconds
    const auto alone = rate_[which];
    const auto shared = std::max(both_ - rate_[1 - which], both_ / 1e6);
    // Intervals of the other lane before `at` are over, also for all later copies of this lane. The
    // last interval is never passed, because it may still grow.
    auto& at = lane.seen;
    while (at + 1 < other.busy.size() && other.busy[at].end <= now) ++at;
    for (auto i = at; left > 0; ++i) {
      const auto free_until = i < other.busy.size() ? std::max(now, other.busy[i].begin) : now;
      if (i >= other.busy.size() || left <= (free_until - now) * alone) {
        now += left / alone;
        break;
      }
      left -= (free_until - now) * alone;
      now = free_until;
      const auto crowded = std::max(0.0, other.busy[i].end - now);
      if (left <= crowded * shared) {
        now += left / shared;
        break;
      }
      left -= crowded * shared;
      now = std::max(now, other.busy[i].end);
    }
    if (!lane.busy.empty() && begin <= lane.busy.back().end) {
      lane.busy.back().end = now;
    } else {
      lane.busy.push_back({begin, now});
    }
    return lane.end = now;
  }

  // The time at which all copies so far are over.
  [[nodiscard]] double end() const { return std::max(lanes_[out].end, lanes_[in].end); }

 private:
  struct interval {
    double begin = 0;
    double end = 0;
  };
  struct lane_state {
    std::vector<interval> busy;
    double end = 0;
    std::size_t seen = 0;
  };

  std::array<lane_state, 2> lanes_;
  std::array<double, 2> rate_{};
  double both_ = 0;
  double latency_ = 0;
};

inline constexpr std::uint32_t by_compute = none;  // freed by compute, not by an offload

// Bytes of memory that are free once some work has ended.
struct freed_piece {
  std::size_t bytes = 0;
  double time = 0;          // at which that work has ended, in microseconds
  std::uint64_t order = 0;  // position among all frees
  std::uint32_t offload = by_compute;
  bool peer = false;  // the offload went to a neighbour
};

struct freed_queue {
  std::vector<freed_piece> pieces;
  std::size_t head = 0;

  void clear() { pieces.clear(), head = 0; }
  [[nodiscard]] bool empty() const { return head == pieces.size(); }
  [[nodiscard]] freed_piece& front() { return pieces[head]; }
};

// The work that the stream of reloads has already waited for: offloads to the host and to a
// neighbour, and compute. Memory that such work freed can be taken without a further wait.
struct joined_so_far {
  std::array<std::uint32_t, 2> offloads{};
  std::uint64_t compute = 0;

  void note(bool peer, std::uint32_t offload) {
    auto& latest = offloads[peer ? 1 : 0];
    latest = std::max(latest, offload);
  }
  [[nodiscard]] bool has(bool peer, std::uint32_t offload) const {
    return offload <= offloads[peer ? 1 : 0];
  }
};

}  // namespace tidepool::plan::detail
