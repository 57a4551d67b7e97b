// The bodies of picture.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

#include "tidepool/trace/detail/palette.hpp"
#include "tidepool/trace/detail/picture_axes.hpp"
#include "tidepool/trace/detail/picture_lanes.hpp"
#include "tidepool/trace/detail/picture_layout.hpp"
#include "tidepool/trace/detail/picture_notes.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/picture.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

class picture {
 public:
  picture(const trace::record& record, const trace::picture_options& options)
      : record_(record),
        width_(std::clamp(options.width, 480.0, 10000.0)),
        lane_height_(std::clamp(options.lane_height, 14.0, 200.0)),
        curve_height_(options.curve_height > 0 ? std::clamp(options.curve_height, 40.0, 2000.0)
                                               : 0.0),
        layout_(record, width_) {}

  [[nodiscard]] std::string draw() {
    const double top = legend(header()) + 12;
    double y = draw_passes(layout_, front_, top);
    y = picture_lanes(layout_, record_, lane_height_, back_, front_).draw(y);
    if (!layout_.levels().empty() && curve_height_ > 0) {
      y = memory_curve(layout_, record_.budget, y + 26, curve_height_).draw(back_, front_);
    }
    y = empty() ? nothing(y) : draw_time_axis(layout_, back_, front_, top, y);
    y = draw_stall_list(record_, layout_, front_, y);
    const double height = y + 12;

    return "<svg xmlns=\"http://www.w3.org/2000/svg\"" + svg::attribute("width", width_) +
           svg::attribute("height", height) + " viewBox=\"0 0 " + trimmed(width_, 2) + " " +
           trimmed(height, 2) +
           "\" font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif\" "
           "role=\"img\">\n<title>" +
           xml_text(title()) +
           "</title>\n<defs><pattern id=\"tidepool-stall\" width=\"6\" height=\"6\" "
           "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"6\" "
           "height=\"6\" fill=\"#fbdcdc\"/><rect width=\"2.6\" height=\"6\" fill=\"" +
           hex(stall_colour) +
           "\"/></pattern></defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" +
           back_.text() + front_.text() + "</svg>\n";
  }

 private:
  [[nodiscard]] bool empty() const { return layout_.spans().empty() && layout_.levels().empty(); }
  [[nodiscard]] std::string title() const {
    return record_.title.empty() ? "One step" : cut(record_.title, 200);
  }

  // Each part returns the lowest line it used.

  double header() {
    front_.label(20, 32, fit(title(), width_ - 40, 19), {17, ink, anchor::start, true}, title());
    if (empty()) return 32;
    std::size_t out = 0;
    std::size_t in = 0;
    for (const auto* span : layout_.spans()) {
      if (span->kind == trace::span_kind::offload) out += span->bytes;
      if (span->kind == trace::span_kind::reload) in += span->bytes;
    }
    double stalled = 0;
    for (const auto& lane : layout_.lanes()) stalled += lane.stalled;
    std::string facts = duration_text(layout_.to() - layout_.from());
    const auto fact = [&](std::string_view name, const std::string& value) {
      facts.append("  \xc2\xb7  ").append(name).append(" ").append(value);
    };
    if (out > 0) fact("offloaded", bytes_text(out));
    if (in > 0) fact("reloaded", bytes_text(in));
    if (!layout_.levels().empty()) fact("peak held", bytes_text(peak_of(layout_.levels()).bytes));
    if (!layout_.spans().empty()) fact("stalled", stalled > 0 ? duration_text(stalled) : "never");
    front_.label(20, 53, facts, {12, faint_ink, anchor::start, false});
    return 53;
  }

  double legend(double y) {
    constexpr std::size_t most = 40;
    double x = 20;
    double row = y + 27;
    std::size_t listed = 0;
    std::size_t left_out = 0;
    const auto step = [&](double width) {
      if (x + width > layout_.right() && x > 20) {
        x = 20;
        row += 20;
      }
    };
    for (std::size_t i = 1; i <= layout_.styles().size(); ++i) {
      // Stalls come last in the legend, and first in the styles.
      const auto& style = layout_.styles()[i % layout_.styles().size()];
      if (!style.listed) continue;
      if (++listed > most) {
        ++left_out;
        continue;
      }
      const auto name = cut(style.name, 32);
      const double width = 17 + text_width(name, 12) + 12;
      step(width);
      front_.rectangle({x, row - 10, 12, 12}, style.fill, svg::attribute("rx", 2));
      front_.label(x + 17, row, name, {12, ink, anchor::start, false},
                   name == style.name ? "" : cut(style.name, 200));
      x += width;
    }
    const auto pass = [&](std::string_view name, std::string_view fill, bool backward) {
      const bool there = std::any_of(layout_.passes().begin(), layout_.passes().end(),
                                     [&](const auto* each) { return each->backward == backward; });
      if (!there) return;
      ++listed;
      const double width = 17 + text_width(name, 12) + 12;
      step(width);
      front_.rectangle({x, row - 10, 12, 12}, fill, svg::attribute("rx", 2));
      front_.label(x + 17, row, name, {12, ink, anchor::start, false});
      x += width;
    };
    pass("forward pass", forward_fill, false);
    pass("backward pass", backward_fill, true);
    if (left_out > 0) {
      step(100);
      front_.label(x, row, "and " + std::to_string(left_out) + " more",
                   {12, faint_ink, anchor::start, false});
    }
    return listed == 0 ? y : row + 4;
  }

  double nothing(double y) {
    front_.label(20, y + 18, "Nothing was recorded.", {13, faint_ink});
    return y + 22;
  }

  const trace::record& record_;
  double width_;
  double lane_height_;
  double curve_height_;
  picture_layout layout_;
  svg back_;   // strips and grid
  svg front_;  // bars and text
};

}  // namespace tidepool::trace::detail

namespace tidepool::inline v0_3_0::trace {

TIDEPOOL_INLINE void write_svg(std::ostream& out, const record& step,
                               const picture_options& options) {
  const auto text = detail::picture(step, options).draw();
  // Unformatted, so that the stream's locale and width do not count.
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace tidepool::trace
