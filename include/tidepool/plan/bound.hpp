/// Lower bounds of a step's time in microseconds: no plan for a profile, link rates (GB/s) and a
/// budget (bytes) can be faster. The planner compares its plans with the bound, because a search
/// alone cannot say how good its result is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tidepool/plan/detail/layout.hpp"
#include "tidepool/plan/detail/prices.hpp"
#include "tidepool/plan/detail/windows.hpp"

namespace tidepool::inline v0_3_0::plan {

namespace detail {

/// The bound for one stretch of a step. No saved tensor is held at either end of it, so stretches
/// are independent.
class stretch_bound {
 public:
  stretch_bound(const layout& map, const link_rates& rates, double budget, double cheapest,
                std::size_t from, std::size_t to)
      : map_(&map), rates_(in_memory(map, rates)), cheapest_(cheapest), from_(from), to_(to) {
    sweep(budget, false, out_);
    sweep(budget, true, in_);
    ready_ = last_ = map.events[from].at;
    bool any = false;
    for (auto i = from; i < to; ++i) {
      const auto& each = map.events[i];
      if (each.kind == event_kind::commit && !std::exchange(any, true)) ready_ = each.at;
      if (each.kind == event_kind::restore) last_ = each.at;
    }
  }

  /// Microseconds by which the stretch must take longer than its computing; infinite if no plan
  /// fits.
  [[nodiscard]] double extra_us() const {
    if (!fits_) return std::numeric_limits<double>::infinity();
    if (cheapest_ < 0) return with_recomputed(0);
    // The sum is convex in the recomputed bytes because each of its terms is, so a ternary search
    // finds the least.
    double from = 0;
    double to = moved();
    for (int i = 0; i < 60 && to - from > 1; ++i) {
      const auto left = from + (to - from) / 3;
      const auto right = to - (to - from) / 3;
      (with_recomputed(left) < with_recomputed(right) ? to : from) =
          with_recomputed(left) < with_recomputed(right) ? right : left;
    }
    // Slightly less than the least value found, since the search ends at a precision of one byte.
    return std::max(0.0, std::min({with_recomputed(0), with_recomputed(moved()),
                                   with_recomputed(from) - 1e-6}));
  }

  /// The least bytes that must be offloaded.
  [[nodiscard]] double moved() const { return out_.empty() ? 0 : out_.back().bytes; }

 private:
  struct need {
    double at = 0;     // computing before the call, in microseconds
    double bytes = 0;  // that must leave up to the call, or come back from it on
  };

  [[nodiscard]] const flat_event& event_at(std::size_t i, bool backwards) const {
    return map_->events[backwards ? to_ - 1 - i : from_ + i];
  }
  [[nodiscard]] double left_of(std::uint32_t group) const {
    return static_cast<double>(map_->groups[group].bytes) - away_.at(group);
  }

  [[nodiscard]] double bytes_of(const flat_event& each) const {
    return static_cast<double>(map_->storages[each.what].bytes);
  }

  // Fills `needs` with the least bytes that must be away, call by call. The calls are read in
  // order, or backwards. An allocation raises the bytes held (backwards: a release). A group may be
  // away between its commit and its restore.
  void sweep(double budget, bool backwards, std::vector<need>& needs) {
    using enum event_kind;
    const auto opening = backwards ? restore : commit;
    const auto closing = backwards ? commit : restore;
    const auto rising = backwards ? release : allocate;
    const auto falling = backwards ? allocate : release;
    away_.clear();
    ends_.clear();
    for (std::size_t i = 0; i < to_ - from_; ++i) {
      const auto& each = event_at(i, backwards);
      if (each.kind == opening) away_[each.what] = 0;
      if (each.kind == closing) ends_[each.what] = i;
    }
    std::priority_queue<std::pair<std::size_t, std::uint32_t>> idle;  // by end, the last first
    double held = 0;
    double moved = 0;
    for (std::size_t i = 0; i < to_ - from_; ++i) {
      const auto& each = event_at(i, backwards);
      const bool of_group = each.kind == commit || each.kind == restore;
      if (of_group && !map_->groups[each.what].comes_back) {
        // The group never comes back, so it may be gone from its commit on, at no cost in the best
        // case.
        const auto bytes = static_cast<double>(map_->groups[each.what].bytes);
        held += backwards ? bytes : -bytes;
      } else if (each.kind == opening) {
        idle.emplace(ends_[each.what], each.what);
      } else if (each.kind == closing) {
        held += std::exchange(away_[each.what], 0.0);
      }
      const bool gone = each.kind == release && map_->forgotten(each.what) != none;
      if (each.kind == rising && !gone) held += bytes_of(each);
      if (each.kind == falling && !gone) held -= bytes_of(each);
      if (held <= budget) continue;
      while (held > budget) {
        while (!idle.empty() && (idle.top().first <= i || left_of(idle.top().second) <= 0)) {
          idle.pop();
        }
        if (idle.empty()) {
          fits_ = false;
          return;
        }
        const auto group = idle.top().second;
        const auto part = std::min(held - budget, left_of(group));
        away_[group] += part;
        held -= part;
        moved += part;
      }
      needs.push_back({each.at, moved});
    }
    if (backwards) std::reverse(needs.begin(), needs.end());
  }

  [[nodiscard]] double with_recomputed(double bytes) const {
    const auto copied = [&](double needed, double rate) {
      return std::max(0.0, needed - bytes) / rate / 1e3;
    };
    // The longest sum of the stall before one call and the stall after the same call or a later
    // one.
    double stall = 0;
    double before = 0;
    std::size_t next = 0;
    const auto add_before = [&] {
      const auto us = copied(out_[next].bytes, rates_.out);
      if (us > 0) before = std::max(before, ready_ + us - out_[next].at);
    };
    for (const auto& after : in_) {
      for (; next < out_.size() && out_[next].at <= after.at; ++next) add_before();
      const auto us = copied(after.bytes, rates_.in);
      stall = std::max(stall, before + (us > 0 ? std::max(0.0, us - (last_ - after.at)) : 0.0));
    }
    for (; next < out_.size(); ++next) add_before();
    stall = std::max(stall, before);
    const auto both = std::max({rates_.both, rates_.out, rates_.in});
    if (const auto us = 2 * copied(moved(), both); us > 0) {
      stall = std::max(stall, ready_ + us - last_);
    }
    return stall + (bytes > 0 ? bytes * cheapest_ : 0.0);
  }

  const layout* map_;
  link_rates rates_;
  double cheapest_;  // microseconds for a recomputed byte; negative: recomputing is not allowed
  std::size_t from_;
  std::size_t to_;
  std::unordered_map<std::uint32_t, double> away_;
  std::unordered_map<std::uint32_t, std::size_t> ends_;
  std::vector<need> out_;
  std::vector<need> in_;
  double ready_ = 0;
  double last_ = 0;
  bool fits_ = true;
};

}  // namespace detail

/// The least time of a step under a budget, in microseconds, if only the link limits it: copies may
/// use all of the link's time. Infinite if no plan fits.
///
/// The bound relaxes the problem. Groups are cut into single bytes that may be away from their
/// commit to their restore, and a byte takes no memory while it is copied. If H bytes are held at a
/// call and the budget is B, then H - B bytes must be away. The least bytes that must leave before
/// a call result from Belady's rule: always offload the bytes that come back last. By symmetry, the
/// same sweep backwards gives the least bytes that must come back after a call. Let `ready` be the
/// time of the first commit and `last` that of the last restore. Then
///
///     stall before call k  >=  ready + out(k) / rate_out - t(k)
///     stall after call k   >=  in(k) / rate_in - (last - t(k))
///     step                 >=  ready + 2 moved / rate_both + compute after `last`
///
/// The stall before one call and the stall after the same call or a later one add up. Stalls of
/// stretches add up, too, if nothing is held between them. Waits for other ranks may hide stalls up
/// to their own length, so they are subtracted. A recomputed byte costs at least what it costs in
/// the cheapest group; the bound is the least over all numbers of recomputed bytes.
[[nodiscard]] inline double link_bound(const detail::layout& map, const link_rates& rates,
                                       std::size_t budget, bool may_recompute) {
  double cheapest = -1;
  for (const auto& each : map.groups) {
    if (!may_recompute || each.recompute_us <= 0 || each.bytes == 0) continue;
    const auto cost = each.recompute_us / static_cast<double>(each.bytes);
    cheapest = cheapest < 0 ? cost : std::min(cheapest, cost);
  }
  const auto limit =
      budget == 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(budget);
  double extra = 0;
  std::size_t held = 0;
  std::size_t from = 0;
  for (std::size_t i = 0; i < map.events.size(); ++i) {
    const auto& each = map.events[i];
    if (each.kind == event_kind::allocate) held += map.storages[each.what].bytes;
    if (each.kind == event_kind::release) held -= map.storages[each.what].bytes;
    if (each.kind != event_kind::release || held > 0) continue;
    extra += detail::stretch_bound(map, rates, limit, cheapest, from, i + 1).extra_us();
    from = i + 1;
  }
  if (from < map.events.size()) {
    extra += detail::stretch_bound(map, rates, limit, cheapest, from, map.events.size()).extra_us();
  }
  double waits = map.rest_wait;
  bool any = false;
  for (const auto& each : map.events) {
    if (any) waits += each.wait;
    any = any || each.kind == event_kind::commit;
  }
  return map.compute_us + std::max(0.0, extra - waits);
}

/// A lower bound for a step under a budget, in microseconds, over all choices of actions, of times
/// of copies and of reloads ahead. Infinite if no plan fits.
///
/// The result is the larger of two bounds. The first is `link_bound`. The second also counts memory
/// over time: bytes take memory until they are copied out, and again from their copy back on. Each
/// direction of the link has its rate, and so have both together; all bytes above the budget must
/// be away at any moment. These conditions are a linear programme over stretches of time. By
/// Lagrangian duality, any prices of link time and memory prove a lower bound, however the prices
/// were found. Two searches find good prices. `price_search` climbs the gradient of the bound in a
/// coarse cut of the step. `price_search` sees all moments at which memory is short together, and
/// can give each direction of the link a price between 0 and 1. `window_search` finds the exact
/// best set of windows of time that do not overlap, in finer cuts. Example: in steady 1F1B of depth
/// 2, with V bytes a microbatch and M bytes of memory, a microbatch takes at least (2V - M) / rate.
///
/// Neither bound knows that a group leaves and comes back whole, that its memory is taken until its
/// copy is over, that copies run in the order of calls, and that memory may be fragmented. Inputs
/// of a recomputation are left to the trainer, as in the simulator.
[[nodiscard]] inline double lower_bound(const detail::layout& map, const link_rates& rates,
                                        std::size_t budget, bool may_recompute) {
  const auto by_link = link_bound(map, rates, budget, may_recompute);
  if (budget == 0 || std::isinf(by_link)) return by_link;
  const auto cut = [&](std::size_t stretches, bool by_passes) {
    return detail::timeline_cutter(map, rates, static_cast<double>(budget), may_recompute,
                                   stretches, by_passes)
        .take();
  };
  const auto coarse = cut(constants::coarse_stretches, true);
  auto extra = detail::price_proof(coarse, detail::price_search(coarse).run()).least_us();
  for (const auto stretches : constants::fine_stretches) {
    if (may_recompute) break;
    const auto fine = cut(stretches, false);
    extra =
        std::max(extra, detail::price_proof(fine, detail::window_search(fine).run()).least_us());
    if (map.events.size() <= stretches) break;
  }
  // Subtracts the rounding error of a sum of so many numbers, so that the result stays a lower
  // bound.
  return std::max(by_link, map.compute_us + extra - 1e-9 * (map.compute_us + extra));
}

/// The links that a step may use, and the neighbour's memory.
struct step_links {
  link_rates host;                 ///< to the host and back
  std::optional<link_rates> peer;  ///< to a neighbour's memory
  bool shared = false;             ///< the neighbour's link is part of the host's
  std::size_t peer_budget = 0;     ///< bytes of the neighbour's memory; 0: none
};

namespace detail {

// The larger of two bounds for a device with a neighbour. The first merges both links into one with
// the sum of their rates. The second counts the neighbour's memory as the device's own: bytes above
// both must be on the host, and cross the host's link. The merged link has no latency, since
// latencies of two links may overlap.
template <class Bound>
[[nodiscard]] double bound_over(const step_links& links, std::size_t budget, const Bound& bound) {
  if (!links.peer || links.peer_budget == 0 || budget == 0) return bound(links.host, budget);
  auto all = links.host;
  if (!links.shared) {
    const auto most = [](const link_rates& of) { return std::max({of.both, of.out, of.in}); };
    all = {all.out + links.peer->out, all.in + links.peer->in, most(all) + most(*links.peer), 0};
  }
  const auto more = std::min(links.peer_budget, std::numeric_limits<std::size_t>::max() - budget);
  return std::max(bound(all, budget), bound(links.host, budget + more));
}

}  // namespace detail

/// `link_bound` for a step that may use all links of `links`.
[[nodiscard]] inline double link_bound(const detail::layout& map, const step_links& links,
                                       std::size_t budget, bool may_recompute) {
  return detail::bound_over(links, budget, [&](const link_rates& rates, std::size_t bytes) {
    return link_bound(map, rates, bytes, may_recompute);
  });
}

/// `lower_bound` for a step that may use all links of `links`.
[[nodiscard]] inline double lower_bound(const detail::layout& map, const step_links& links,
                                        std::size_t budget, bool may_recompute) {
  return detail::bound_over(links, budget, [&](const link_rates& rates, std::size_t bytes) {
    return lower_bound(map, rates, bytes, may_recompute);
  });
}

}  // namespace tidepool::plan
