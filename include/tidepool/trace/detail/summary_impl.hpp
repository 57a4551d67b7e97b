// Adds counters and writes summaries: the implementation of summary.hpp.
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
    using of = counters;
    detail::add(sum.modules, totals.modules);
    detail::add(sum.recomputed, totals.recomputed);
    detail::add(sum.places, totals.places);
    sum.steps = std::max(sum.steps, totals.steps);
    detail::add(sum, totals, &of::passes, &of::passes_forward_only, &of::evictions,
                &of::state_fetched, &of::state_written, &of::arena_waits, &of::placed_elsewhere,
                &of::device_allocations, &of::host_allocations, &of::device_reserved,
                &of::device_peak, &of::live_peak, &of::live_peak_without, &of::away_at_peak,
                &of::borrowed, &of::borrowed_peak, &of::borrowed_waiting, &of::borrowed_joins,
                &of::budget_exceeded, &of::host_reserved, &of::host_peak);
    sum.takes_borrowed = sum.takes_borrowed || totals.takes_borrowed;
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

TIDEPOOL_INLINE void write_summary(std::ostream& out, const counters& totals, const record& step) {
  write_summary(out, totals);
  const auto text = "\n" + detail::stall_table(step);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
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
