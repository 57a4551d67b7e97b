/// The lanes of a step's picture: bars with their texts and hover texts, and how busy each lane
/// was.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/trace/detail/palette.hpp"
#include "tidepool/trace/detail/picture_layout.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/stall_text.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

class picture_lanes {
 public:
  picture_lanes(const picture_layout& layout, const trace::record& record, double lane_height,
                sheet& on)
      : layout_(layout), record_(record), lane_height_(lane_height), on_(on) {}

  // Draws lanes from `y` down; returns the lower end.
  double draw(double y) {
    const auto& names = record_.lanes;
    if (!names.empty()) on_.words.label(layout_.right() + 10, y - 6, "busy", {11, faint_ink});
    for (std::size_t i = 0; i < layout_.lanes().size(); ++i) {
      const auto& lane = layout_.lanes()[i];
      const double middle = y + lane_height_ / 2;
      const auto shown = fit(names[i], layout_.left() - 32, 12);
      on_.words.label(layout_.left() - 12, middle + 4, shown, {12, ink, anchor::end, false},
                      shown == names[i] ? "" : cut(names[i], 200));
      on_.strips.rectangle({layout_.left(), y, layout_.right() - layout_.left(), lane_height_},
                           "#f3f4f6");
      for (const auto& bar : lane.work) draw_bar(bar, y);
      for (const auto& bar : lane.stalls) draw_bar(bar, y);
      // The page's script writes into bars.
      if (layout_.detail() == 1 && lane_height_ >= 18) draw_captions(lane, middle);
      draw_occupancy(lane, middle, untraced(i));
      y += lane_height_ + 8;
    }
    return layout_.lanes().empty() ? y : y - 8;
  }

 private:
  static std::string percent(double share) {
    return fixed(share * 100, share > 0 && share < 0.0995 ? 1 : 0) + "%";
  }

  // True if the work of a lane is unknown, because nobody named it. The lane may still have been
  // busy.
  [[nodiscard]] bool untraced(std::size_t lane) const {
    return !record_.traced(lane) && layout_.lanes()[lane].work.empty();
  }

  void draw_occupancy(const lane_layout& lane, double middle, bool unknown) {
    const double whole = layout_.to() - layout_.from();
    const double x = layout_.right() + 10;
    const bool stalled = lane.stalled / whole >= 0.0005;
    if (unknown) {
      on_.words.label(x, middle + (stalled ? -1 : 4), "not traced", {11, faint_ink},
                      "nobody named what computes here: see trace_span");
    } else {
      on_.words.label(x, middle + (stalled ? -1 : 4), percent(lane.busy / whole),
                      {12, ink, anchor::start, true}, "busy for " + duration_text(lane.busy));
    }
    if (!stalled) return;
    on_.words.label(x, middle + 11, percent(lane.stalled / whole) + " stall",
                    {10, red_ink, anchor::start, false},
                    "stalled for " + duration_text(lane.stalled));
  }

  // Draws a bar. In a run of many spans, the height of each style is its share of the run's time.
  void draw_bar(const bar& item, double y) {
    const bool stall = item.shares.front().style == picture_layout::stall_style;
    const double x = layout_.x_of(item.start);
    const double exact = layout_.x_of(item.end) - x;
    // A copy must be visible, however short. A stall that is as short cost nothing.
    const double width = stall ? exact : std::max(exact, 0.6 / layout_.detail());
    // A gap keeps neighbours apart.
    const double drawn = width > 3 ? width - 0.6 / layout_.detail() : width;
    const bool several = item.shares.size() > 1;
    if (several) on_.shapes.open_group(about(item));
    double bottom = y + lane_height_;
    for (const auto& share : item.shares) {
      double part = 1.0 / static_cast<double>(item.shares.size());
      if (item.only == nullptr && item.width() > 0) {
        part = std::min(1.0, share.time / item.width());
      }
      const double height = lane_height_ * part;
      // Stalls hang from the top, so that they are beside the work that they interrupt and not over
      // it.
      const box at{x, stall ? y : bottom - height, drawn, height};
      const auto& style = layout_.styles()[share.style];
      // The hatching needs room.
      const bool plain = stall && width < 4 / layout_.detail();
      on_.shapes.rectangle(at, plain ? hex(stall_colour) : style.fill, {},
                           several ? std::string() : about(item));
      bottom -= height;
    }
    if (several) on_.shapes.close_group();
  }

  static constexpr double caption_size = 9;

  // As much about each span as there is room for. Neighbours that have none share the name of their
  // layer, or those of the first layer and the last of their microbatch.
  void draw_captions(const lane_layout& lane, double middle) {
    for (auto at = lane.work.begin(); at != lane.work.end();) {
      auto end = at + 1;
      if (!draw_caption(*at, lane.stalls, middle) && is_copy(*at)) {
        const auto first = "L" + std::to_string(at->only->layer);
        const auto share = [&](bool one_layer) {
          for (; end != lane.work.end() && is_copy(*end); ++end) {
            const bool near = end->start - (end - 1)->end < 3 * layout_.pixel();
            const bool alike = end->only->microbatch == at->only->microbatch &&
                               (!one_layer || end->only->layer == at->only->layer);
            if (!near || !alike || end->width() >= 26 * layout_.pixel()) break;
          }
          const auto last = "L" + std::to_string((end - 1)->only->layer);
          const auto text = one_layer ? first : first + " to " + last + microbatch_text(*at->only);
          const double gap = 2.5 * layout_.pixel();
          return end - at > 1 &&
                 write({at->start + gap, (end - 1)->end - gap}, {text}, middle, ink);
        };
        if (!share(true)) share(false);
      }
      at = end;
    }
    for (const auto& item : lane.stalls) draw_caption(item, {}, middle);
  }

  [[nodiscard]] static bool is_copy(const bar& item) {
    return item.only != nullptr && item.only->kind != span_kind::compute && item.only->layer >= 0;
  }
  [[nodiscard]] static std::string microbatch_text(const span& of) {
    return of.microbatch >= 0 ? " m" + std::to_string(of.microbatch) : "";
  }

  // In the longest part that no stall covers; false where nothing fits.
  bool draw_caption(const bar& item, const std::vector<bar>& stalls, double middle) {
    if (item.only == nullptr || item.width() < 13 * layout_.pixel()) return false;
    const auto& of = *item.only;
    const auto layer = of.layer >= 0 ? " L" + std::to_string(of.layer) : "";
    const auto whole = of.name + (of.module.empty() ? "" : " " + of.module) + layer;
    return write(free_part(item, stalls),
                 {whole + microbatch_text(of), whole, of.name + layer, layer + microbatch_text(of),
                  layer, of.name},
                 middle, of.kind == span_kind::stall ? red_ink : ink);
  }

  // The first of `texts` that fits.
  bool write(const std::pair<double, double>& within, const std::vector<std::string>& texts,
             double middle, std::string_view fill) {
    const auto [from, to] = within;
    for (const auto& each : texts) {
      const auto text = std::string_view(each).substr(each.starts_with(' ') ? 1 : 0);
      if (text.empty() || text_width(text, caption_size) > (to - from) / layout_.pixel() - 3) {
        continue;
      }
      on_.words.label(layout_.x_of((from + to) / 2), middle + 3.2, text,
                      {caption_size, fill, anchor::middle, true, true});
      return true;
    }
    return false;
  }

  [[nodiscard]] std::string about(const bar& item) const {
    std::string text;
    if (item.only != nullptr) {
      text = about(*item.only);
    } else {
      for (const auto& share : item.shares) {
        text.append(text.empty() ? "" : "\n").append(std::to_string(share.spans)).append(" of ");
        text += cut(layout_.styles()[share.style].name, 60) + ": " + duration_text(share.time);
        if (share.bytes > 0) text += ", " + bytes_text(share.bytes);
        if (text.size() > 600) break;
      }
    }
    return text + "\n" + duration_text(item.width()) + " from " + duration_text(item.start);
  }

  static std::string about(const span& span) {
    std::string text(words_of(span.kind));
    if (!text.empty()) text += span.kind == span_kind::stall ? ": " : " ";
    text += cut(span.name, 60);
    if (!span.module.empty()) text += ", waits for " + cut(span.module, 60);
    if (const auto place = place_text(span); !place.empty()) text += ", " + place;
    if (span.bytes > 0) {
      const traffic moved{span.bytes, span.spared};
      text += "\n" + moved.text();
      // Bytes per nanosecond are GB/s.
      const double nanoseconds = (span.end - span.start) * 1000;
      if (nanoseconds > 0) {
        const auto on_link = static_cast<double>(moved.on_link());
        text += " at " + three_digits(on_link / nanoseconds) + " GB/s";
      }
    }
    return text;
  }

  const picture_layout& layout_;
  const trace::record& record_;
  double lane_height_;
  sheet& on_;
};

}  // namespace tidepool::trace::detail
