/// The lower part of a step's picture: device bytes over time, and the time axis.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/trace/detail/bars.hpp"
#include "tidepool/trace/detail/picture_layout.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

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

// The part below the lanes: device bytes over time.
class memory_curve {
 public:
  // `height` high, from `y` down; a budget of 0 is none.
  memory_curve(const picture_layout& layout, std::size_t budget, double y, double height)
      : layout_(layout), budget_(budget), y_(y), height_(height) {
    const auto bytes_of = [](const trace::level& of) { return static_cast<double>(of.bytes); };
    double most = std::max(1.0, bytes_of(peak_of(layout.levels())));
    if (shows_without()) most = std::max(most, bytes_of(peak_of(layout.without())));
    // One far above is said in words: a curve along the bottom would tell nothing.
    budget_seen_ = budget > 0 && static_cast<double>(budget) <= 2.5 * most;
    if (budget_seen_) most = std::max(most, static_cast<double>(budget));
    unit_ = unit_of(most, binary_units);
    step_ = round_step(most * 1.15 / unit_.size, std::max(2.0, height / 28));
    top_ = std::max(most * 1.15, step_ * unit_.size);
  }

  // What there would be without offload is behind the curve, the budget above it. Returns where it
  // ends.
  double draw(svg& back, svg& front) const {
    draw_grid(back, front);
    if (shows_without()) {
      draw_path(front, layout_.without(), "#d5d9de", ".6", "#8b949e");
      const auto& highest = peak_of(layout_.without());
      const double at =
          std::clamp(layout_.x_of(highest.time), layout_.left() + 90, layout_.right() - 90);
      front.halo_label(at, y_of(highest.bytes) - 5, "without offload " + bytes_text(highest.bytes),
                       {11, faint_ink, anchor::middle, true});
    }
    draw_path(front, layout_.levels(), "#5b7aa5", ".38", "#3d5a80");
    draw_budget(front);
    draw_peak(front);
    const double middle = y_ + height_ / 2;
    front.label(layout_.right() + 10, middle, "device", {11, faint_ink});
    front.label(layout_.right() + 10, middle + 13, "memory", {11, faint_ink});
    return y_ + height_;
  }

 private:
  [[nodiscard]] bool shows_without() const { return !layout_.without().empty(); }
  [[nodiscard]] double y_of(double bytes) const { return y_ + height_ - bytes / top_ * height_; }
  [[nodiscard]] double y_of(std::size_t bytes) const { return y_of(static_cast<double>(bytes)); }

  void draw_grid(svg& back, svg& front) const {
    for (double tick = 0; tick * unit_.size <= top_ * 1.0001; tick += step_) {
      const double at = y_of(tick * unit_.size);
      back.line(layout_.left(), at, layout_.right(), at, tick == 0 ? "#c6cbd1" : grid_line);
      front.label(layout_.left() - 12, at + 4, tick_text(tick, step_, unit_),
                  {11, faint_ink, anchor::end, false});
    }
  }

  void draw_path(svg& front, const std::vector<trace::level>& levels, std::string_view fill,
                 std::string_view opacity, std::string_view stroke) const {
    const auto kept = thin_levels(levels, layout_.pixel());
    const auto number = [](double value) { return trimmed(value, 1); };
    std::string path =
        "M" + number(layout_.x_of(kept.front().time)) + " " + number(y_of(kept.front().bytes));
    for (std::size_t i = 1; i < kept.size(); ++i) {
      path += "H" + number(layout_.x_of(kept[i].time)) + "V" + number(y_of(kept[i].bytes));
    }
    path += "H" + number(layout_.right());
    const auto closed =
        path + "V" + number(y_ + height_) + "H" + number(layout_.x_of(kept.front().time)) + "Z";
    front.put("<path" + svg::attribute("fill", fill) + svg::attribute("fill-opacity", opacity) +
              svg::attribute("d", closed) + "/>\n");
    front.put("<path fill=\"none\" stroke-width=\"1.4\"" + svg::attribute("stroke", stroke) +
              svg::attribute("d", path) + "/>\n");
  }

  void draw_budget(svg& front) const {
    const auto name = "budget " + bytes_text(budget_);
    if (budget_seen_) {
      const double level = y_of(budget_);
      front.line(layout_.left(), level, layout_.right(), level, red_ink,
                 " stroke-width=\"1.4\" stroke-dasharray=\"7 4\"");
      front.halo_label(layout_.right() - 6, level - 4, name, {11, red_ink, anchor::end, true});
    } else if (budget_ > 0) {
      front.label(layout_.right() - 6, y_ - 2, name + ", off the scale",
                  {11, red_ink, anchor::end, true});
    }
  }

  void draw_peak(svg& front) const {
    const auto& peak = peak_of(layout_.levels());
    const double x = layout_.x_of(peak.time);
    const double level = y_of(peak.bytes);
    front.line(layout_.left(), level, layout_.right(), level, "#3d5a80",
               " stroke-dasharray=\"2 3\" stroke-opacity=\".6\"");
    front.put("<circle r=\"3.5\" fill=\"#3d5a80\" stroke=\"#fff\"" + svg::attribute("cx", x) +
              svg::attribute("cy", level) + "/>\n");
    const bool right_half = x > (layout_.left() + layout_.right()) / 2;
    // Clear of the line of a budget that is nearly taken, and of the budget's name at its end.
    double at = level - 6;
    if (budget_seen_ && level - y_of(budget_) < 22) {
      at = x < layout_.right() - 130 ? std::min(at, y_of(budget_) - 5) : level + 16;
    }
    front.halo_label(x + (right_half ? -8 : 8), at,
                     "peak held " + bytes_text(peak.bytes) + " at " + duration_text(peak.time),
                     {12, ink, right_half ? anchor::end : anchor::start, true});
  }

  const picture_layout& layout_;
  std::size_t budget_;
  double y_;
  double height_;
  bool budget_seen_ = false;
  scale_unit unit_{};
  double step_ = 1;
  double top_ = 1;
};

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
