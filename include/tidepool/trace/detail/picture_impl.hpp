// Draws a step's picture: the implementation of picture.hpp.
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
  picture(const trace::record& record, const trace::picture_options& options, double detail = 1)
      : record_(record),
        width_(std::clamp(options.width, 480.0, 10000.0)),
        lane_height_(std::clamp(options.lane_height, 14.0, 200.0)),
        curve_height_(options.curve_height > 0 ? std::clamp(options.curve_height, 40.0, 2000.0)
                                               : 0.0),
        layout_(record, width_, detail) {}

  [[nodiscard]] std::string draw() {
    const double top = legend(header()) + 12;
    double y = plot(top);
    y = empty() ? nothing(y) : draw_time_axis(layout_, on_, top, y);
    y = draw_stall_list(record_, layout_, head_, y);
    svg all;
    all.put(layout_.patterns() + head_.text() + on_.text());
    return all.file(width_, y + 12, title());
  }

  // For a page, whose script stretches the time: without header, axis, and words in bars.
  [[nodiscard]] std::string part() {
    const double height = plot(14) + 26;
    std::string keys;
    for (const auto* each : layout_.listed()) {
      keys += "<span><svg width=\"12\" height=\"12\"><rect width=\"12\" height=\"12\"" +
              svg::attribute("fill", each->fill) + "/></svg> " + xml_text(each->name) + "</span>\n";
    }
    std::string axis = trimmed(width_, 2);
    for (const double each : {layout_.left(), layout_.right(), layout_.from(), layout_.to()}) {
      axis += " " + trimmed(each, 3);
    }
    return "<p id=\"keys\">" + keys + "</p>\n<div id=\"frame\"><svg" +
           svg::attribute("height", height) + svg::attribute("data-axis", axis) + ">\n" +
           layout_.patterns() + on_.text() + "</svg></div>\n";
  }

  // Facts on the whole step in a line; empty where there are none.
  [[nodiscard]] std::string facts() const {
    if (empty()) return {};
    traffic out;
    traffic in;
    for (const auto* span : layout_.spans()) {
      if (span->kind == trace::span_kind::offload) out.add(*span);
      if (span->kind == trace::span_kind::reload) in.add(*span);
    }
    double stalled = 0;
    for (const auto& lane : layout_.lanes()) stalled += lane.stalled;
    std::string facts = duration_text(layout_.to() - layout_.from());
    const auto fact = [&](std::string_view name, const std::string& value) {
      facts.append("  \xc2\xb7  ").append(name).append(" ").append(value);
    };
    if (out.bytes > 0) fact("offloaded", out.text());
    if (in.bytes > 0) fact("reloaded", in.text());
    if (!layout_.levels().empty()) fact("peak held", bytes_text(peak_of(layout_.levels()).bytes));
    if (!layout_.spans().empty()) fact("stalled", stalled > 0 ? duration_text(stalled) : "never");
    return facts;
  }

 private:
  [[nodiscard]] bool empty() const { return layout_.spans().empty() && layout_.levels().empty(); }
  [[nodiscard]] std::string title() const {
    return record_.title.empty() ? "One step" : cut(record_.title, 200);
  }

  // Each part returns the lowest line it used.

  double header() {
    head_.label(20, 32, fit(title(), width_ - 40, 19), {17, ink, anchor::start, true}, title());
    if (empty()) return 32;
    head_.label(20, 53, facts(), {12, faint_ink});
    return 53;
  }

  double legend(double y) {
    constexpr std::size_t most = 40;
    double x = 20;
    double row = y + 27;
    const auto step = [&](double width) {
      if (x + width > layout_.right() && x > 20) {
        x = 20;
        row += 20;
      }
    };
    const auto entries = layout_.listed();
    for (std::size_t i = 0; i < std::min(most, entries.size()); ++i) {
      const auto name = cut(entries[i]->name, 32);
      const double width = 17 + text_width(name, 12) + 12;
      step(width);
      head_.rectangle({x, row - 10, 12, 12}, entries[i]->fill);
      head_.label(x + 17, row, name, {12, ink},
                  name == entries[i]->name ? "" : cut(entries[i]->name, 200));
      x += width;
    }
    if (entries.size() > most) {
      step(100);
      head_.label(x, row, "and " + std::to_string(entries.size() - most) + " more",
                  {12, faint_ink});
    }
    return entries.empty() ? y : row + 4;
  }

  double plot(double top) {
    double y = draw_passes(layout_, on_, top);
    y = picture_lanes(layout_, record_, lane_height_, on_).draw(y);
    if (layout_.levels().empty() || !(curve_height_ > 0)) return y;
    return memory_curve(layout_, record_.budget, y + 26, curve_height_)
        .draw(record_.device_bytes_of, on_);
  }

  double nothing(double y) {
    head_.label(20, y + 18, "Nothing was recorded.", {13, faint_ink});
    return y + 22;
  }

  const trace::record& record_;
  double width_;
  double lane_height_;
  double curve_height_;
  picture_layout layout_;
  svg head_;  // all but the plot
  sheet on_;
};

}  // namespace tidepool::trace::detail

namespace tidepool::inline v0_3_0::trace {

TIDEPOOL_INLINE void write_svg(std::ostream& out, const record& step,
                               const picture_options& options) {
  const auto text = detail::picture(step, options).draw();
  // Writes unformatted, because the stream's locale and width must have no effect.
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace tidepool::trace
