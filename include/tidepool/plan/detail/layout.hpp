// The layout: a profile in flat form, with all groups in one list, as simulator, bound and planner
// read it. Sizes are in bytes and rounded up to whole blocks, times in microseconds. One conversion
// at the start makes each of many simulations fast.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tidepool/core/block.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

struct flat_group {
  std::uint32_t chunk = 0;
  int layer = -1;
  module_id module{};
  std::size_t bytes = 0;
  std::size_t moves = 0;   // bytes that its copies move; fewer than `bytes` where rows are counted
  std::size_t counts = 0;  // storages whose counts are copied
  double recompute_us = 0;
  double pack_us = 0;  // time of the compute stream to pack its storages, and to copy their counts
  std::size_t outliving = 0;  // bytes of storages that handles hold beyond its commit
  bool comes_back = false;    // false: it is forgotten, and its storages are released while away
  bool held = false;          // by other groups, or beyond its commit: it cannot be recomputed
};

struct flat_event {
  event_kind kind = event_kind::allocate;
  std::uint32_t what = 0;  // a storage, group or chunk
  double at = 0;           // computing before it since the begin of the step
  double wait = 0;  // part of the computing since the event before that waits for other ranks
};

// Microseconds that pass between two calls, which have `from` and `to` microseconds of computing
// before them. A wait for other ranks is shorter by as much as the step is late.
[[nodiscard]] inline double passed_us(double now, double from, double to, double wait) {
  return to - from - (wait > 0 ? std::min(wait, std::max(0.0, now - from)) : 0.0);
}

struct flat_storage {
  std::size_t bytes = 0;
  std::size_t moves = 0;
  std::uint32_t group = none;
  bool outlives = false;  // a handle holds it beyond its group's commit, until it is dropped
};

// Bytes that each copy of a storage moves.
[[nodiscard]] inline std::size_t moved(const storage_profile& each) {
  return each.moves > 0 ? each.moves : each.bytes;
}

// Microseconds to pack a storage, if it is packed, or to copy its count.
[[nodiscard]] inline double pack_us(const profile& of, const storage_profile& each) {
  if (!of.packing || of.packing->pack_rate <= 0) return each.moves > 0 ? of.link.latency_us : 0;
  const bool packs = each.bfloat16 && moved(each) >= of.packing->from;
  return packs ? static_cast<double>(moved(each)) / of.packing->pack_rate / 1e3 : 0;
}

struct layout {
  std::vector<flat_group> groups;
  std::vector<std::uint32_t> first;  // first group of each chunk
  std::vector<flat_storage> storages;
  std::vector<std::vector<std::uint32_t>> members;  // storages that each group saves, its own first
  std::vector<flat_event> events;
  std::vector<std::uint32_t> reload_order;  // groups in the order in which the engine reloads them
  // Groups that only save storages of other groups, each with the owner of one of them.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> guests;
  double compute_us = 0;
  double rest_wait = 0;
  std::size_t largest = 0;  // bytes of the largest group

  explicit layout(const profile& step) {
    for (std::uint32_t c = 0; c < step.chunks.size(); ++c) {
      first.push_back(static_cast<std::uint32_t>(groups.size()));
      for (const auto& each : step.chunks[c].groups) {
        groups.push_back({c, each.layer, each.module, 0, 0, 0, each.recompute_us});
      }
    }
    members.resize(groups.size());
    for (const auto& each : step.storages) {
      const auto group = each.group == none ? none : first[each.chunk] + each.group;
      if (group != none) {
        groups[group].bytes += aligned(each.bytes);
        groups[group].moves += aligned(moved(each));
        groups[group].counts += each.moves > 0 ? 1 : 0;
        groups[group].pack_us += pack_us(step, each);
        members[group].push_back(static_cast<std::uint32_t>(storages.size()));
      }
      storages.push_back({aligned(each.bytes), aligned(moved(each)), group});
    }
    for (const auto& each : step.shared) {
      const auto group = first[each.chunk] + each.group;
      members[group].push_back(each.storage);
      if (groups[group].bytes == 0) guests.emplace_back(group, storages[each.storage].group);
    }
    std::vector<bool> back(storages.size());  // true once a restore has brought it back
    for (const auto& each : groups) largest = std::max(largest, each.bytes);
    events.reserve(step.events.size());
    double wait = 0;
    for (const auto& each : step.events) {
      compute_us += each.compute_us;
      wait += each.wait_us;
      const bool of_group = each.kind == event_kind::commit || each.kind == event_kind::restore;
      const auto what = of_group                               ? first[each.chunk] + each.index
                        : each.kind == event_kind::end_forward ? each.chunk
                                                               : each.index;
      // Only the first drop of a storage counts, and only before a restore of it. After a restore
      // the storage stays on the device until its other groups are restored, because the simulator
      // has no state for memory that nobody uses.
      const bool drop = each.kind == event_kind::drop;
      if (drop && (storages[what].outlives || back[what])) continue;
      events.push_back({each.kind, what, compute_us, std::exchange(wait, 0.0)});
      if (each.kind == event_kind::restore) {
        reload_order.push_back(what);
        groups[what].comes_back = true;
        for (const auto storage : members[what]) back[storage] = true;
      }
      if (drop) {
        storages[what].outlives = true;
        groups[storages[what].group].outliving += storages[what].bytes;
      }
    }
    find_held();
    compute_us += step.rest_us;
    rest_wait = wait + step.rest_wait_us;
    order_reloads();
  }

  // The group of a storage that is released without having come back, or none.
  [[nodiscard]] std::uint32_t forgotten(std::uint32_t storage) const {
    const auto group = storages[storage].group;
    return group == none || groups[group].comes_back ? none : group;
  }

  [[nodiscard]] actions unfold(const std::vector<action>& flat) const {
    actions result(first.size());
    for (std::size_t i = 0; i < groups.size(); ++i) result[groups[i].chunk].push_back(flat[i]);
    const auto set = [&](std::uint32_t group, action what) {
      const auto chunk = groups[group].chunk;
      result[chunk][group - first[chunk]] = what;
    };
    for (const auto& [group, owner] : guests) set(group, action::keep);
    for (const auto& [group, owner] : guests) {
      if (flat[owner] != action::keep) set(group, flat[group]);
    }
    return result;
  }
  [[nodiscard]] std::vector<action> fold(const actions& given) const {
    std::vector<action> flat;
    flat.reserve(groups.size());
    for (const auto& chunk : given) flat.insert(flat.end(), chunk.begin(), chunk.end());
    return flat;
  }

 private:
  void find_held() {
    std::vector<std::uint32_t> saves(storages.size());
    for (const auto& group : members) {
      for (const auto each : group) ++saves[each];
    }
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      groups[g].held = std::ranges::any_of(members[g], [&](std::uint32_t each) {
        return storages[each].outlives || saves[each] > 1;
      });
    }
  }

  // The order in which the engine reloads groups: chunks in the order of their restores, and in
  // each chunk the group committed last first, even if a trainer restores it a little later.
  void order_reloads() {
    std::vector<std::vector<std::uint32_t>> of_chunk(first.size());
    for (const auto each : reload_order) of_chunk[groups[each].chunk].push_back(each);
    for (auto& each : of_chunk) std::sort(each.begin(), each.end());
    for (auto& each : reload_order) {
      auto& left = of_chunk[groups[each].chunk];
      each = left.back();
      left.pop_back();
    }
  }
};

// The most bytes of memory that a link can serve, where copies move some of the rows alone.
[[nodiscard]] inline link_rates in_memory(const layout& map, link_rates rates) {
  double most = 1;
  for (const auto& each : map.groups) {
    if (each.moves == each.bytes) continue;
    most = std::max(most, static_cast<double>(each.bytes) / static_cast<double>(each.moves));
  }
  for (auto* rate : {&rates.out, &rates.in, &rates.both}) *rate *= most;
  return rates;
}

// Microseconds in which the compute stream packs what leaves, and copies its counts.
[[nodiscard]] inline double pack_us(const profile& step, const actions& what) {
  const layout map(step);
  const auto all = map.fold(what);
  double us = 0;
  for (std::size_t g = 0; g < all.size(); ++g) {
    if (all[g] == action::offload) us += map.groups[g].pack_us;
  }
  return us;
}

}  // namespace tidepool::plan::detail
