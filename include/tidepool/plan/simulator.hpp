/// How long a step takes with given actions: the engine's rules over a profile, without the engine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tidepool/plan/detail/links.hpp"
#include "tidepool/plan/detail/reload_queue.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::plan {

/// The budget and the reloads ahead of use, as in `options`.
struct run_limits {
  std::size_t device_budget = 0;       ///< bytes; 0: no limit
  std::size_t reload_ahead = 2;        ///< groups
  std::size_t reload_ahead_bytes = 0;  ///< 0: no limit
};

/// A step by the rules of the engine with an arena: memory is handed out in the order of calls,
/// oldest fence first; copies are first in first out in each direction; reloads start at the end of
/// a forward pass and after each restore, as far as `run_limits` and memory allow. Where memory is
/// `stream_ordered`, copies back wait for the compute stream, which itself waits for offloads whose
/// memory it needs; and those that found none begin as soon as some is released.
///
/// Time is linear in the number of events. What it leaves out, and `forecast` does not: memory in
/// pieces, caps, several compute streams, views, storages that several groups save. Reuse one
/// object for many runs; nothing is allocated after the first. Thread safety: none.
class simulator {
 public:
  /// For runs of this step, of which it keeps what it needs.
  explicit simulator(const profile& step)
      : map_(step), rates_(step.link), stream_ordered_(step.stream_ordered) {}

  /// The step as runs read it: groups and events, flat.
  [[nodiscard]] const detail::layout& map() const { return map_; }
  /// The rates of the profile's link.
  [[nodiscard]] const link_rates& rates() const { return rates_; }
  /// Steps simulated so far.
  [[nodiscard]] std::size_t runs() const { return runs_; }

  /// One step in which `what` is done to each group, within `limits`.
  [[nodiscard]] outcome run(const std::vector<action>& what, const run_limits& limits) {
    start(what, limits);
    ++runs_;
    double before = 0;
    for (const auto& each : map_.events) {
      pass(before, each.at, each.wait);
      before = each.at;
      if (!step(each)) {
        result_.runs = false;
        result_.step_us = std::numeric_limits<double>::infinity();
        return result_;
      }
    }
    pass(before, map_.compute_us, map_.rest_wait);
    result_.step_us = now_;
    return result_;
  }

 private:
  static constexpr std::uint32_t by_compute = none;  // freed by compute, not by an offload

  // Device memory that is free after something.
  struct piece {
    std::size_t bytes = 0;
    double time = 0;          // when that has ended
    std::uint64_t order = 0;  // of calls
    std::uint32_t offload = by_compute;
  };
  struct queue {
    std::vector<piece> pieces;
    std::size_t head = 0;

    void clear() { pieces.clear(), head = 0; }
    [[nodiscard]] bool empty() const { return head == pieces.size(); }
    [[nodiscard]] piece& front() { return pieces[head]; }
  };

  using place = detail::place;

  void start(const std::vector<action>& what, const run_limits& limits) {
    what_ = &what;
    limits_ = limits;
    if (limits_.device_budget == 0) {
      limits_.device_budget = std::numeric_limits<std::size_t>::max() / 2;
    }
    result_ = {};
    link_.reset(rates_);
    by_compute_.clear();
    by_offload_.clear();
    free_ = limits_.device_budget;
    fresh_ = free_;
    starved_ = false;
    now_ = 0;
    order_ = 0;
    offloads_ = 0;
    seen_by_reload_ = 0;
    compute_seen_by_reload_ = 0;
    reloads_.start(map_, limits.reload_ahead,
                   limits.reload_ahead_bytes > 0 ? limits.reload_ahead_bytes : reloads_.unlimited);
    done_.assign(map_.groups.size(), 0);
    offload_of_.assign(map_.groups.size(), 0);
  }

  void pass(double from, double to, double wait) {
    now_ += detail::passed_us(now_, from, to, wait);
  }

  [[nodiscard]] action of(std::uint32_t group) const { return (*what_)[group]; }

  bool step(const detail::flat_event& each) {
    switch (each.kind) {
      case event_kind::allocate:
        return allocate(map_.storages[each.what].bytes);
      case event_kind::commit:
        commit(each.what);
        return true;
      case event_kind::end_forward:
        reloads_.end_forward(each.what);
        reload_ahead();
        return true;
      case event_kind::restore:
        return restore(each.what);
      case event_kind::release:
        if (is_away(map_.storages[each.what])) return true;  // forgotten; it took nothing any more
        give(by_compute_, map_.storages[each.what].bytes, now_, by_compute);
        if (starved_) reload_ahead();
        return true;
      case event_kind::drop:
        drop(map_.storages[each.what]);
        if (starved_) reload_ahead();
        return true;
    }
    return false;
  }

  [[nodiscard]] bool is_away(const detail::flat_storage& store) {
    return store.group != none && reloads_.where(store.group) == place::away;
  }

  void give(queue& into, std::size_t bytes, double time, std::uint32_t offload) {
    into.pieces.push_back({bytes, time, ++order_, offload});
    free_ += bytes;
  }

  // Compute waits for what it takes; memory that it freed itself needs no wait.
  bool allocate(std::size_t bytes) {
    while (free_ < bytes) {
      if (!evict()) return false;
    }
    free_ -= bytes;
    note_peak();
    take_by_compute(bytes);
    return true;
  }
  void take_by_compute(std::size_t bytes) {
    double until = now_;
    take_fresh(bytes);
    take(by_compute_, bytes, [](const piece&) {});
    take(by_offload_, bytes, [&](const piece& from) { until = std::max(until, from.time); });
    wait(until);
  }

  void take_fresh(std::size_t& left) {
    const auto part = std::min(left, fresh_);
    fresh_ -= part;
    left -= part;
  }

  template <class Note>
  void take(queue& from, std::size_t& left, const Note& note) {
    while (left > 0 && !from.empty()) {
      auto& front = from.front();
      note(front);
      const auto part = std::min(left, front.bytes);
      front.bytes -= part;
      left -= part;
      if (front.bytes == 0) ++from.head;
    }
  }

  void wait(double until) {
    if (until <= now_) return;
    result_.stall_us += until - now_;
    now_ = until;
  }

  void note_peak() { result_.peak = std::max(result_.peak, limits_.device_budget - free_); }

  void commit(std::uint32_t group) {
    const auto bytes = map_.groups[group].bytes;
    reloads_.where(group) = place::device;
    if (of(group) == action::keep || bytes == 0) return;
    reloads_.where(group) = place::away;
    if (of(group) == action::recompute) return give(by_compute_, bytes, now_, by_compute);
    const auto end = link_.copy(detail::links::out, bytes, now_);
    done_[group] = end;
    offload_of_[group] = ++offloads_;
    result_.moved += bytes;
    give(by_offload_, bytes - map_.groups[group].outliving, end, offloads_);
  }

  // Free since its copy ended, and nobody holds it any more.
  void drop(const detail::flat_storage& store) {
    if (of(store.group) != action::offload) return;
    give(by_offload_, store.bytes, std::max(now_, done_[store.group]), offload_of_[store.group]);
  }

  bool restore(std::uint32_t group) {
    const auto& about = map_.groups[group];
    if (of(group) == action::recompute && about.bytes > 0) {
      if (!allocate(about.bytes)) return false;
      now_ += about.recompute_us;
      result_.extra_us += about.recompute_us;
    } else if (of(group) == action::offload && about.bytes > 0) {
      while (reloads_.where(group) == place::away && !reload(group)) {
        if (!evict()) return false;
      }
      wait(done_[group]);
    }
    reloads_.restored(group);
    reload_ahead();
    return true;
  }

  // The copy back, into memory that the reload stream need not wait for, else the oldest.
  bool reload(std::uint32_t group) {
    const auto bytes = map_.groups[group].bytes;
    if (free_ < bytes) {
      starved_ = stream_ordered_;
      return false;
    }
    free_ -= bytes;
    note_peak();
    if (stream_ordered_) return reload_behind_compute(group);
    seen_by_reload_ = std::max(seen_by_reload_, offload_of_[group]);
    double ready = done_[group];
    auto left = bytes;
    take_fresh(left);
    while (left > 0) {
      const bool outgoing = !by_offload_.empty();
      const bool computed = !by_compute_.empty();
      const bool joined = outgoing && by_offload_.front().offload <= seen_by_reload_;
      const bool known = computed && by_compute_.front().order <= compute_seen_by_reload_;
      const bool first_out =
          !computed ||
          (outgoing &&
           (joined || (!known && by_offload_.front().order < by_compute_.front().order)));
      auto& queue_of = first_out ? by_offload_ : by_compute_;
      auto& from = queue_of.front();
      ready = std::max(ready, from.time);
      if (first_out) {
        seen_by_reload_ = std::max(seen_by_reload_, from.offload);
      } else {
        compute_seen_by_reload_ = std::max(compute_seen_by_reload_, from.order);
      }
      const auto part = std::min(left, from.bytes);
      from.bytes -= part;
      left -= part;
      if (from.bytes == 0) ++queue_of.head;
    }
    done_[group] = link_.copy(detail::links::in, bytes, ready);
    reloads_.where(group) = place::arriving;
    return true;
  }

  // The allocator's stream has the memory first.
  bool reload_behind_compute(std::uint32_t group) {
    take_by_compute(map_.groups[group].bytes);
    done_[group] =
        link_.copy(detail::links::in, map_.groups[group].bytes, std::max(now_, done_[group]));
    reloads_.where(group) = place::arriving;
    return true;
  }

  void reload_ahead() {
    starved_ = false;
    reloads_.advance([&](std::uint32_t group) { return of(group) == action::offload; },
                     [&](std::uint32_t group) { return reload(group); });
  }

  bool evict() {
    const auto group = reloads_.evict();
    if (group == none) return false;
    // No offload: nobody has to wait for one.
    give(by_offload_, map_.groups[group].bytes, done_[group], 0);
    return true;
  }

  detail::layout map_;
  std::size_t runs_ = 0;
  link_rates rates_;
  bool stream_ordered_;
  bool starved_ = false;  // a reload ahead found no memory
  detail::links link_;
  const std::vector<action>* what_ = nullptr;
  run_limits limits_;
  outcome result_;
  queue by_compute_;
  queue by_offload_;
  std::size_t free_ = 0;
  std::size_t fresh_ = 0;  // of it, never used
  double now_ = 0;
  std::uint64_t order_ = 0;
  std::uint32_t offloads_ = 0;
  std::uint32_t seen_by_reload_ = 0;
  std::uint64_t compute_seen_by_reload_ = 0;
  detail::reload_queue reloads_;
  std::vector<double> done_;
  std::vector<std::uint32_t> offload_of_;
};

}  // namespace tidepool::plan
