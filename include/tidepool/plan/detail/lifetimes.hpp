// From when to when a simulated step needs the memory of each storage.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/plan/detail/layout.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

// A storage has memory from the call that takes it to the call that gives it back, and in time,
// until nothing touches the memory any more.
struct lifetime {
  std::uint32_t storage = 0;
  bool again = false;  // not the first of this storage in the step
  std::size_t bytes = 0;
  std::uint32_t taken = 0;  // numbers of calls
  std::uint32_t given = 0;
  double from_us = 0;
  double to_us = 0;
  double latest_us = 0;         // from then on at the latest, or the step takes longer
  std::uint32_t reload = none;  // that brings it back
};

// Notes them while a simulator goes through the calls of a step.
class lifetime_log {
 public:
  void start(const layout& map, const std::vector<action>& what) {
    map_ = &map;
    calls_ = 0;
    all_.clear();
    reloads_.clear();
    reload_of_.assign(map.groups.size(), none);
    open_.assign(map.storages.size(), {});
    saves_.assign(map.storages.size(), 0);
    stays_.assign(map.storages.size(), false);
    for (std::uint32_t g = 0; g < what.size(); ++g) {
      for (const auto each : map.members[g]) {
        ++saves_[each];
        stays_[each] = stays_[each] || what[g] == action::keep;
      }
    }
  }

  void allocated(std::uint32_t storage, double at_us) { take(storage, false, at_us); }
  void released(std::uint32_t storage, double at_us) { give(storage, at_us); }
  // A group has left; its memory is in use until `end_us`.
  void left(std::uint32_t group, double end_us) {
    for (const auto each : map_->members[group]) {
      if (--saves_[each] > 0 || stays_[each] || map_->storages[each].outlives) continue;
      give(each, end_us);
    }
  }
  // The last handle of a storage that had left is gone.
  void dropped(std::uint32_t storage, double end_us) {
    if (!stays_[storage]) give(storage, end_us);
  }
  // Memory for a group that is recomputed is in use from `at_us` on.
  void recomputed(std::uint32_t group, double at_us) { back(group, at_us, none); }
  // Memory for a group that is copied back over a link is in use from the begin of the copy on.
  void reloaded(std::uint32_t group, double from_us, double to_us, std::size_t link) {
    reload_of_[group] = static_cast<std::uint32_t>(reloads_.size());
    reloads_.push_back({to_us - from_us, to_us, link});
    back(group, from_us, reload_of_[group]);
  }
  // It is used from `at_us` on.
  void restored(std::uint32_t group, double at_us) {
    if (reload_of_[group] != none) reloads_[reload_of_[group]].needed_us = at_us;
  }
  // The step is over.
  [[nodiscard]] std::vector<lifetime> finish(double at_us) {
    for (std::uint32_t i = 0; i < open_.size(); ++i) give(i, at_us);
    find_latest(at_us);
    return std::move(all_);
  }

 private:
  struct timed_reload {
    double takes_us;
    double needed_us;
    std::size_t link;
  };

  void back(std::uint32_t group, double from_us, std::uint32_t reload) {
    for (const auto each : map_->members[group]) {
      if (!stays_[each]) take(each, true, from_us, reload);
    }
  }
  void take(std::uint32_t storage, bool again, double from_us, std::uint32_t reload = none) {
    auto& each = open_[storage];
    if (each.bytes > 0) return;
    each = {storage, again, map_->storages[storage].bytes, ++calls_, 0, from_us, 0,
            from_us, reload};
  }
  // Reloads over one link go one after the other: each has to end before the next has to begin.
  void find_latest(double end_us) {
    std::array<double, 2> next{end_us, end_us};
    std::vector<double> latest(reloads_.size());
    for (auto i = reloads_.size(); i-- > 0;) {
      auto& before = next[reloads_[i].link];
      latest[i] = before = std::min(before, reloads_[i].needed_us) - reloads_[i].takes_us;
    }
    for (auto& each : all_) {
      if (each.reload != none) each.latest_us = std::max(each.from_us, latest[each.reload]);
    }
  }
  void give(std::uint32_t storage, double to_us) {
    auto& each = open_[storage];
    if (each.bytes == 0) return;
    each.given = ++calls_;
    each.to_us = std::max(to_us, each.from_us);
    all_.push_back(each);
    each.bytes = 0;
  }

  const layout* map_ = nullptr;
  std::uint32_t calls_ = 0;
  std::vector<lifetime> all_;
  std::vector<lifetime> open_;        // of each storage; no bytes: it has no memory
  std::vector<std::uint32_t> saves_;  // groups that have not committed it yet
  std::vector<bool> stays_;           // for one of its groups, and so for all
  std::vector<timed_reload> reloads_;
  std::vector<std::uint32_t> reload_of_;  // each group, the latest
};

}  // namespace tidepool::plan::detail
