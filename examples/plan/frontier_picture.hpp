/// The frontier as an SVG file: how much slower a step is with less memory, and the bound.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>
#include <tidepool/trace/detail/svg.hpp>
#include <vector>

#include "report.hpp"
#include "study.hpp"

namespace planning {

inline void write_frontier(std::ostream& out, const std::string& title, const study& of,
                           const std::vector<point>& points, const memory_unit& in) {
  namespace draw = tidepool::trace::detail;
  constexpr double width = 760;
  constexpr double height = 420;
  constexpr double left = 70;
  constexpr double right = width - 30;
  constexpr double top = 70;
  constexpr double bottom = height - 60;
  double most_memory = 0;
  double most_slow = 1;
  for (const auto& each : points) {
    most_memory = std::max(most_memory, in.of(each.budget));
    if (each.made.expected.runs) {
      most_slow = std::max(most_slow, 100 * of.slowdown(each.made.expected));
    }
  }
  most_memory = std::max(most_memory * 1.05, 1e-6);
  most_slow *= 1.1;
  const auto x_of = [&](double memory) { return left + memory / most_memory * (right - left); };
  const auto y_of = [&](double percent) { return bottom - percent / most_slow * (bottom - top); };
  draw::svg page;
  page.label(20, 32, draw::fit(title, width - 40, 17), {17, draw::ink, draw::anchor::start, true});
  page.label(20, 52, "slowdown in % over keeping everything; blue: the engine's, grey: the bound",
             {12, draw::faint_ink});
  const auto step_y = draw::round_step(most_slow, 8);
  for (double tick = 0; tick <= most_slow; tick += step_y) {
    page.line(left, y_of(tick), right, y_of(tick), draw::grid_line);
    page.label(left - 8, y_of(tick) + 4, draw::trimmed(tick, 2),
               {11, draw::faint_ink, draw::anchor::end});
  }
  const auto step_x = draw::round_step(most_memory, 10);
  for (double tick = 0; tick <= most_memory; tick += step_x) {
    page.line(x_of(tick), bottom, x_of(tick), bottom + 5, draw::faint_ink);
    page.label(x_of(tick), bottom + 20, draw::trimmed(tick, 3),
               {11, draw::faint_ink, draw::anchor::middle});
  }
  page.label((left + right) / 2, bottom + 42, "device budget of saved tensors, " + in.name,
             {12, draw::ink, draw::anchor::middle});
  const auto polyline = [&](const auto& percent_of, const char* colour) {
    std::string at;
    for (const auto& each : points) {
      if (!each.made.expected.runs) continue;
      at += draw::trimmed(x_of(in.of(each.budget)), 1) + "," +
            draw::trimmed(y_of(std::min(percent_of(each), most_slow)), 1) + " ";
    }
    page.put("<polyline fill=\"none\" stroke-width=\"2\"" + draw::svg::attribute("stroke", colour) +
             draw::svg::attribute("points", at) + "/>\n");
  };
  polyline(
      [&](const point& each) {
        return std::max(0.0, 100 * (each.made.bound_us / of.in_core().step_us - 1));
      },
      "#9aa4b0");
  const auto slower = [&](const point& each) {
    return std::max(0.0, 100 * of.slowdown(each.made.expected));
  };
  polyline(slower, "#2f6fb0");
  for (const auto& each : points) {
    if (!each.made.expected.runs) continue;
    const auto x = x_of(in.of(each.budget));
    const auto y = y_of(slower(each));
    const bool marked = each.zero_stall || each.chosen;
    page.rectangle({x - 3.5, y - 3.5, 7, 7}, marked ? draw::red_ink : "#2f6fb0",
                   draw::svg::attribute("rx", 3.5),
                   draw::trimmed(in.of(each.budget), 2) + " " + in.name + ": " +
                       draw::trimmed(slower(each), 2) + " % slower");
    if (marked) {
      page.label(x + 8, y - 6, each.zero_stall ? "zero stall" : "chosen", {11, draw::red_ink});
    }
  }
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\"" << draw::svg::attribute("width", width)
      << draw::svg::attribute("height", height)
      << " font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif\" "
         "role=\"img\">\n<title>"
      << draw::xml_text(title) << "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      << page.text() << "</svg>\n";
}

}  // namespace planning
