/// Where the blocks of a step are in an arena, planned ahead, so that memory is never in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "tidepool/core/placement.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/constants.hpp"
#include "tidepool/plan/detail/packing.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/simulator.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::plan {

namespace detail {

struct found_places {
  placement where{};      // empty: none were found
  bool waits = false;     // a copy may wait for memory
  double step_us = 0;     // by the simulator
  bool too_slow = false;  // more than `most_us` by the simulator
};

[[nodiscard]] inline placement placed(const profile& step, const std::vector<lifetime>& all,
                                      const packing& packed) {
  // The engine knows a storage by the number of its allocation.
  placement where;
  std::vector<std::size_t> number(step.storages.size());
  for (const auto& each : step.events) {
    if (each.kind != event_kind::allocate) continue;
    number[each.index] = where.storages.size();
    where.storages.push_back({step.storages[each.index].bytes});
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& places = where.storages[number[all[i].storage]];
    (all[i].again ? places.again : places.first) = packed.from(i);
  }
  return where;
}

// Places for these lifetimes in `budget` bytes; empty where none are found. Reloads keep their
// memory from when they began in the simulator, or from shortly before they have to begin.
[[nodiscard]] inline placement places_of(const profile& step, std::vector<lifetime> all,
                                         std::size_t budget) {
  if (all.empty() || all.size() > constants::most_lifetimes) return {};
  for (const double early : constants::reloads_early) {
    for (auto& each : all) each.from_us = each.latest_us - early * (each.latest_us - each.from_us);
    if (most_at_once(all) > budget) continue;
    packing packed(all, budget);
    if (packed.fits(constants::most_of_a_try)) return placed(step, all, packed);
  }
  return {};
}

// True where a plan says where memory is: sizes and times are known, and the arena is the
// offloader's.
[[nodiscard]] inline bool has_places(const profile& step, const options& opts) {
  return opts.memory == memory_kind::arena && opts.device_budget && step.timed() &&
         !step.shapes_vary && !step.stream_ordered;
}

// In the simulator memory is never in pieces. So the step is simulated in a little less than the
// budget, as little less as it takes until its lifetimes fit the whole of it: in all of it first,
// and then each time in the share that halves what is left. `most_us` ends the search early, and
// changes no places that are found: a plan is followed by the places that it was judged by.
[[nodiscard]] inline found_places find_places(
    simulator& sim, const profile& step, std::vector<action> what, const run_limits& limits,
    double most_us = std::numeric_limits<double>::infinity()) {
  for (std::uint32_t g = 0; g < what.size(); ++g) {
    // A group that others hold is not given up to be computed again; it leaves.
    if (what[g] == action::recompute && sim.map().groups[g].held) what[g] = action::offload;
  }
  const auto budget = limits.device_budget;
  found_places found;
  std::vector<lifetime> in_order;  // of the least share that did not fit
  std::size_t in_order_within = budget;
  std::size_t from = 0;
  std::size_t to = std::size(constants::place_shares);
  auto less = limits;
  for (auto next = from; from < to; next = (from + to) / 2) {
    const auto part = 1 - constants::place_shares[next];
    less.device_budget = budget - static_cast<std::size_t>(static_cast<double>(budget) * part);
    auto seen = sim.lifetimes(what, less);
    const bool slow = seen.step_us > most_us;
    if (slow && next == 0) return {.too_slow = true};
    auto where = places_of(step, seen.all, budget);
    if (!where.empty()) {
      found = {.where = std::move(where), .step_us = seen.step_us};
      found.where.within = less.device_budget;
      to = next;
    } else if (seen.all.empty()) {
      to = next;
    } else if (slow) {  // and slower with less memory
      return {.too_slow = true};
    } else {
      from = next + 1;
      in_order = std::move(seen.all);
      in_order_within = less.device_budget;
    }
  }
  found.too_slow = found.step_us > most_us;
  if (!found.where.empty()) return found;
  // Without regard to times: calls in their order find their places free, but copies may wait.
  for (auto& each : in_order) each.to_us = each.from_us;
  found.where = places_of(step, in_order, budget);
  found.where.within = in_order_within;
  found.waits = !found.where.empty();
  return found;
}

[[nodiscard]] inline found_places find_places(const profile& step, const actions& what,
                                              const options& opts) {
  if (!has_places(step, opts)) return {};
  simulator sim(step);
  return find_places(sim, step, sim.map().fold(what),
                     {*opts.device_budget, opts.reload_ahead, opts.reload_ahead_bytes.value_or(0),
                      opts.peer_budget.value_or(0)});
}

}  // namespace detail

/// Places for all that the engine takes from an arena of `opts.device_budget` in a step that does
/// `what`: no two of them share a byte while both are in use, in the order of calls. The lifetimes
/// are those that `simulator` sees. As far as it fits, a copy waits for memory no longer than it
/// does there.
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
