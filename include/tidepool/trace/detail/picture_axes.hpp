/// The lower part of a step's picture: the curve of device bytes over time, and the time axis.
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

// The highest level, or the first of several. `levels` must not be empty.
[[nodiscard]] inline const trace::level& peak_of(const std::vector<trace::level>& levels) {
  return *std::max_element(levels.begin(), levels.end(),
                           [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
}

// A text such as `1.5 ms` for a tick. The text has just enough digits to distinguish ticks that are
// `step` apart.
[[nodiscard]] inline std::string tick_text(double value, double step, const scale_unit& unit) {
  if (value == 0) return "0";
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fixed(value, std::min(decimals, 9)).append(" ").append(unit.name);
}

// The curve of device bytes over time, below the lanes.
class memory_curve {
 public:
  // A curve from `y` down, `height` pixels high. A budget of 0 means no budget.
  memory_curve(const picture_layout& layout, std::size_t budget, double y, double height)
      : layout_(layout), budget_(budget), y_(y), height_(height) {
    const auto bytes_of = [](const trace::level& of) { return static_cast<double>(of.bytes); };
    double most = std::max(1.0, bytes_of(peak_of(layout.levels())));
    if (shows_without()) most = std::max(most, bytes_of(peak_of(layout.without())));
    // A budget far above the curve is only written in words, because it would press the curve to
    // the bottom.
    budget_seen_ = budget > 0 && static_cast<double>(budget) <= 2.5 * most;
    if (budget_seen_) most = std::max(most, static_cast<double>(budget));
    unit_ = unit_of(most, binary_units);
    step_ = round_step(most * 1.15 / unit_.size, std::max(2.0, height / 28));
    top_ = std::max(most * 1.15, step_ * unit_.size);
  }

  // Draws the bytes without offload behind the curve and the budget above it. Returns the lower
  // end.
  double draw(const std::vector<trace::module_levels>& parts, sheet& on) const {
    draw_grid(on);
    auto& front = on.words;
    if (shows_without()) {
      draw_path(on.shapes, layout_.without(), "#e4e7eb", "#8b949e", "without offload");
      const auto& highest = peak_of(layout_.without());
      const double at =
          std::clamp(layout_.x_of(highest.time), layout_.left() + 90, layout_.right() - 90);
      front.label(at, y_of(highest.bytes) - 5, "without offload " + bytes_text(highest.bytes),
                  {11, faint_ink, anchor::middle, true, true});
    }
    draw_parts(parts, on.shapes);
    draw_budget(on);
    draw_peak(on);
    const double middle = y_ + height_ / 2;
    front.label(layout_.right() + 10, middle, "device", {11, faint_ink});
    front.label(layout_.right() + 10, middle + 13, "memory", {11, faint_ink});
    return y_ + height_;
  }

 private:
  [[nodiscard]] bool shows_without() const { return !layout_.without().empty(); }
  [[nodiscard]] double y_of(double bytes) const { return y_ + height_ - bytes / top_ * height_; }
  [[nodiscard]] double y_of(std::size_t bytes) const { return y_of(static_cast<double>(bytes)); }

  // Modules on top of each other: each is drawn over the sum with those above it.
  void draw_parts(const std::vector<trace::module_levels>& parts, svg& front) const {
    auto sum = thin_levels(layout_.levels(), layout_.pixel() / layout_.detail());
    const auto* const rest =
        parts.empty() ? "saved tensors on the device" : "tensors that no group saved";
    draw_path(front, sum, parts.empty() ? "#b9c8dd" : "#c6cbd1", "#3d5a80", rest);
    for (const auto& part : parts) {
      const auto* style = layout_.style_of(part.module);
      if (style == nullptr || part.bytes.empty()) continue;
      draw_path(front, sum, style->fill, {},
                part.module + ", at most " + bytes_text(peak_of(part.bytes).bytes));
      auto at = part.bytes.begin();
      for (auto& level : sum) {
        while (at + 1 != part.bytes.end() && (at + 1)->time <= level.time) ++at;
        level.bytes -= std::min(level.bytes, at->bytes);
      }
    }
    // Their own paths hide the first.
    if (!parts.empty()) draw_path(front, sum, "#c6cbd1", {}, rest);
  }

  void draw_grid(sheet& on) const {
    for (double tick = 0; tick * unit_.size <= top_ * 1.0001; tick += step_) {
      const double at = y_of(tick * unit_.size);
      on.strips.line(layout_.left(), at, layout_.right(), at, tick == 0 ? "#c6cbd1" : grid_line);
      on.words.label(layout_.left() - 12, at + 4, tick_text(tick, step_, unit_),
                     {11, faint_ink, anchor::end, false});
    }
  }

  void draw_path(svg& front, const std::vector<trace::level>& levels, std::string_view fill,
                 std::string_view stroke, std::string_view about) const {
    const auto kept = thin_levels(levels, layout_.pixel() / layout_.detail());
    const auto number = [](double value) { return trimmed(value, 1); };
    std::string path =
        "M" + number(layout_.x_of(kept.front().time)) + " " + number(y_of(kept.front().bytes));
    for (std::size_t i = 1; i < kept.size(); ++i) {
      path += "H" + number(layout_.x_of(kept[i].time)) + "V" + number(y_of(kept[i].bytes));
    }
    path += "H" + number(layout_.right());
    const auto closed =
        path + "V" + number(y_ + height_) + "H" + number(layout_.x_of(kept.front().time)) + "Z";
    front.put("<path" + svg::attribute("fill", fill) + svg::attribute("d", closed) + "><title>" +
              xml_text(about) + "</title></path>\n");
    if (stroke.empty()) return;
    front.put("<path fill=\"none\" stroke-width=\"1.4\"" + svg::attribute("stroke", stroke) +
              svg::attribute("d", path) + "/>\n");
  }

  void draw_budget(sheet& on) const {
    const auto name = "budget " + bytes_text(budget_);
    if (budget_seen_) {
      const double level = y_of(budget_);
      on.shapes.line(layout_.left(), level, layout_.right(), level, red_ink,
                     " stroke-width=\"1.4\" stroke-dasharray=\"7 4\"");
      on.words.label(layout_.right() - 6, level - 4, name, {11, red_ink, anchor::end, true, true});
    } else if (budget_ > 0) {
      on.words.label(layout_.right() - 6, y_ - 2, name + ", off the scale",
                     {11, red_ink, anchor::end, true});
    }
  }

  void draw_peak(sheet& on) const {
    const auto& peak = peak_of(layout_.levels());
    const double x = layout_.x_of(peak.time);
    const double level = y_of(peak.bytes);
    on.shapes.line(layout_.left(), level, layout_.right(), level, "#3d5a80",
                   " stroke-dasharray=\"2 3\" stroke-opacity=\".6\"");
    on.words.put("<circle r=\"3.5\" fill=\"#3d5a80\" stroke=\"#fff\"" + svg::attribute("cx", x) +
                 svg::attribute("cy", level) + "/>\n");
    const bool right_half = x > (layout_.left() + layout_.right()) / 2;
    // The label avoids the line of a budget that is nearly used up, and the budget's name at the
    // line's end.
    double at = level - 6;
    if (budget_seen_ && level - y_of(budget_) < 22) {
      at = x < layout_.right() - 130 ? std::min(at, y_of(budget_) - 5) : level + 16;
    }
    on.words.label(x + (right_half ? -8 : 8), at,
                   "peak held " + bytes_text(peak.bytes) + " at " + duration_text(peak.time),
                   {12, ink, right_half ? anchor::end : anchor::start, true, true});
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
inline double draw_time_axis(const picture_layout& layout, sheet& on, double top, double y) {
  const double range = layout.to() - layout.from();
  const auto unit = unit_of(range, time_units);
  const double step = round_step(range / unit.size, (layout.right() - layout.left()) / 95);
  // Ticks are counted and not added up, because a step may be smaller than the rounding of a large
  // time.
  const double first = std::ceil(layout.from() / unit.size / step - 1e-6);
  const auto count = static_cast<int>(std::floor(range / unit.size / step + 1e-6));
  for (int i = 0; i <= count; ++i) {
    const double tick = (first + i) * step;
    const double x = layout.x_of(tick * unit.size);
    if (x > layout.right() + 0.5) break;
    on.strips.line(x, top, x, y + 5, grid_line);
    on.words.label(x, y + 19, tick_text(tick, step, unit), {11, faint_ink, anchor::middle, false});
  }
  return y + 22;
}

}  // namespace tidepool::trace::detail
