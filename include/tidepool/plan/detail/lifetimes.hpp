// From when to when a step needs which device memory, if there is enough of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tidepool/options.hpp"
#include "tidepool/plan/detail/links.hpp"
#include "tidepool/plan/detail/reload_queue.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

// Of one storage: from the call that takes its memory to the one that gives it back, and in time,
// until nothing touches it any more.
struct lifetime {
  std::uint32_t storage = 0;
  bool again = false;   // not the first of this storage in the step
  bool copied = false;  // a copy out of it is the last to touch it
  std::size_t bytes = 0;
  std::uint32_t taken = 0;  // numbers of calls
  std::uint32_t given = 0;
  double from_us = 0;
  double to_us = 0;
  double latest_us = 0;         // from then on at the latest, or its restore waits
  std::uint32_t reload = none;  // that brings it back
};

// Those of a step by the rules of the engine, where nothing ever waits for memory: reloads start as
// early as the limits of `opts` on reloads ahead allow.
class lifetimes {
 public:
  lifetimes(const profile& step, const actions& what, const options& opts)
      : map_(step),
        what_(map_.fold(what)),
        saves_(map_.storages.size()),
        stays_(map_.storages.size()),
        open_(map_.storages.size()),
        done_(map_.groups.size()),
        reload_of_(map_.groups.size(), none) {
    links_[0].reset(step.link);
    links_[1].reset(step.peer_link.value_or(step.link));
    one_link_ = !step.peer_link || step.peer_shares_link;
    queue_.start(map_, opts.reload_ahead, opts.reload_ahead_bytes.value_or(queue_.unlimited));
    count_saves();
    double before = 0;
    for (const auto& each : map_.events) {
      pass(before, each.at, each.wait);
      before = each.at;
      call(each);
    }
    pass(before, map_.compute_us, map_.rest_wait);
    for (std::uint32_t i = 0; i < open_.size(); ++i) give(i, now_);
    find_latest();
  }

  [[nodiscard]] const std::vector<lifetime>& all() const { return all_; }
  [[nodiscard]] double end_us() const { return now_; }

 private:
  void count_saves() {
    for (std::uint32_t g = 0; g < what_.size(); ++g) {
      for (const auto each : map_.members[g]) {
        ++saves_[each];
        if (what_[g] == action::keep) stays_[each] = true;
      }
    }
    for (std::uint32_t g = 0; g < what_.size(); ++g) {
      // What others hold is not given up to be computed again; it leaves.
      const bool held = std::ranges::any_of(map_.members[g], [&](std::uint32_t each) {
        return map_.storages[each].outlives || saves_[each] > 1;
      });
      if (held && what_[g] == action::recompute) what_[g] = action::offload;
    }
  }

  void pass(double from, double to, double wait) { now_ += passed_us(now_, from, to, wait); }

  void take(std::uint32_t storage, bool again, double from_us, std::uint32_t reload = none) {
    auto& each = open_[storage];
    if (each.bytes > 0 || (again && stays_[storage])) return;
    each = {.storage = storage,
            .again = again,
            .bytes = map_.storages[storage].bytes,
            .taken = calls_,
            .from_us = from_us,
            .latest_us = from_us,
            .reload = reload};
  }
  void give(std::uint32_t storage, double to_us, bool copied = false) {
    auto& each = open_[storage];
    if (each.bytes == 0) return;
    each.given = ++calls_;
    each.to_us = to_us;
    each.copied = copied;
    all_.push_back(each);
    each.bytes = 0;
  }

  void call(const flat_event& each) {
    ++calls_;
    switch (each.kind) {
      case event_kind::allocate:
        return take(each.what, false, now_);
      case event_kind::commit:
        return commit(each.what);
      case event_kind::end_forward:
        queue_.end_forward(each.what);
        return reload_ahead();
      case event_kind::restore:
        return restore(each.what);
      case event_kind::release:
        return give(each.what, now_);
      case event_kind::drop:
        return drop(each.what);
      case event_kind::synchronise:
        for (const auto& each_link : links_) now_ = std::max(now_, each_link.end());
    }
  }

  void commit(std::uint32_t group) {
    const auto bytes = map_.groups[group].bytes;
    if (what_[group] == action::keep) return;
    queue_.where(group) = place::away;
    const bool leaves = is_offload(what_[group]);
    done_[group] =
        leaves && bytes > 0 ? links_[link_of(group)].copy(links::out, bytes, now_) : now_;
    for (const auto each : map_.members[group]) {
      if (--saves_[each] > 0 || stays_[each] || map_.storages[each].outlives) continue;
      give(each, done_[group], leaves);
    }
  }
  void drop(std::uint32_t storage) {
    const auto group = map_.storages[storage].group;
    if (what_[group] == action::keep || stays_[storage]) return;
    give(storage, std::max(now_, done_[group]), is_offload(what_[group]));
  }

  void restore(std::uint32_t group) {
    const auto bytes = map_.groups[group].bytes;
    if (what_[group] == action::recompute && bytes > 0) {
      for (const auto each : map_.members[group]) take(each, true, now_);
      now_ += map_.groups[group].recompute_us;
    } else if (is_offload(what_[group]) && bytes > 0) {
      if (queue_.where(group) == place::away) reload(group);
      now_ = std::max(now_, done_[group]);
      reloads_[reload_of_[group]].needed_us = now_;
    }
    queue_.restored(group);
    reload_ahead();
  }

  void reload(std::uint32_t group) {
    const auto link = link_of(group);
    const auto begin = std::max(done_[group], reloads_end_[link]);
    ++calls_;
    reload_of_[group] = static_cast<std::uint32_t>(reloads_.size());
    for (const auto each : map_.members[group]) take(each, true, begin, reload_of_[group]);
    done_[group] = links_[link].copy(links::in, map_.groups[group].bytes, done_[group]);
    reloads_end_[link] = done_[group];
    reloads_.push_back({.takes_us = done_[group] - begin, .link = link});
    queue_.where(group) = place::arriving;
  }
  void reload_ahead() {
    queue_.advance([&](std::uint32_t group) { return is_offload(what_[group]); },
                   [&](std::uint32_t group) {
                     reload(group);
                     return true;
                   });
  }

  // Reloads over one link go one after the other: each has to end before the next one has to begin.
  void find_latest() {
    std::array<double, 2> latest{now_, now_};
    for (auto each = reloads_.rbegin(); each != reloads_.rend(); ++each) {
      auto& before = latest[each->link];
      each->latest_us = before = std::min(before, each->needed_us) - each->takes_us;
    }
    for (auto& each : all_) {
      if (each.reload == none) continue;
      each.latest_us = std::max(each.from_us, reloads_[each.reload].latest_us);
    }
  }

  struct timed_reload {
    double takes_us = 0;
    double needed_us = std::numeric_limits<double>::infinity();
    double latest_us = 0;
    std::size_t link = 0;
  };

  // To a neighbour, where it has one of its own, or to the host.
  [[nodiscard]] std::size_t link_of(std::uint32_t group) const {
    return what_[group] == action::offload_to_peer && !one_link_ ? 1 : 0;
  }

  layout map_;
  std::vector<action> what_;
  std::array<links, 2> links_;
  bool one_link_ = true;
  std::vector<std::uint32_t> saves_;  // groups that have not committed it yet
  std::vector<bool> stays_;           // for one of its groups, and so for all
  std::vector<lifetime> open_;        // of each storage; no bytes: it has no memory
  std::vector<lifetime> all_;
  std::vector<double> done_;  // the latest copy of each group
  std::vector<timed_reload> reloads_;
  std::vector<std::uint32_t> reload_of_;  // each group
  reload_queue queue_;
  double now_ = 0;
  std::array<double, 2> reloads_end_{};
  std::uint32_t calls_ = 0;
};

}  // namespace tidepool::plan::detail
