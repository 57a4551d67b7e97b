/// Charts of lines and points with titled axes and a legend, as one SVG page.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>
#include <string>
#include <tidepool/trace/detail/palette.hpp>
#include <tidepool/trace/detail/svg.hpp>
#include <utility>
#include <vector>

namespace tools {

namespace draw = tidepool::trace::detail;

/// One point of a line.
struct chart_point {
  double x = 0;
  double y = 0;
  std::string label;  ///< visible beside the point
  std::string about;  ///< shown when the pointer rests on it
};

struct chart_line {
  std::string name;
  std::string colour;
  std::vector<chart_point> points;
  std::string dashes;  ///< `5 4`: strokes and gaps in pixels; empty: a whole line
  bool marked = true;  ///< its points are drawn
};

/// The `number`th line of a chart: colours that everybody tells apart, and dashes for print.
[[nodiscard]] inline chart_line numbered_line(std::size_t number, std::string name) {
  // Of the palette of modules, those that can be read as text on white.
  constexpr std::size_t places[]{1, 3, 6, 7};
  constexpr const char* dashes[]{"", "7 4", "2 3", "9 3 2 3"};
  return {
      std::move(name), draw::hex(draw::module_colours[places[number % 4]]), {}, dashes[number % 4]};
}

struct chart_axis {
  std::string title;
  double from = 0;
  double to = 1;
  /// Above 0: values up to it take half of the axis, and those above it the other half.
  double fold = 0;

  /// Where a value stands, from 0 to 1.
  [[nodiscard]] double share_of(double value) const {
    if (!(fold > from && fold < to)) return (value - from) / (to - from);
    return value <= fold ? (value - from) / (fold - from) / 2
                         : 0.5 + (value - fold) / (to - fold) / 2;
  }
};

/// A page on which charts stand one below the other.
class chart_page {
 public:
  static constexpr double width = 760;

  explicit chart_page(std::string title, const std::string& below = {}) : title_(std::move(title)) {
    page_.label(left_edge, 32, draw::fit(title_, width - 2 * left_edge, 17),
                {17, draw::ink, draw::anchor::start, true});
    if (!below.empty()) {
      page_.label(left_edge, 52, draw::fit(below, width - 2 * left_edge, 12),
                  {12, draw::faint_ink});
    }
    bottom_ = below.empty() ? 40 : 60;
  }

  /// A chart, `height` pixels between its axes.
  void add(const std::string& name, const chart_axis& x, const chart_axis& y,
           const std::vector<chart_line>& lines, double height = 300) {
    double top = bottom_ + 14;
    if (!name.empty()) {
      page_.label(left_edge, top + 8, name, {13, draw::ink, draw::anchor::start, true});
      top += 22;
    }
    top = draw_legend(lines, top + 4) + 16;
    const frame at{x, y, top, top + height};
    draw_axes(at);
    taken_.clear();
    for (const auto& line : lines) draw_line(at, line);
    for (const auto& line : lines) {
      for (const auto& point : line.points) draw_label(at, point, line.colour);
    }
    for (const auto& line : lines) draw_name(at, line);
    bottom_ = at.bottom + 48;
  }

  void write(std::ostream& out) const {
    const auto text = page_.file(width, bottom_ + 8, title_);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
  }

 private:
  static constexpr double left_edge = 20;
  static constexpr double left = 82;
  static constexpr double right = width - 30;
  static constexpr double label_size = 11;

  struct frame {
    const chart_axis& x;
    const chart_axis& y;
    double top;
    double bottom;

    [[nodiscard]] double x_of(double value) const {
      return left + x.share_of(value) * (right - left);
    }
    [[nodiscard]] double y_of(double value) const {
      return bottom - y.share_of(value) * (bottom - top);
    }
  };

  // Such a name stands beside its line, a longer one above the chart.
  static bool is_short(const std::string& name) { return !name.empty() && name.size() <= 30; }

  double draw_legend(const std::vector<chart_line>& lines, double y) {
    double x = left_edge;
    for (const auto& line : lines) {
      if (line.name.empty() || is_short(line.name)) continue;
      const double wide = 28 + draw::text_width(line.name, 12) + 14;
      if (x + wide > right && x > left_edge) {
        x = left_edge;
        y += 20;
      }
      page_.line(x, y + 4, x + 22, y + 4, line.colour, stroke_of(line));
      if (line.marked) circle(x + 11, y + 4, line.colour, {});
      page_.label(x + 28, y + 8, line.name, {12, draw::ink});
      x += wide;
    }
    return x > left_edge ? y + 8 : y - 12;
  }

  static std::string stroke_of(const chart_line& line) {
    return std::string(" stroke-width=\"2\"") +
           (line.dashes.empty() ? "" : draw::svg::attribute("stroke-dasharray", line.dashes));
  }

  void circle(double x, double y, const std::string& colour, const std::string& about) {
    page_.put(
        "<circle r=\"4\" stroke=\"#fff\"" + draw::svg::attribute("cx", x) +
        draw::svg::attribute("cy", y) + draw::svg::attribute("fill", colour) +
        (about.empty() ? "/>\n" : "><title>" + draw::xml_text(about) + "</title></circle>\n"));
  }

  // Digits that tell the ticks apart, and no more.
  static std::string tick_text(double value, double step) {
    const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
    return draw::fixed(value, std::min(decimals, 6));
  }

  void draw_axes(const frame& at) {
    const auto ticks = [](double from, double to, double count, const auto& what) {
      const auto step = draw::round_step(to - from, count);
      const auto first = std::ceil(from / step - 1e-6);
      for (int i = 0; (first + i) * step <= to + 1e-6 * step; ++i) {
        const auto value = (first + i) * step;
        what(value, tick_text(value, step));
      }
    };
    const auto each_tick = [&](const chart_axis& axis, double count, const auto& what) {
      if (!(axis.fold > axis.from && axis.fold < axis.to)) {
        return ticks(axis.from, axis.to, count, what);
      }
      ticks(axis.from, axis.fold, count / 2, what);
      ticks(axis.fold, axis.to, count / 2, [&](double value, const std::string& text) {
        if (value > axis.fold * 1.001) what(value, text);
      });
    };
    if (at.y.fold > at.y.from && at.y.fold < at.y.to) {
      const double y = at.y_of(at.y.fold);
      page_.rectangle({left, at.top, right - left, y - at.top}, "#f3f4f6");
      page_.label(right - 4, at.top + 14,
                  "above " + draw::trimmed(at.y.fold, 2) + ": another scale",
                  {11, draw::faint_ink, draw::anchor::end});
    }
    each_tick(at.y, (at.bottom - at.top) / 38, [&](double value, const std::string& text) {
      page_.line(left, at.y_of(value), right, at.y_of(value), draw::grid_line);
      page_.label(left - 8, at.y_of(value) + 4, text, {11, draw::faint_ink, draw::anchor::end});
    });
    each_tick(at.x, 9, [&](double value, const std::string& text) {
      page_.line(at.x_of(value), at.top, at.x_of(value), at.bottom + 5, draw::grid_line);
      page_.label(at.x_of(value), at.bottom + 19, text,
                  {11, draw::faint_ink, draw::anchor::middle});
    });
    page_.line(left, at.bottom, right, at.bottom, draw::faint_ink);
    page_.line(left, at.top, left, at.bottom, draw::faint_ink);
    page_.label((left + right) / 2, at.bottom + 38, at.x.title,
                {12, draw::ink, draw::anchor::middle});
    const auto middle = draw::trimmed((at.top + at.bottom) / 2, 1);
    page_.put("<text font-size=\"12\" text-anchor=\"middle\" transform=\"translate(32 " + middle +
              ") rotate(-90)\"" + draw::svg::attribute("fill", draw::ink) + ">" +
              draw::xml_text(at.y.title) + "</text>\n");
  }

  void draw_line(const frame& at, const chart_line& line) {
    std::string path;
    for (const auto& point : line.points) {
      path += draw::trimmed(at.x_of(point.x), 1) + "," + draw::trimmed(at.y_of(point.y), 1) + " ";
    }
    page_.put("<polyline fill=\"none\"" + stroke_of(line) +
              draw::svg::attribute("stroke", line.colour) + draw::svg::attribute("points", path) +
              "/>\n");
    if (!line.marked) return;
    for (const auto& point : line.points) {
      const double x = at.x_of(point.x);
      const double y = at.y_of(point.y);
      circle(x, y, line.colour, point.about);
      taken_.push_back({x - 5, y - 5, 10, 10});
    }
  }

  // The name of a line beside its highest point that has room: nobody need look it up by colour.
  void draw_name(const frame& at, const chart_line& line) {
    if (line.points.empty() || !is_short(line.name)) return;
    const auto highest = std::max_element(line.points.begin(), line.points.end(),
                                          [](const auto& a, const auto& b) { return a.y < b.y; });
    draw_label(at, {highest->x, highest->y, line.name, {}}, line.colour, true);
  }

  // Beside its point, where nothing is yet.
  void draw_label(const frame& at, const chart_point& point, const std::string& colour,
                  bool at_left = false) {
    if (point.label.empty()) return;
    const double x = at.x_of(point.x);
    const double y = at.y_of(point.y);
    const double wide = draw::text_width(point.label, label_size);
    draw::box best{at_left ? x - 10 - wide : x + 8, y - (at_left ? 6 : 14), wide, 12};
    const std::pair<double, double> places[]{
        {best.x - x, best.y - y}, {8, -14},        {8, 3},
        {-8 - wide, -14},         {-8 - wide, 3},  {-wide / 2, -19},
        {-wide / 2, 8},           {8, -27},        {8, 16},
        {-8 - wide, -27},         {-8 - wide, 16}, {-wide / 2, -32},
        {-wide / 2, 21},          {12, -40},       {12, 29}};
    for (const auto& [dx, dy] : places) {
      const draw::box candidate{x + dx, y + dy, wide, 12};
      if (candidate.x < left + 2 || candidate.x + wide > right + 28 ||
          candidate.y + 12 > at.bottom || candidate.y < at.top - 14) {
        continue;
      }
      const bool is_free = std::none_of(taken_.begin(), taken_.end(), [&](const draw::box& other) {
        return candidate.x < other.x + other.width && other.x < candidate.x + wide &&
               candidate.y < other.y + other.height && other.y < candidate.y + 12;
      });
      if (!is_free) continue;
      best = candidate;
      break;
    }
    taken_.push_back(best);
    page_.label(best.x, best.y + 10, point.label,
                {label_size, colour, draw::anchor::start, true, true});
  }

  std::string title_;
  draw::svg page_;
  double bottom_ = 0;
  std::vector<draw::box> taken_;
};

}  // namespace tools
