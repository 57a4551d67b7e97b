// Rules that name at once what leaves, and the sets of groups that a search changes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/layout.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

/// Groups that are treated alike: of one layer and module, or more of them.
using group_set = std::vector<std::uint32_t>;

[[nodiscard]] inline std::vector<std::size_t> outliving_of(const layout& map) {
  std::vector<std::size_t> bytes;
  for (const auto& each : map.groups) bytes.push_back(each.outliving);
  return bytes;
}

/// Belady's rule: whenever more than `budget` is held, the group that comes back last goes, the way
/// that `leaving` says. Groups that `base` does not keep go at their commit. A group
/// goes no sooner than `settled_us` after its commit, so that its copy is over by then, unless no
/// other is left.
[[nodiscard]] inline std::vector<action> come_back_last(const layout& map, std::vector<action> base,
                                                        const std::vector<action>& leaving,
                                                        std::size_t budget, double settled_us) {
  std::vector<std::uint32_t> order(map.groups.size(), none);  // what never comes back is the last
  for (std::uint32_t i = 0; i < map.reload_order.size(); ++i) order[map.reload_order[i]] = i;
  std::priority_queue<std::pair<std::uint32_t, std::uint32_t>> idle;  // order, and which
  std::queue<std::pair<double, std::uint32_t>> settling;              // when committed, and which
  std::vector<bool> restored(map.groups.size(), false);
  std::size_t held = 0;
  // What handles still hold of each group beyond its commit is not free when it leaves.
  auto outliving = outliving_of(map);
  const auto freed = [&](auto group) { return map.groups[group].bytes - outliving[group]; };
  for (const auto& each : map.events) {
    switch (each.kind) {
      case event_kind::allocate:
        held += map.storages[each.what].bytes;
        break;
      case event_kind::release:
        if (const auto group = map.forgotten(each.what); group != none) {
          if (base[group] != action::keep) break;
          restored[group] = true;
        }
        held -= map.storages[each.what].bytes;
        break;
      case event_kind::commit:
        if (base[each.what] != action::keep) {
          held -= freed(each.what);
        } else {
          settling.emplace(each.at, each.what);
        }
        break;
      case event_kind::restore:
        restored[each.what] = true;
        if (base[each.what] != action::keep) held += freed(each.what);
        break;
      case event_kind::drop: {
        const auto& store = map.storages[each.what];
        outliving[store.group] -= store.bytes;
        if (base[store.group] != action::keep && !restored[store.group]) held -= store.bytes;
        break;
      }
      case event_kind::end_forward:
      case event_kind::synchronise:
        break;
    }
    const auto settle = [&] {
      const auto group = settling.front().second;
      settling.pop();
      idle.emplace(order[group], group);
    };
    while (!settling.empty() && settling.front().first + settled_us <= each.at) settle();
    while (held > budget && !(idle.empty() && settling.empty())) {
      if (idle.empty()) settle();
      const auto group = idle.top().second;
      idle.pop();
      if (restored[group]) continue;
      base[group] = leaving[group];
      held -= freed(group);
    }
  }
  return base;
}

/// What a local search may change at once: layers and modules, ranges of layers of a module, chunks
/// of a layer and module up to one or from one on, single groups.
struct neighbourhood {
  std::vector<group_set> classes;
  std::vector<group_set> ranges;
  std::vector<group_set> parts;
  std::vector<group_set> singles;
};

[[nodiscard]] inline neighbourhood neighbourhood_of(const layout& map) {
  neighbourhood result;
  std::map<std::size_t, std::map<int, group_set>> modules;
  for (std::uint32_t i = 0; i < map.groups.size(); ++i) {
    const auto& each = map.groups[i];
    if (each.bytes == 0) continue;
    modules[static_cast<std::size_t>(each.module)][each.layer].push_back(i);
    result.singles.push_back({i});
  }
  // At so many places at most, so that all sets together stay linear in the groups.
  for (const auto& [module, layers] : modules) {
    std::vector<const group_set*> rows;
    for (const auto& [layer, members] : layers) {
      rows.push_back(&members);
      result.classes.push_back(members);
      const auto by = std::max<std::size_t>(1, members.size() / constants::cuts);
      for (std::size_t k = by; k < members.size(); k += by) {
        const auto cut = members.begin() + static_cast<std::ptrdiff_t>(k);
        if (k > 1) result.parts.emplace_back(members.begin(), cut);
        if (k + 1 < members.size()) result.parts.emplace_back(cut, members.end());
      }
    }
    const auto add = [&](std::size_t from, std::size_t to) {
      group_set range;
      for (auto i = from; i < to; ++i) range.insert(range.end(), rows[i]->begin(), rows[i]->end());
      if (to - from > 1) result.ranges.push_back(std::move(range));
    };
    const auto by = std::max<std::size_t>(1, rows.size() / constants::cuts);
    for (std::size_t k = by; k < rows.size(); k += by) {
      add(0, k);
      add(k, rows.size());
    }
    add(0, rows.size());
  }
  return result;
}

/// All of a set do `to`. Of one class some may have been shared, and cannot be computed again; what
/// has no memory of its own goes on as it did.
inline void change(const layout& map, std::vector<action>& what, const group_set& which,
                   action to) {
  for (const auto group : which) {
    const auto& about = map.groups[group];
    const bool cannot = to == action::recompute && (about.recompute_us <= 0 || about.held);
    what[group] = cannot ? action::offload : to;
  }
}

/// What most of a class do, all do; they leave where as many leave as stay.
inline void make_alike(const layout& map, std::vector<action>& what,
                       const std::vector<group_set>& classes) {
  for (const auto& members : classes) {
    std::array<std::size_t, 4> count{};
    for (const auto group : members) ++count[static_cast<std::size_t>(what[group])];
    const auto [keep, offload, recompute, peer] = count;
    const auto to = 2 * keep > members.size()             ? action::keep
                    : recompute > std::max(offload, peer) ? action::recompute
                    : peer > offload                      ? action::offload_to_peer
                                                          : action::offload;
    change(map, what, members, to);
  }
}

/// The groups of each set that can be recomputed; the set of which a byte costs least comes first.
[[nodiscard]] inline std::vector<group_set> cheapest_again(const layout& map,
                                                           const std::vector<group_set>& sets) {
  std::vector<std::pair<double, group_set>> sorted;
  for (const auto& members : sets) {
    double us = 0;
    double bytes = 0;
    group_set chosen;
    for (const auto group : members) {
      const auto& each = map.groups[group];
      if (each.recompute_us <= 0 || each.held) continue;
      us += each.recompute_us;
      bytes += static_cast<double>(each.bytes);
      chosen.push_back(group);
    }
    if (!chosen.empty()) sorted.emplace_back(us / bytes, std::move(chosen));
  }
  std::ranges::stable_sort(sorted, {}, &std::pair<double, group_set>::first);
  std::vector<group_set> result;
  for (auto& each : sorted) result.push_back(std::move(each.second));
  return result;
}

}  // namespace tidepool::plan::detail
