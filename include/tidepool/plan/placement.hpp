/// Placement: planned addresses for the blocks of a step in an arena. Inputs are a profile, the
/// actions of a plan and the budget in bytes. The output is an offset in bytes for each storage and
/// each reload. Planned addresses keep the arena free of fragmentation, so that a budget can be
/// used completely.
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
  bool waits = false;     // true: a copy may wait for its memory
  double step_us = 0;     // time of the step in the simulator
  bool too_slow = false;  // true: the step takes more than `most_us` in the simulator
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

// Places for these lifetimes in `budget` bytes; empty if none are found. A reload has its memory
// from its simulated begin on, or, if that does not fit, only from its latest possible begin on.
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

// True if a plan can fix addresses: sizes and times are known, and the arena belongs to the
// offloader.
[[nodiscard]] inline bool has_places(const profile& step, const options& opts) {
  return opts.memory == memory_kind::arena && opts.device_budget && step.timed() &&
         !step.shapes_vary && !step.stream_ordered;
}

// The simulator knows no fragmentation, so lifetimes simulated in the whole budget may not fit into
// it as blocks. The function therefore simulates the step in smaller shares of the budget, and
// takes the largest share whose lifetimes fit into the whole: it tries the whole first, then
// bisects the list of shares. `most_us` only ends the search early. `most_us` never changes the
// places found, because a plan must be followed with the places it was judged by.
[[nodiscard]] inline found_places find_places(
    simulator& sim, const profile& step, std::vector<action> what, const run_limits& limits,
    double most_us = std::numeric_limits<double>::infinity()) {
  for (std::uint32_t g = 0; g < what.size(); ++g) {
    // A group whose memory others hold cannot be discarded to be recomputed; it is offloaded
    // instead.
    if (what[g] == action::recompute && sim.map().groups[g].held) what[g] = action::offload;
  }
  const auto budget = limits.device_budget;
  found_places found;
  std::vector<lifetime> in_order;  // of the smallest share that did not fit
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
    } else if (slow) {  // less memory makes the step slower still
      return {.too_slow = true};
    } else {
      from = next + 1;
      in_order = std::move(seen.all);
      in_order_within = less.device_budget;
    }
  }
  found.too_slow = found.step_us > most_us;
  if (!found.where.empty()) return found;
  // The last attempt ignores times. Calls in their order then find their places free, but a copy
  // may have to wait for its place.
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

/// Places for all blocks that the engine takes from an arena of `opts.device_budget` bytes in a
/// step with the actions `what`. In the order of calls, no two blocks share a byte while both are
/// in use. Lifetimes come from `simulator`. If everything fits, no copy waits longer for memory
/// than in the simulator.
///
/// The result is empty if the blocks do not fit, the profile has no times, sizes change from step
/// to step, or `opts.memory` is no arena; the engine then takes memory that is free.
///
/// The search is greedy for dynamic storage allocation, as in the static memory plans of inference
/// engines (Pisarchyk and Lee, arXiv:2001.03288, greedy by size). The search is repeated with twice
/// the weight for blocks that found no room (squeaky wheel optimization). Its time grows with the
/// number of pairs of blocks in use together: a few milliseconds for a thousand storages with room
/// to spare, tens where it is tight, tenths of a second if most of them stay. Thread safety: no
/// shared state.
///
[[nodiscard]] inline placement place_ahead(const profile& step, const actions& what,
                                           const options& opts) {
  return detail::find_places(step, what, opts).where;
}

}  // namespace tidepool::plan
