/// The frontier as an SVG file: how much slower a step is with less memory, and the bound.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "../tools/chart.hpp"
#include "report.hpp"
#include "study.hpp"

namespace planning {

namespace detail {

// `about` and labels only where a point is the engine's own.
template <class Percent>
tools::chart_line line_of(const std::string& name, std::size_t number,
                          const std::vector<point>& points, const memory_unit& in,
                          const Percent& percent_of) {
  namespace print = tidepool::trace::detail;
  auto line = tools::numbered_line(number, name);
  for (const auto& each : points) {
    if (!each.made.expected.runs) continue;
    const double percent = std::max(0.0, percent_of(each));
    const auto* const mark = each.zero_stall ? "zero stall" : each.chosen ? "the plan" : "";
    line.points.push_back({in.of(each.budget), percent, mark,
                           print::trimmed(in.of(each.budget), 2) + " " + in.name + ": " +
                               print::trimmed(percent, 2) + " % slower"});
  }
  return line;
}

}  // namespace detail

/// `recomputing` has the same budgets with recompute; empty where nothing can be.
inline void write_frontier(std::ostream& out, const std::string& title, const study& of,
                           const std::vector<point>& points, const std::vector<point>& recomputing,
                           const memory_unit& in) {
  double most_memory = 0;
  double most_slow = 1;
  for (const auto& each : points) {
    most_memory = std::max(most_memory, in.of(each.budget));
    if (!each.made.expected.runs) continue;
    most_slow = std::max(most_slow, 100 * of.slowdown(each.made.expected));
  }
  const auto slower = [&](const point& each) { return 100 * of.slowdown(each.made.expected); };
  std::vector<tools::chart_line> lines;
  lines.push_back(detail::line_of(
      "bound: no plan that only offloads is faster", 2, points, in,
      [&](const point& each) { return 100 * (each.made.bound_us / of.in_core().step_us - 1); }));
  lines.back().marked = false;
  for (auto& each : lines.back().points) each.label.clear();
  if (!recomputing.empty()) {
    lines.push_back(detail::line_of("offload and recompute", 1, recomputing, in, slower));
  }
  lines.push_back(detail::line_of("offload", 0, points, in, slower));
  tools::chart_page page(title, "what a smaller budget costs, as the engine would run each plan");
  page.add("", {"device budget of saved tensors, " + in.name, 0, most_memory * 1.05},
           {"slower than keeping everything, %", 0, most_slow * 1.1, most_slow > 10 ? 5.0 : 0},
           lines, 330);
  page.write(out);
}

}  // namespace planning
