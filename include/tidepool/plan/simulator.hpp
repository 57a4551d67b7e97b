/// How long a step takes with given actions: the engine's rules over a profile, without the engine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tidepool/plan/detail/layout.hpp"
#include "tidepool/plan/detail/links.hpp"
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
/// a forward pass and after each restore, as far as `run_limits` and memory allow.
///
/// Time is linear in the number of events. What it leaves out, and `forecast` does not: memory in
/// pieces, caps, several compute streams, views, storages that several groups save. Reuse one
/// object for many runs; nothing is allocated after the first. Thread safety: none.
class simulator {
 public:
  /// For runs of this step, of which it keeps what it needs.
  explicit simulator(const profile& step) : map_(step), rates_(step.link) {}

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

  enum class place : std::uint8_t { nowhere, device, leaving, away, arriving };

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
    now_ = 0;
    order_ = 0;
    offloads_ = 0;
    seen_by_reload_ = 0;
    compute_seen_by_reload_ = 0;
    next_reload_ = 0;
    ahead_.clear();
    ahead_head_ = 0;
    ahead_bytes_ = 0;
    where_.assign(map_.groups.size(), place::nowhere);
    done_.assign(map_.groups.size(), 0);
    offload_of_.assign(map_.groups.size(), 0);
    forward_done_.assign(map_.first.size(), false);
  }

  // Computing goes on to `to`; by how much it is late, a wait for other ranks is shorter.
  void pass(double from, double to, double wait) {
    now_ += to - from - (wait > 0 ? std::min(wait, std::max(0.0, now_ - from)) : 0.0);
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
        forward_done_[each.what] = true;
        reload_ahead();
        return true;
      case event_kind::restore:
        return restore(each.what);
      case event_kind::release:
        if (is_away(map_.storages[each.what])) return true;  // forgotten; it took nothing any more
        give(by_compute_, map_.storages[each.what].bytes, now_, by_compute);
        return true;
      case event_kind::drop:
        drop(map_.storages[each.what]);
        return true;
    }
    return false;
  }

  [[nodiscard]] bool is_away(const detail::flat_storage& store) const {
    return store.group != none && where_[store.group] == place::away;
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
    auto left = bytes;
    double until = now_;
    take_fresh(left);
    take(by_compute_, left, [](const piece&) {});
    take(by_offload_, left, [&](const piece& from) { until = std::max(until, from.time); });
    wait(until);
    return true;
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
    where_[group] = place::device;
    if (of(group) == action::keep || bytes == 0) return;
    where_[group] = place::away;
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
      if (where_[group] == place::away) {
        while (!reload(group)) {
          if (!evict()) return false;
        }
        ahead_bytes_ += about.bytes;
      }
      forget_ahead(group);
      wait(done_[group]);
    }
    where_[group] = place::device;
    reload_ahead();
    return true;
  }

  // The copy back, into memory that the reload stream need not wait for, else the oldest.
  bool reload(std::uint32_t group) {
    const auto bytes = map_.groups[group].bytes;
    if (free_ < bytes) return false;
    free_ -= bytes;
    note_peak();
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
      auto& from = (first_out ? by_offload_ : by_compute_).front();
      ready = std::max(ready, from.time);
      if (first_out) {
        seen_by_reload_ = std::max(seen_by_reload_, from.offload);
      } else {
        compute_seen_by_reload_ = std::max(compute_seen_by_reload_, from.order);
      }
      auto& queue_of = first_out ? by_offload_ : by_compute_;
      const auto part = std::min(left, from.bytes);
      from.bytes -= part;
      left -= part;
      if (from.bytes == 0) ++queue_of.head;
    }
    done_[group] = link_.copy(detail::links::in, bytes, ready);
    where_[group] = place::arriving;
    return true;
  }

  void reload_ahead() {
    while (next_reload_ < map_.reload_order.size()) {
      const auto group = map_.reload_order[next_reload_];
      if (of(group) != action::offload || map_.groups[group].bytes == 0 ||
          where_[group] == place::arriving || restored_before(group)) {
        ++next_reload_;
        continue;
      }
      if (ahead_.size() - ahead_head_ >= limits_.reload_ahead) return;
      if (limits_.reload_ahead_bytes > 0 && ahead_bytes_ >= limits_.reload_ahead_bytes) return;
      if (where_[group] != place::away || !forward_done_[map_.groups[group].chunk]) return;
      if (!reload(group)) return;
      ahead_.push_back(group);
      ahead_bytes_ += map_.groups[group].bytes;
      ++next_reload_;
    }
  }

  // Restored on demand while it was next.
  [[nodiscard]] bool restored_before(std::uint32_t group) const {
    return where_[group] == place::device;
  }

  void forget_ahead(std::uint32_t group) {
    ahead_bytes_ -= map_.groups[group].bytes;
    for (auto i = ahead_head_; i < ahead_.size(); ++i) {
      if (ahead_[i] != group) continue;
      for (; i > ahead_head_; --i) ahead_[i] = ahead_[i - 1];
      ++ahead_head_;
      return;
    }
  }

  // The latest reload ahead of use gives its memory back.
  bool evict() {
    if (ahead_.size() == ahead_head_) return false;
    const auto group = ahead_.back();
    ahead_.pop_back();
    const auto bytes = map_.groups[group].bytes;
    ahead_bytes_ -= bytes;
    where_[group] = place::away;
    give(by_offload_, bytes, done_[group], 0);  // no offload: nobody has to wait for one
    while (next_reload_ > 0 && map_.reload_order[next_reload_ - 1] != group) --next_reload_;
    if (next_reload_ > 0) --next_reload_;
    return true;
  }

  detail::layout map_;
  std::size_t runs_ = 0;
  link_rates rates_;
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
  std::size_t next_reload_ = 0;
  std::vector<std::uint32_t> ahead_;
  std::size_t ahead_head_ = 0;
  std::size_t ahead_bytes_ = 0;
  std::vector<place> where_;
  std::vector<double> done_;
  std::vector<std::uint32_t> offload_of_;
  std::vector<bool> forward_done_;
};

}  // namespace tidepool::plan
