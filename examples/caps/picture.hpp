/// Time against memory: a chart for each schedule, a line for each ratio, a point for each cap.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>
#include <string>
#include <tidepool/trace/detail/print.hpp>
#include <vector>

#include "../tools/chart.hpp"
#include "study.hpp"

namespace caps {

namespace detail {

// In order of memory; caps that lie in the same place share a label.
inline tools::chart_line line_of(const series& all, std::size_t number,
                                 const tidepool::trace::detail::scale_unit& in) {
  namespace print = tidepool::trace::detail;
  // The title has the order already.
  auto line = tools::numbered_line(number, all.ratio);
  std::vector<const row*> order;
  for (const auto& each : all.rows) order.push_back(&each);
  std::stable_sort(order.begin(), order.end(), [](const row* a, const row* b) {
    return a->taken != b->taken ? a->taken < b->taken : a->step_us > b->step_us;
  });
  for (const auto* each : order) {
    const double x = static_cast<double>(each->taken) / in.size;
    const double y = all.over(*each);
    const auto about = "cap " + name_of(each->cap) + ": " + print::trimmed(y, 3) + " x, " +
                       print::bytes_text(each->taken) + ", stalled " +
                       print::trimmed(100 * all.stall_share(*each), 1) + " %";
    if (!line.points.empty()) {
      auto& last = line.points.back();
      if (std::abs(last.x - x) < 1e-9 * x && std::abs(last.y - y) < 0.002) {
        last.label += ", " + name_of(each->cap);
        last.about += "\n" + about;
        continue;
      }
    }
    const bool first = line.points.empty();
    line.points.push_back({x, y, (first ? "cap " : "") + name_of(each->cap), about});
  }
  return line;
}

}  // namespace detail

inline void write_picture(std::ostream& out, const std::string& device,
                          const std::vector<series>& all) {
  tools::chart_page page("Caps on offloads in flight: time against memory, a point for each cap",
                         device);
  for (std::size_t first = 0; first < all.size();) {
    std::size_t end = first;
    while (end < all.size() && all[end].order == all[first].order) ++end;
    double most = 0;
    double slowest = 1;
    for (std::size_t i = first; i < end; ++i) {
      for (const auto& each : all[i].rows) {
        most = std::max(most, static_cast<double>(each.taken));
        slowest = std::max(slowest, all[i].over(each));
      }
    }
    const auto in = tidepool::trace::detail::unit_of(most, tidepool::trace::detail::binary_units);
    std::vector<tools::chart_line> lines;
    for (std::size_t i = first; i < end; ++i) {
      lines.push_back(detail::line_of(all[i], i - first, in));
    }
    page.add(
        all[first].order,
        {"device memory taken for saved tensors, " + std::string(in.name), 0, most / in.size * 1.1},
        {"step time, 1 = without offload", 0.94, slowest + 0.12 * (slowest - 1) + 0.02}, lines,
        260);
    first = end;
  }
  page.write(out);
}

}  // namespace caps
