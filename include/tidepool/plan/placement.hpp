/// Where the blocks of a step are in an arena, planned ahead, so that memory is never in pieces.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "tidepool/core/block.hpp"
#include "tidepool/core/placement.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/lifetimes.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0::plan {

namespace detail {

// Most bytes between two of their members at once: no placement takes less.
template <class At>
[[nodiscard]] std::size_t most_at_once(const std::vector<lifetime>& all, At lifetime::*begin,
                                       At lifetime::*end) {
  std::vector<std::pair<At, std::ptrdiff_t>> changes;
  changes.reserve(2 * all.size());
  for (const auto& each : all) {
    if (!(each.*begin < each.*end)) continue;
    changes.emplace_back(each.*begin, static_cast<std::ptrdiff_t>(each.bytes));
    changes.emplace_back(each.*end, -static_cast<std::ptrdiff_t>(each.bytes));
  }
  std::sort(changes.begin(), changes.end());  // what is given back goes first
  std::ptrdiff_t now = 0;
  std::ptrdiff_t most = 0;
  for (const auto& [at, bytes] : changes) most = std::max(most, now += bytes);
  return static_cast<std::size_t>(most);
}
[[nodiscard]] inline std::size_t most_at_once(const std::vector<lifetime>& all) {
  return std::max(most_at_once(all, &lifetime::taken, &lifetime::given),
                  most_at_once(all, &lifetime::from_us, &lifetime::to_us));
}

// Where each of some lifetimes is, one after the other, each in the lowest gap among those that
// it meets.
class packing {
 public:
  packing(const std::vector<lifetime>& all, std::size_t budget)
      : all_(&all), budget_(budget), meets_(all.size()), weight_(all.size()), from_(all.size()) {
    order_.resize(all.size());
    std::iota(order_.begin(), order_.end(), 0U);
    sort_by([&](std::uint32_t i) { return all[i].taken; });
    find_meetings([](const auto& one, const auto& next) { return next.taken < one.given; },
                  [](const auto&, const auto&) { return false; });
    sort_by([&](std::uint32_t i) { return all[i].from_us; });
    find_meetings([](const auto& one, const auto& next) { return next.from_us < one.to_us; },
                  [](const auto& one, const auto& next) {
                    return one.taken < next.given && next.taken < one.given;
                  });
  }

  // Large ones first, or those that take most room and time together. What finds no room weighs
  // twice as much the next time (squeaky wheel optimization; Joslin and Clements, JAIR 10, 1999).
  [[nodiscard]] bool fits(bool by_area, std::size_t work) {
    for (std::size_t i = 0; i < weight_.size(); ++i) {
      const auto& each = (*all_)[i];
      weight_[i] = static_cast<double>(each.bytes) * (by_area ? each.given - each.taken : 1.0);
    }
    sort_by([&](std::uint32_t i) { return std::pair(-weight_[i], (*all_)[i].taken); });
    std::fill(from_.begin(), from_.end(), anywhere);
    const auto enough = compared_ + work;
    auto next = order_.begin();
    while (true) {
      next = place_from(next);
      if (next == order_.end()) return true;
      if (compared_ > enough || next == order_.begin()) return false;
      auto place = next;
      while (place == next) {
        const auto now = weight_[*next] *= 2;
        if (!std::isfinite(now)) return false;  // a few that only change places
        const auto heavier = [&](std::uint32_t other) { return weight_[other] >= now; };
        place = std::partition_point(order_.begin(), next, heavier);
      }
      for (auto each = place; each != next; ++each) from_[*each] = anywhere;
      std::rotate(place, next, next + 1);
      next = place;
    }
  }

  [[nodiscard]] std::size_t from(std::size_t i) const { return from_[i]; }
  [[nodiscard]] std::size_t compared() const { return compared_; }

 private:
  template <class Key>
  void sort_by(const Key& key) {
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::pair(key(a), a) < std::pair(key(b), b);
    });
  }

  // Of neighbours in this order, up to the first that is too late to meet.
  template <class Meet, class Known>
  void find_meetings(const Meet& meet, const Known& known) {
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const auto& one = (*all_)[order_[i]];
      for (auto j = i + 1; j < order_.size() && meet(one, (*all_)[order_[j]]); ++j) {
        if (known(one, (*all_)[order_[j]])) continue;
        meets_[order_[i]].push_back(order_[j]);
        meets_[order_[j]].push_back(order_[i]);
      }
    }
  }

  using position = std::vector<std::uint32_t>::iterator;

  // Up to the first that has no room.
  [[nodiscard]] position place_from(position next) {
    for (; next != order_.end(); ++next) {
      const auto gap = lowest_gap(*next);
      if (gap + (*all_)[*next].bytes > budget_) break;
      from_[*next] = gap;
    }
    return next;
  }

  [[nodiscard]] std::size_t lowest_gap(std::uint32_t which) {
    const auto bytes = (*all_)[which].bytes;
    met_.clear();
    compared_ += meets_[which].size();
    for (const auto other : meets_[which]) {
      if (from_[other] != anywhere) {
        met_.emplace_back(from_[other], from_[other] + (*all_)[other].bytes);
      }
    }
    std::sort(met_.begin(), met_.end());
    std::size_t end = 0;
    for (const auto& [from, to] : met_) {
      if (from >= end + bytes) break;
      end = std::max(end, to);
    }
    return end;
  }

  const std::vector<lifetime>* all_;
  std::size_t budget_;
  std::vector<std::vector<std::uint32_t>> meets_;
  std::vector<std::uint32_t> order_;
  std::vector<double> weight_;
  std::vector<std::size_t> from_;
  std::vector<std::pair<std::size_t, std::size_t>> met_;  // from and to
  std::size_t compared_ = 0;
};

// How far copies are kept from what uses the memory beside them: how late those out may end, as a
// share of the step, and how early those back may begin, between as early as they could and as late
// as they must.
struct slack {
  double late;
  double early;
};
inline constexpr slack slacks[] = {{0.05, 1},    {0.02, 1},    {0.005, 1}, {0, 1},    {0.02, 0.5},
                                   {0.005, 0.5}, {0.005, 0.2}, {0, 0.2},   {0, 0.05}, {0, 0}};
// With none at all a copy may have to wait for memory, but nothing else changes: that memory is
// given back before, in the order of calls.
inline constexpr std::size_t loosest = std::size(slacks);

[[nodiscard]] inline std::vector<lifetime> with_slack(const lifetimes& seen, std::size_t which) {
  auto all = seen.all();
  for (auto& each : all) {
    if (which == loosest) {
      each.to_us = each.from_us;
      continue;
    }
    if (each.copied) each.to_us += slacks[which].late * seen.end_us();
    each.from_us = each.latest_us - slacks[which].early * (each.latest_us - each.from_us);
  }
  return all;
}

struct found_places {
  placement where;
  bool waits = false;  // a copy may wait for memory
};

[[nodiscard]] inline found_places find_places(const profile& step, const actions& what,
                                              const options& opts) {
  if (opts.memory != memory_kind::arena || !opts.device_budget) return {};
  if (!step.timed() || step.shapes_vary || step.stream_ordered) return {};
  const lifetimes seen(step, what, opts);
  const auto budget = *opts.device_budget;
  if (seen.all().size() > constants::most_lifetimes) return {};
  found_places result;
  std::size_t compared = 0;
  const auto place = [&](std::size_t slack) {
    const auto all = with_slack(seen, slack);
    if (most_at_once(all) > budget) return false;
    packing packed(all, budget);
    const bool fits =
        packed.fits(false, constants::most_of_a_try) || packed.fits(true, constants::most_of_a_try);
    compared += packed.compared();
    if (!fits) return false;
    result.waits = slack == loosest;
    result.where.assign(step.storages.size(), {});
    for (std::size_t i = 0; i < result.where.size(); ++i) {
      result.where[i].bytes = step.storages[i].bytes;
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto& places = result.where[all[i].storage];
      (all[i].again ? places.again : places.first) = packed.from(i);
    }
    return true;
  };
  if (!place(loosest)) return {};
  std::size_t refused = 0;  // all that are stricter than this
  for (auto placed = loosest; refused < placed && compared < constants::most_compared;) {
    const auto middle = (refused + placed) / 2;
    if (place(middle)) {
      placed = middle;
    } else {
      refused = middle + 1;
    }
  }
  return result;
}

}  // namespace detail

/// Places for all that the engine takes from an arena of `opts.device_budget` in a step that does
/// `what`: no two of them share a byte while both are in use, in the order of calls. As far as it
/// fits, copies by the profile's times do not wait for memory either: those out may be late by 5 %
/// of the step, down to none, and those back may begin as early as their limits allow, down to when
/// they must.
///
/// Empty when they do not fit, nothing is known of times, sizes change from step to step, or
/// `opts.memory` is no arena: then the engine takes what is free. A greedy search for dynamic
/// storage allocation, as for the static memory plans of inference engines (Pisarchyk and Lee,
/// arXiv:2001.03288, greedy by size), repeated with twice the weight for what found no room
/// (squeaky wheel optimization). Takes time with the number of pairs that are in use together: a
/// few milliseconds for a thousand storages where there is room, tens where it is tight, tenths of
/// a second where most of them stay. Thread safety: none shared.
[[nodiscard]] inline placement place_ahead(const profile& step, const actions& what,
                                           const options& opts) {
  return detail::find_places(step, what, opts).where;
}

}  // namespace tidepool::plan
