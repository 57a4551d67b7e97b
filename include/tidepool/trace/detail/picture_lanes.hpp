/// The lanes of a step's picture: bars, what is written in and about them, and how busy each was.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tidepool/trace/detail/palette.hpp"
#include "tidepool/trace/detail/picture_layout.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::trace::detail {

// Draws into two layers, since the grid of the time axis is between strips and bars.
class picture_lanes {
 public:
  picture_lanes(const picture_layout& layout, double lane_height, svg& back, svg& front)
      : layout_(layout), lane_height_(lane_height), back_(back), front_(front) {}

  // From `y` down; returns where it ends.
  double draw(const std::vector<std::string>& names, double y) {
    if (!names.empty()) front_.label(layout_.right() + 10, y - 6, "busy", {11, faint_ink});
    for (std::size_t i = 0; i < layout_.lanes().size(); ++i) {
      const auto& lane = layout_.lanes()[i];
      const double middle = y + lane_height_ / 2;
      const auto shown = fit(names[i], layout_.left() - 32, 12);
      front_.label(layout_.left() - 12, middle + 4, shown, {12, ink, anchor::end, false},
                   shown == names[i] ? "" : cut(names[i], 200));
      back_.rectangle({layout_.left(), y, layout_.right() - layout_.left(), lane_height_},
                      "#f3f4f6");
      for (const auto& bar : lane.work) draw_bar(bar, y);
      for (const auto& bar : lane.stalls) draw_bar(bar, y);
      for (const auto& bar : lane.work) draw_caption(bar, lane.stalls, middle);
      draw_occupancy(lane, middle);
      y += lane_height_ + 8;
    }
    return layout_.lanes().empty() ? y : y - 8;
  }

 private:
  static std::string percent(double share) {
    return fixed(share * 100, share > 0 && share < 0.0995 ? 1 : 0) + "%";
  }

  void draw_occupancy(const lane_layout& lane, double middle) {
    const double whole = layout_.to() - layout_.from();
    const double x = layout_.right() + 10;
    const bool stalled = lane.stalled / whole >= 0.0005;
    front_.label(x, middle + (stalled ? -1 : 4), percent(lane.busy / whole),
                 {12, ink, anchor::start, true}, "busy for " + duration_text(lane.busy));
    if (!stalled) return;
    front_.label(x, middle + 11, percent(lane.stalled / whole) + " stall",
                 {10, red_ink, anchor::start, false}, "stalled for " + duration_text(lane.stalled));
  }

  // A run of many spans shows as heights what share of its time each style had.
  void draw_bar(const bar& item, double y) {
    const bool stall = item.shares.front().style == picture_layout::stall_style;
    const double x = layout_.x_of(item.start);
    const double exact = layout_.x_of(item.end) - x;
    // What moved bytes must be seen, however short; a stall that short cost nothing.
    const double width = stall ? exact : std::max(exact, 0.6);
    // A gap keeps neighbours apart.
    const double drawn = width > 3 ? width - 0.6 : width;
    const bool several = item.shares.size() > 1;
    if (several) front_.open_group(about(item));
    double bottom = y + lane_height_;
    for (const auto& share : item.shares) {
      double part = 1.0 / static_cast<double>(item.shares.size());
      if (item.only == nullptr && item.width() > 0) {
        part = std::min(1.0, share.time / item.width());
      }
      const double height = lane_height_ * part;
      // Stalls hang from above: beside the work they interrupt, not over it.
      const box at{x, stall ? y : bottom - height, drawn, height};
      const auto& style = layout_.styles()[share.style];
      // The hatching needs room.
      const bool plain = stall && width < 4;
      front_.rectangle(at, plain ? hex(stall_colour) : style.fill,
                       width > 8 ? svg::attribute("rx", 1.5) : std::string(),
                       several ? std::string() : about(item));
      bottom -= height;
    }
    if (several) front_.close_group();
  }

  // As much about a span as there is room for beside the stalls in it.
  void draw_caption(const bar& item, const std::vector<bar>& stalls, double middle) {
    constexpr double size = 9;
    if (item.only == nullptr || item.width() < 13 * layout_.pixel() || lane_height_ < 18) return;
    const auto [from, to] = free_part(item, stalls);
    const double room = (to - from) / layout_.pixel() - 2;
    const auto& span = *item.only;
    std::string text;
    if (span.kind == span_kind::compute) {
      text = fit(span.name, room - 4, size, span.layer >= 0 ? span.name.size() : 5);
    }
    if (text.empty() && span.layer >= 0) {
      text = "L" + std::to_string(span.layer);
      const auto both = text + " m" + std::to_string(span.microbatch);
      if (span.microbatch >= 0 && text_width(both, size) <= room) text = both;
    }
    if (text.empty() || text_width(text, size) > room) return;
    const auto& style = layout_.styles()[item.shares.front().style];
    front_.label(layout_.x_of((from + to) / 2), middle + 3.2, text,
                 {size, style.light ? ink : "#fff", anchor::middle, false});
  }

  [[nodiscard]] std::string about(const bar& item) const {
    std::string text;
    if (item.only != nullptr) {
      text = about(*item.only);
    } else {
      constexpr std::size_t most = 8;
      for (std::size_t i = 0; i < std::min(most, item.shares.size()); ++i) {
        const auto& share = item.shares[i];
        text.append(i == 0 ? "" : "\n").append(std::to_string(share.spans)).append(" of ");
        text += cut(layout_.styles()[share.style].name, 60) + ": " + duration_text(share.time);
        if (share.bytes > 0) text += ", " + bytes_text(share.bytes);
      }
      if (item.shares.size() > most) {
        text += "\nand " + std::to_string(item.shares.size() - most) + " names more";
      }
    }
    return text + "\n" + duration_text(item.width()) + " from " + duration_text(item.start);
  }

  static std::string about(const span& span) {
    std::string text;
    switch (span.kind) {
      case span_kind::compute:
        break;
      case span_kind::offload:
        text = "offload ";
        break;
      case span_kind::reload:
        text = "reload ";
        break;
      case span_kind::stall:
        text = "stall: ";
        break;
    }
    text += cut(span.name, 60);
    if (span.layer >= 0) text += ", layer " + std::to_string(span.layer);
    if (span.microbatch >= 0) text += ", microbatch " + std::to_string(span.microbatch);
    if (span.bytes > 0) {
      text += "\n" + bytes_text(span.bytes);
      // Bytes per nanosecond are GB/s.
      const double nanoseconds = (span.end - span.start) * 1000;
      if (nanoseconds > 0) {
        text += " at " + three_digits(static_cast<double>(span.bytes) / nanoseconds) + " GB/s";
      }
    }
    return text;
  }

  const picture_layout& layout_;
  double lane_height_;
  svg& back_;
  svg& front_;
};

}  // namespace tidepool::trace::detail
