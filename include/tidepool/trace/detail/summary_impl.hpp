// The bodies of summary.hpp.
#pragma once

#include <algorithm>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/trace/counters.hpp"
#include "tidepool/trace/detail/summary_tables.hpp"
#include "tidepool/trace/summary.hpp"

namespace tidepool::inline v0_3_0::trace {

TIDEPOOL_INLINE counters merge(std::span<const rank_counters> ranks) {
  counters sum;
  for (const auto& [rank, totals] : ranks) {
    for (const auto& from : totals.modules) {
      auto to = std::find_if(sum.modules.begin(), sum.modules.end(),
                             [&](const auto& module) { return module.name == from.name; });
      if (to == sum.modules.end()) {
        to = sum.modules.emplace(to);
        to->name = from.name;
      }
      detail::add(*to, from);
    }
    for (const auto& from : totals.recomputed) {
      auto to = std::find_if(sum.recomputed.begin(), sum.recomputed.end(),
                             [&](const auto& each) { return each.name == from.name; });
      if (to == sum.recomputed.end()) to = sum.recomputed.insert(to, {from.name});
      to->tensors += from.tensors;
      to->bytes += from.bytes;
    }
    for (const auto& from : totals.places) {
      auto to = std::find_if(sum.places.begin(), sum.places.end(),
                             [&](const auto& each) { return each.name == from.name; });
      if (to == sum.places.end()) to = sum.places.insert(to, {from.name});
      detail::add(*to, from);
    }
    sum.steps = std::max(sum.steps, totals.steps);
    sum.passes += totals.passes;
    sum.passes_forward_only += totals.passes_forward_only;
    sum.evictions += totals.evictions;
    sum.state_fetched += totals.state_fetched;
    sum.state_written += totals.state_written;
    sum.arena_waits += totals.arena_waits;
    sum.placed_elsewhere += totals.placed_elsewhere;
    sum.device_allocations += totals.device_allocations;
    sum.host_allocations += totals.host_allocations;
    sum.device_reserved += totals.device_reserved;
    sum.device_peak += totals.device_peak;
    sum.live_peak += totals.live_peak;
    sum.live_peak_without += totals.live_peak_without;
    sum.away_at_peak += totals.away_at_peak;
    sum.host_reserved += totals.host_reserved;
    sum.host_peak += totals.host_peak;
  }
  return sum;
}

TIDEPOOL_INLINE void write_summary(std::ostream& out, const counters& totals,
                                   std::string_view rank_label) {
  const detail::ranked one{std::string(rank_label), &totals};
  const auto rank = rank_label.empty() ? std::string() : ", rank " + one.rank;
  detail::write_summary(
      out, "Tidepool" + rank + ", " + tidepool::detail::text::count_of(totals.steps, "step"),
      detail::module_table(std::span(&one, 1), totals, false), detail::memory_lines(totals),
      silent_messages(totals));
}

TIDEPOOL_INLINE void write_summary(std::ostream& out, std::span<const rank_counters> ranks) {
  std::vector<detail::ranked> views;
  for (const auto& each : ranks) views.push_back({each.rank, &each.totals});
  const auto sum = merge(ranks);
  detail::write_summary(out,
                        "Tidepool, " + tidepool::detail::text::count_of(ranks.size(), "rank") +
                            ", " + tidepool::detail::text::count_of(sum.steps, "step"),
                        detail::module_table(views, sum, true), detail::memory_table(views, sum),
                        silent_messages(sum));
}

}  // namespace tidepool::trace
