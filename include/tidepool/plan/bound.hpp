/// The least time that any plan could take: what the planner measures itself against.
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

/// The bound of a stretch of a step, at whose ends nothing is held.
class stretch_bound {
 public:
  stretch_bound(const layout& map, const link_rates& rates, double budget, double cheapest,
                std::size_t from, std::size_t to)
      : map_(&map), rates_(rates), cheapest_(cheapest), from_(from), to_(to) {
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

  /// Microseconds by which it must be longer than its computing; infinite when nothing fits.
  [[nodiscard]] double extra_us() const {
    if (!fits_) return std::numeric_limits<double>::infinity();
    if (cheapest_ < 0) return with_recomputed(0);
    // Convex in the bytes that are recomputed: each term is.
    double from = 0;
    double to = moved();
    for (int i = 0; i < 60 && to - from > 1; ++i) {
      const auto left = from + (to - from) / 3;
      const auto right = to - (to - from) / 3;
      (with_recomputed(left) < with_recomputed(right) ? to : from) =
          with_recomputed(left) < with_recomputed(right) ? right : left;
    }
    // A little below the least, since the search ends at a byte.
    return std::max(0.0, std::min({with_recomputed(0), with_recomputed(moved()),
                                   with_recomputed(from) - 1e-6}));
  }

  /// Bytes that must leave at least.
  [[nodiscard]] double moved() const { return out_.empty() ? 0 : out_.back().bytes; }

 private:
  struct need {
    double at = 0;     // computing before the call
    double bytes = 0;  // up to it (or from it on)
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

  // Bytes away by need, in the order of calls, or against it. What is held rises by what is asked
  // for; what may be away is what has been committed and is not restored yet.
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
    std::priority_queue<std::pair<std::size_t, std::uint32_t>> idle;  // the last to end first
    double held = 0;
    double moved = 0;
    for (std::size_t i = 0; i < to_ - from_; ++i) {
      const auto& each = event_at(i, backwards);
      const bool of_group = each.kind == commit || each.kind == restore;
      if (of_group && !map_->groups[each.what].comes_back) {
        // It may be gone from its commit on, at no cost in the best case.
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
    // The longest stall before some call, and after one that is not before it.
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
  double cheapest_;  // microseconds of a recomputed byte; negative: none may be
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

/// What the link alone makes of a step under a budget, in microseconds: a lower bound as if copies
/// could use all of its time; infinite when no plan fits.
///
/// Groups are cut into bytes that may leave one by one, from their commit to their restore, and a
/// copy takes no memory on its way. At a call where H bytes are held and the budget is B, H - B are
/// away. The least that must leave up to some call follows by sending, each time, what comes back
/// last; by symmetry, the least that must come back after some call. Then, with `ready` the first
/// commit and `last` the last restore,
///
///     stall before call k  >=  ready + out(k) / rate_out - t(k)
///     stall after call k   >=  in(k) / rate_in - (last - t(k))
///     step                 >=  ready + 2 moved / rate_both + compute after `last`
///
/// and stalls before one call and after another that is not before it add up, as do those of
/// stretches between which nothing is held. Waits for other ranks may hide as much as they last.
/// Recomputing a byte costs at least what it costs in the
/// cheapest group; the bound is the least over how many are.
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

/// A lower bound for a step under a budget, in microseconds, whichever groups are kept, leave or
/// are computed again, whenever, and how far ahead; infinite when no plan fits.
///
/// The larger of two. The one is `link_bound`. The other counts memory over time: bytes that leave
/// take memory until they are copied and bytes that come back from then on, each direction and both
/// together have their rates, and of what is above the budget at any moment all is away. That is a
/// linear programme over stretches of time. Any prices of link and memory prove a bound of it
/// (Lagrange), so nothing rests on how they were found. `price_search` goes uphill in a coarse cut
/// of the step: it sees all moments at which memory is short together, and both directions of a
/// link at a price between. `window_search` takes, exactly, the best set of windows of time that do
/// not overlap, in finer ones. In steady 1F1B of depth 2, with V bytes a microbatch and M of
/// memory, a microbatch takes at least (2V - M) / rate.
///
/// What neither knows: a group leaves and comes back whole, its memory is taken until its copy is
/// over, copies are made in the order of calls, and memory may be in pieces. What a recomputation
/// reads is up to the trainer, here as in the simulator.
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
  // A sum of so many numbers is a little off.
  return std::max(by_link, map.compute_us + extra - 1e-9 * (map.compute_us + extra));
}

/// The links of a step, and what a neighbour has.
struct step_links {
  link_rates host;                 ///< to the host and back
  std::optional<link_rates> peer;  ///< to a neighbour's memory
  bool shared = false;             ///< the latter is a part of the former
  std::size_t peer_budget = 0;     ///< bytes of the neighbour's memory; 0: none
};

namespace detail {

// The larger of two bounds. For the one, both links are one that has the rates of both. For the
// other, a neighbour's memory is the device's own: what is above both has to be on the host, over
// the host's link. Latencies of two links may overlap, so that they are left out.
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

/// The same for all links of a step.
[[nodiscard]] inline double link_bound(const detail::layout& map, const step_links& links,
                                       std::size_t budget, bool may_recompute) {
  return detail::bound_over(links, budget, [&](const link_rates& rates, std::size_t bytes) {
    return link_bound(map, rates, bytes, may_recompute);
  });
}

/// The same for all links of a step.
[[nodiscard]] inline double lower_bound(const detail::layout& map, const step_links& links,
                                        std::size_t budget, bool may_recompute) {
  return detail::bound_over(links, budget, [&](const link_rates& rates, std::size_t bytes) {
    return lower_bound(map, rates, bytes, may_recompute);
  });
}

}  // namespace tidepool::plan
