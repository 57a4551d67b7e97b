/// The lower part of a step's picture: device bytes over time, and the time axis.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tidepool/trace/detail/bars.hpp"
#include "tidepool/trace/detail/picture_layout.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::trace::detail {

// The highest level, the first of several; `levels` is not empty.
[[nodiscard]] inline const trace::level& peak_of(const std::vector<trace::level>& levels) {
  return *std::max_element(levels.begin(), levels.end(),
                           [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
}

// `1.5 ms` on an axis with ticks every `step`: the digits that tell ticks apart, and no more.
[[nodiscard]] inline std::string tick_text(double value, double step, const scale_unit& unit) {
  if (value == 0) return "0";
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fixed(value, std::min(decimals, 9)).append(" ").append(unit.name);
}

// The curve of device bytes, `height` high, from `y` down; returns where it ends.
inline double draw_curve(const picture_layout& layout, svg& back, svg& front, double y,
                         double height) {
  const auto& levels = layout.levels();
  const auto& peak = peak_of(levels);
  const double most = std::max(1.0, static_cast<double>(peak.bytes));
  const auto unit = unit_of(most, binary_units);
  const double step = round_step(most * 1.15 / unit.size, std::max(2.0, height / 28));
  const double top = std::max(most * 1.15, step * unit.size);
  const double bottom = y + height;
  const auto y_of = [&](double bytes) { return bottom - bytes / top * height; };

  for (double tick = 0; tick * unit.size <= top * 1.0001; tick += step) {
    const double at = y_of(tick * unit.size);
    back.line(layout.left(), at, layout.right(), at, tick == 0 ? "#c6cbd1" : grid_line);
    front.label(layout.left() - 12, at + 4, tick_text(tick, step, unit),
                {11, faint_ink, anchor::end, false});
  }

  const auto kept = thin_levels(levels, layout.pixel());
  const auto number = [](double value) { return trimmed(value, 1); };
  std::string path = "M" + number(layout.x_of(kept.front().time)) + " " +
                     number(y_of(static_cast<double>(kept.front().bytes)));
  for (std::size_t i = 1; i < kept.size(); ++i) {
    path += "H" + number(layout.x_of(kept[i].time)) + "V" +
            number(y_of(static_cast<double>(kept[i].bytes)));
  }
  path += "H" + number(layout.right());
  const auto start = number(layout.x_of(kept.front().time));
  front.put("<path fill=\"#5b7aa5\" fill-opacity=\".28\" d=\"" + path + "V" + number(bottom) + "H" +
            start + "Z\"/>\n");
  front.put("<path fill=\"none\" stroke=\"#3d5a80\" stroke-width=\"1.4\" d=\"" + path + "\"/>\n");

  // The name and the peak share a line: each takes the side where the other is not.
  const double x = layout.x_of(peak.time);
  const double level = y_of(static_cast<double>(peak.bytes));
  const auto at_peak = "peak " + bytes_text(peak.bytes) + " at " + duration_text(peak.time);
  front.line(layout.left(), level, layout.right(), level, "#3d5a80",
             " stroke-dasharray=\"2 3\" stroke-opacity=\".6\"");
  front.put("<circle r=\"3.5\" fill=\"#3d5a80\" stroke=\"#fff\"" + svg::attribute("cx", x) +
            svg::attribute("cy", level) + "/>\n");
  const bool right_half = x > (layout.left() + layout.right()) / 2;
  front.label(x + (right_half ? -8 : 8), level - 6, at_peak,
              {12, ink, right_half ? anchor::end : anchor::start, true});
  front.label(layout.right() + 10, bottom - height / 2, "device", {11, faint_ink});
  front.label(layout.right() + 10, bottom - height / 2 + 13, "memory", {11, faint_ink});
  return bottom;
}

// The time axis under `y`, with grid lines from `top`; returns where it ends.
inline double draw_time_axis(const picture_layout& layout, svg& back, svg& front, double top,
                             double y) {
  const double range = layout.to() - layout.from();
  const auto unit = unit_of(range, time_units);
  const double step = round_step(range / unit.size, (layout.right() - layout.left()) / 95);
  // Counted, not added up: a step may be less than the rounding of a large time.
  const double first = std::ceil(layout.from() / unit.size / step - 1e-6);
  const auto count = static_cast<int>(std::floor(range / unit.size / step + 1e-6));
  for (int i = 0; i <= count; ++i) {
    const double tick = (first + i) * step;
    const double x = layout.x_of(tick * unit.size);
    if (x > layout.right() + 0.5) break;
    back.line(x, top, x, y + 5, grid_line);
    front.label(x, y + 19, tick_text(tick, step, unit), {11, faint_ink, anchor::middle, false});
  }
  return y + 22;
}

}  // namespace tidepool::trace::detail
