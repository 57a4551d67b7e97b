// Gives lifetimes places in an arena, so that none shares a byte with another that it meets.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "tidepool/core/placement.hpp"
#include "tidepool/plan/detail/lifetimes.hpp"

namespace tidepool::inline v0_3_0::plan::detail {

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

// Places lifetimes one after the other, each in the lowest gap among those that it meets.
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

  // Tries several orders, each for so many comparisons.
  [[nodiscard]] bool fits(std::size_t work) {
    const auto bytes = [this](std::size_t i) { return static_cast<double>((*all_)[i].bytes); };
    const auto calls = [this](std::size_t i) {
      return static_cast<double>((*all_)[i].given - (*all_)[i].taken);
    };
    const auto time = [this](std::size_t i) { return (*all_)[i].to_us - (*all_)[i].from_us; };
    return fits_by(bytes, work) ||
           fits_by([&](std::size_t i) { return bytes(i) * calls(i); }, work) ||
           fits_by([&](std::size_t i) { return bytes(i) * time(i); }, work) || fits_by(time, work);
  }

  [[nodiscard]] std::size_t from(std::size_t i) const { return from_[i]; }

 private:
  // The heaviest lifetime is placed first. A lifetime without room weighs twice as much the next
  // time (squeaky wheel optimization; Joslin and Clements, JAIR 10, 1999).
  template <class Weight>
  [[nodiscard]] bool fits_by(const Weight& weight, std::size_t work) {
    for (std::size_t i = 0; i < weight_.size(); ++i) weight_[i] = weight(i);
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
        const auto now = weight_[*next] = 2 * weight_[*next] + 1;
        if (!std::isfinite(now)) return false;  // a few that only change places
        const auto heavier = [&](std::uint32_t other) { return weight_[other] >= now; };
        place = std::partition_point(order_.begin(), next, heavier);
      }
      for (auto each = place; each != next; ++each) from_[*each] = anywhere;
      std::rotate(place, next, next + 1);
      next = place;
    }
  }

  template <class Key>
  void sort_by(const Key& key) {
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::pair(key(a), a) < std::pair(key(b), b);
    });
  }

  // Compares neighbours in this order, up to the first that is too late to meet.
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

}  // namespace tidepool::plan::detail
