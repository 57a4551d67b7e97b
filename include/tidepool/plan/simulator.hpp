/// The simulator: predicts a step under given actions by the engine's rules, without the engine.
/// Inputs are a profile, an action for each group and limits in bytes and groups. Outputs are times
/// in microseconds and peak bytes. At 10 ns an event, a search can judge thousands of plans.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tidepool/plan/detail/lifetimes.hpp"
#include "tidepool/plan/detail/links.hpp"
#include "tidepool/plan/detail/reload_queue.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan {

/// The limits of a step, as in `options`.
struct run_limits {
  std::size_t device_budget = 0;       ///< bytes; 0: no limit
  std::size_t reload_ahead = 2;        ///< groups
  std::size_t reload_ahead_bytes = 0;  ///< 0: no limit
  std::size_t peer_budget = 0;         ///< bytes of a neighbour's memory; 0: none
};

/// Simulates the engine with an arena. Memory is handed out in the order of calls, oldest fence
/// first. Copies of each direction run first in, first out. Reloads start at the end of a forward
/// pass and after each restore, as far as `run_limits` and memory allow. If memory is
/// `stream_ordered`, a reload waits for the compute stream, which itself waits for offloads whose
/// memory it needs; a reload that found no memory starts when some is released. A group for a
/// neighbour without room goes to the host. Left out, unlike in `forecast`: fragmentation, caps,
/// several compute streams, views, storages saved by several groups. Reuse one object: only its
/// first run allocates. Thread safety: none.
class simulator {
 public:
  /// A simulator for `step`; it keeps a copy of all it needs.
  explicit simulator(const profile& step)
      : map_(step),
        rates_(step.link),
        peer_rates_(step.peer_link.value_or(step.link)),
        has_peer_(step.peer_link.has_value()),
        shares_link_(step.peer_shares_link),
        stream_ordered_(step.stream_ordered) {}

  /// The step in flat form: all groups in one list, then all events.
  [[nodiscard]] const detail::layout& map() const { return map_; }
  /// The rates of the link to the host.
  [[nodiscard]] const link_rates& rates() const { return rates_; }
  /// True if the latest run held the group in a neighbour's memory.
  [[nodiscard]] bool went_to_peer(std::uint32_t group) const { return at_peer_[group]; }
  /// Steps simulated so far.
  [[nodiscard]] std::size_t runs() const { return runs_; }

  /// Simulates one step with the actions `what`, within `limits`.
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

  /// The lifetimes of a step, and its time.
  struct timed_lifetimes {
    double step_us = 0;                 ///< infinite: the step does not run
    std::vector<detail::lifetime> all;  ///< of storages, in the order in which they end
  };
  /// Simulates one step, and notes from when to when each storage has memory.
  [[nodiscard]] timed_lifetimes lifetimes(const std::vector<action>& what,
                                          const run_limits& limits) {
    detail::lifetime_log log;
    log.start(map_, what);
    log_ = &log;
    const auto seen = run(what, limits);
    log_ = nullptr;
    if (!seen.runs) return {seen.step_us, {}};
    return {seen.step_us, log.finish(now_)};
  }

 private:
  using piece = detail::freed_piece;
  using queue = detail::freed_queue;
  using knowledge = detail::joined_so_far;
  using place = detail::place;
  static constexpr auto by_compute = detail::by_compute;

  void start(const std::vector<action>& what, const run_limits& limits) {
    what_ = &what;
    limits_ = limits;
    if (limits_.device_budget == 0) {
      limits_.device_budget = std::numeric_limits<std::size_t>::max() / 2;
    }
    result_ = {};
    links_[0].reset(rates_);
    if (limits_.peer_budget > 0) links_[1].reset(peer_rates_);
    at_peer_.assign(map_.groups.size(), false);
    peer_.clear();
    peer_free_ = has_peer_ ? limits_.peer_budget : 0;
    peer_fresh_ = peer_free_;
    by_compute_.clear();
    by_offload_.clear();
    free_ = limits_.device_budget;
    fresh_ = free_;
    starved_ = false;
    now_ = 0;
    order_ = 0;
    offloads_ = 0;
    seen_ = {};
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
        if (!allocate(map_.storages[each.what].bytes)) return false;
        if (log_ != nullptr) log_->allocated(each.what, now_);
        return true;
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
        if (is_away(map_.storages[each.what])) {  // forgotten: its device memory is free already
          leave_peer(map_.storages[each.what].group, map_.storages[each.what].moves);
          return true;
        }
        if (log_ != nullptr) log_->released(each.what, now_);
        give(by_compute_, map_.storages[each.what].bytes, now_, by_compute);
        if (starved_) reload_ahead();
        return true;
      case event_kind::drop:
        drop(each.what);
        if (starved_) reload_ahead();
        return true;
      case event_kind::synchronise:
        wait(links_[0].end());
        if (limits_.peer_budget > 0) wait(links_[1].end());
        return true;
    }
    return false;
  }

  [[nodiscard]] bool is_away(const detail::flat_storage& store) {
    return store.group != none && reloads_.where(store.group) == place::away;
  }

  void give(queue& into, std::size_t bytes, double time, std::uint32_t offload, bool peer = false) {
    into.pieces.push_back({bytes, time, ++order_, offload, peer});
    free_ += bytes;
  }

  // Compute waits for the copies of the memory that it takes, not for memory that it freed itself.
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

  // The neighbour's memory of a group is free again when the group's latest copy is over.
  void leave_peer(std::uint32_t group, std::size_t bytes) {
    if (!at_peer_[group]) return;
    peer_.pieces.push_back({bytes, done_[group]});
    peer_free_ += bytes;
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
    const auto& about = map_.groups[group];
    reloads_.where(group) = place::device;
    if (of(group) == action::keep || about.bytes == 0) {
      if (log_ != nullptr && of(group) != action::keep) log_->left(group, now_);
      return;
    }
    reloads_.where(group) = place::away;
    if (of(group) == action::recompute) {
      if (log_ != nullptr) log_->left(group, now_);
      return give(by_compute_, about.bytes, now_, by_compute);
    }
    const bool peer = of(group) == action::offload_to_peer && about.moves <= peer_free_;
    if (!peer) now_ += about.pack_us;
    const auto ready = peer ? take_of_peer(about.moves) : now_;
    const auto end = link_to(peer).copy(detail::links::out, about.moves, ready, 1 + about.counts);
    at_peer_[group] = peer;
    done_[group] = end;
    offload_of_[group] = ++offloads_;
    result_.moved += about.moves;
    if (log_ != nullptr) log_->left(group, end);
    give(by_offload_, about.bytes - about.outliving, end, offloads_, peer);
  }

  [[nodiscard]] detail::links& link_to(bool peer) { return links_[peer && !shares_link_ ? 1 : 0]; }

  // Takes the neighbour's memory that is free longest. Returns when a copy into it may start.
  [[nodiscard]] double take_of_peer(std::size_t bytes) {
    double ready = now_;
    peer_free_ -= bytes;
    const auto part = std::min(bytes, peer_fresh_);
    peer_fresh_ -= part;
    bytes -= part;
    take(peer_, bytes, [&](const piece& from) { ready = std::max(ready, from.time); });
    return ready;
  }

  // The last handle is gone: the memory becomes free, but not before the group's copy is over.
  void drop(std::uint32_t storage) {
    const auto& store = map_.storages[storage];
    if (!is_offload(of(store.group))) return;
    const auto free_us = std::max(now_, done_[store.group]);
    if (log_ != nullptr) log_->dropped(storage, free_us);
    give(by_offload_, store.bytes, free_us, offload_of_[store.group], at_peer_[store.group]);
  }

  bool restore(std::uint32_t group) {
    const auto& about = map_.groups[group];
    if (of(group) == action::recompute && about.bytes > 0) {
      if (!allocate(about.bytes)) return false;
      if (log_ != nullptr) log_->recomputed(group, now_);
      now_ += about.recompute_us;
      result_.extra_us += about.recompute_us;
    } else if (is_offload(of(group)) && about.bytes > 0) {
      while (reloads_.where(group) == place::away && !reload(group)) {
        if (!evict()) return false;
      }
      wait(done_[group]);
      if (log_ != nullptr) log_->restored(group, now_);
      leave_peer(group, about.moves);
    }
    reloads_.restored(group);
    reload_ahead();
    return true;
  }

  // Copies a group back, into memory that reloads need not wait for, else into the oldest.
  bool reload(std::uint32_t group) {
    const auto bytes = map_.groups[group].bytes;
    if (free_ < bytes) {
      starved_ = stream_ordered_;
      return false;
    }
    free_ -= bytes;
    note_peak();
    if (stream_ordered_) return reload_behind_compute(group);
    const bool peer = at_peer_[group];
    auto& seen = seen_[peer ? 1 : 0];
    seen.note(peer, offload_of_[group]);
    double ready = done_[group];
    auto left = bytes;
    take_fresh(left);
    while (left > 0) {
      const bool outgoing = !by_offload_.empty();
      const bool computed = !by_compute_.empty();
      const bool joined =
          outgoing && seen.has(by_offload_.front().peer, by_offload_.front().offload);
      const bool known = computed && by_compute_.front().order <= seen.compute;
      const bool first_out =
          !computed ||
          (outgoing &&
           (joined || (!known && by_offload_.front().order < by_compute_.front().order)));
      auto& queue_of = first_out ? by_offload_ : by_compute_;
      auto& from = queue_of.front();
      ready = std::max(ready, from.time);
      if (first_out) {
        seen.note(from.peer, from.offload);
      } else {
        seen.compute = std::max(seen.compute, from.order);
      }
      const auto part = std::min(left, from.bytes);
      from.bytes -= part;
      left -= part;
      if (from.bytes == 0) ++queue_of.head;
    }
    auto& link = link_to(peer);
    const auto begin = link.begins(detail::links::in, ready);
    done_[group] = link.copy(detail::links::in, map_.groups[group].moves, ready);
    if (log_ != nullptr) {
      log_->reloaded(group, begin, done_[group], peer && !shares_link_ ? 1 : 0);
    }
    reloads_.where(group) = place::arriving;
    return true;
  }

  // Stream-ordered memory is the compute stream's first, so the reload waits for that stream.
  bool reload_behind_compute(std::uint32_t group) {
    const auto& about = map_.groups[group];
    take_by_compute(about.bytes);
    auto& done = done_[group];
    done = link_to(at_peer_[group]).copy(detail::links::in, about.moves, std::max(now_, done));
    reloads_.where(group) = place::arriving;
    return true;
  }

  void reload_ahead() {
    starved_ = false;
    reloads_.advance([&](std::uint32_t group) { return is_offload(of(group)); },
                     [&](std::uint32_t group) { return reload(group); });
  }

  bool evict() {
    const auto group = reloads_.evict();
    if (group == none) return false;
    starved_ = false;  // as in the engine
    // The lifetimes go on: the group is reloaded once more into the same place. Offload 0: no
    // offload is waited for.
    give(by_offload_, map_.groups[group].bytes, done_[group], 0);
    return true;
  }

  detail::layout map_;
  std::size_t runs_ = 0;
  link_rates rates_;
  link_rates peer_rates_;
  bool has_peer_;
  bool shares_link_;
  bool stream_ordered_;
  bool starved_ = false;                 // a reload ahead found no memory
  std::array<detail::links, 2> links_;   // to the host, and to a neighbour
  detail::lifetime_log* log_ = nullptr;  // null: nobody asks for lifetimes
  const std::vector<action>* what_ = nullptr;
  run_limits limits_;
  outcome result_;
  queue by_compute_;
  queue by_offload_;
  std::size_t free_ = 0;
  std::size_t fresh_ = 0;  // part of `free_` never used before
  double now_ = 0;
  std::uint64_t order_ = 0;
  std::uint32_t offloads_ = 0;
  std::array<knowledge, 2> seen_{};  // joined by reloads from the host, and from a neighbour
  queue peer_;                       // freed memory of a neighbour
  std::size_t peer_free_ = 0;
  std::size_t peer_fresh_ = 0;
  std::vector<bool> at_peer_;  // by group
  detail::reload_queue reloads_;
  std::vector<double> done_;
  std::vector<std::uint32_t> offload_of_;
};

}  // namespace tidepool::plan
