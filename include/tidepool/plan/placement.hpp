/// Where the blocks of a step lie in an arena, planned ahead, so that memory is never in pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tidepool/memory/block.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/detail/lifetimes.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::plan {

/// The places of one storage, in bytes from the begin of the arena.
struct places_of_storage {
  std::size_t bytes = 0;
  std::size_t first = anywhere;  ///< from its allocation on
  std::size_t again = anywhere;  ///< from its reload or its recomputation on

  friend bool operator==(const places_of_storage&, const places_of_storage&) = default;
};

/// For each storage of a profile; empty: nothing is planned.
using placement = std::vector<places_of_storage>;

namespace detail {

// More lifetimes than that take too long: each is compared with each.
inline constexpr std::size_t most_lifetimes = 6'000;

// Most bytes between their calls at once: no placement takes less.
[[nodiscard]] inline std::size_t most_at_once(const std::vector<lifetime>& all) {
  std::vector<std::pair<std::uint32_t, std::ptrdiff_t>> changes;
  changes.reserve(2 * all.size());
  for (const auto& each : all) {
    changes.emplace_back(each.taken, static_cast<std::ptrdiff_t>(each.bytes));
    changes.emplace_back(each.given, -static_cast<std::ptrdiff_t>(each.bytes));
  }
  std::sort(changes.begin(), changes.end());  // what is given at a call goes first
  std::ptrdiff_t now = 0;
  std::ptrdiff_t most = 0;
  for (const auto& [call, bytes] : changes) most = std::max(most, now += bytes);
  return static_cast<std::size_t>(most);
}

// One after the other, each into the smallest gap among those it meets; false when one of them ends
// behind `budget`.
[[nodiscard]] inline bool place_in_order(const std::vector<lifetime>& all, std::size_t budget,
                                         placement& into) {
  using range = std::pair<std::size_t, std::size_t>;
  std::vector<range> where(all.size());
  std::vector<range> met;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto bytes = all[i].bytes;
    met.clear();
    for (std::size_t j = 0; j < i; ++j) {
      if (all[i].meets(all[j])) met.push_back(where[j]);
    }
    std::sort(met.begin(), met.end());
    std::size_t end = 0;
    auto best = anywhere;
    auto best_gap = anywhere;
    for (const auto& [from, to] : met) {
      if (from >= end + bytes && from - end < best_gap) {
        best = end;
        best_gap = from - end;
      }
      end = std::max(end, to);
    }
    if (best == anywhere) best = end;
    if (best + bytes > budget) return false;
    where[i] = {best, best + bytes};
    auto& storage = into[all[i].storage];
    (all[i].again ? storage.again : storage.first) = best;
  }
  return true;
}

// Large ones first; then those that take most room and time together.
inline void sort_for_placing(std::vector<lifetime>& all, bool by_area) {
  const auto area = [](const lifetime& each) {
    return static_cast<double>(each.bytes) * (each.given - each.taken);
  };
  std::sort(all.begin(), all.end(), [&](const lifetime& a, const lifetime& b) {
    if (by_area && area(a) != area(b)) return area(a) > area(b);
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.taken < b.taken;
  });
}

}  // namespace detail

/// Places for all that the engine takes from an arena of `opts.device_budget` in a step that does
/// `what`: no two of them share a byte while both are in use, and none is taken while a copy out of
/// it is still under way, by the profile's times.
///
/// Empty when they do not fit, nothing is known of times, sizes change from step to step, or
/// `opts.memory` is no arena: then the engine takes what is free. A greedy search for dynamic
/// storage allocation, as for the static memory plans of inference engines (Pisarchyk and Lee,
/// arXiv:2001.03288, greedy by size), with copies that may be late by some of the step's time, as
/// much as fits.
/// Quadratic in the number of storages: some milliseconds for a thousand. Thread safety: none
/// shared.
[[nodiscard]] inline placement place_ahead(const profile& step, const actions& what,
                                           const options& opts) {
  if (opts.memory != memory_kind::arena || !opts.device_budget) return {};
  if (!step.timed() || step.shapes_vary) return {};
  const detail::lifetimes seen(step, what, opts);
  const auto budget = *opts.device_budget;
  if (seen.all().size() > detail::most_lifetimes) return {};
  if (detail::most_at_once(seen.all()) > budget) return {};
  placement result(step.storages.size());
  for (std::size_t i = 0; i < result.size(); ++i) result[i].bytes = step.storages[i].bytes;
  for (const double late : {0.05, 0.02, 0.005, 0.0}) {
    auto all = seen.all();
    for (auto& each : all) {
      if (each.copied) each.to_us += late * seen.end_us();
    }
    for (const bool by_area : {false, true}) {
      detail::sort_for_placing(all, by_area);
      if (detail::place_in_order(all, budget, result)) return result;
    }
  }
  return {};
}

}  // namespace tidepool::plan
