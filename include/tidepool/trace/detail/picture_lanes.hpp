/// The lanes of a step's picture: bars, what is written in and about them, and how busy each was.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "tidepool/trace/detail/palette.hpp"
#include "tidepool/trace/detail/picture_layout.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/stall_text.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// Draws into two layers, since the grid of the time axis is between strips and bars.
class picture_lanes {
 public:
  picture_lanes(const picture_layout& layout, const trace::record& record, double lane_height,
                svg& back, svg& front)
      : layout_(layout), record_(record), lane_height_(lane_height), back_(back), front_(front) {}

  // From `y` down; returns where it ends.
  double draw(double y) {
    const auto& names = record_.lanes;
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
      draw_captions(lane, middle);
      for (const auto& bar : lane.stalls) draw_stall_caption(bar, middle);
      draw_occupancy(lane, middle, untraced(i));
      y += lane_height_ + 8;
    }
    return layout_.lanes().empty() ? y : y - 8;
  }

 private:
  static std::string percent(double share) {
    return fixed(share * 100, share > 0 && share < 0.0995 ? 1 : 0) + "%";
  }

  // Nobody told what computes there, which is not to say that nothing did.
  [[nodiscard]] bool untraced(std::size_t lane) const {
    return !record_.traced(lane) && layout_.lanes()[lane].work.empty();
  }

  void draw_occupancy(const lane_layout& lane, double middle, bool unknown) {
    const double whole = layout_.to() - layout_.from();
    const double x = layout_.right() + 10;
    const bool stalled = lane.stalled / whole >= 0.0005;
    if (unknown) {
      front_.label(x, middle + (stalled ? -1 : 4), "not traced", {11, faint_ink},
                   "nobody named what computes here: see trace_span");
    } else {
      front_.label(x, middle + (stalled ? -1 : 4), percent(lane.busy / whole),
                   {12, ink, anchor::start, true}, "busy for " + duration_text(lane.busy));
    }
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

  static constexpr double caption_size = 9;
  static constexpr double least_caption = 13;  // pixels

  [[nodiscard]] static bool is_copy(const bar& item) {
    return item.only != nullptr &&
           (item.only->kind == span_kind::offload || item.only->kind == span_kind::reload);
  }

  // The widest bar of each module has its name; others, and runs of narrow ones of a x
  void draw_captions(const lane_layout& lane, double middle) {
    if (lane_height_ < 18) return;
    std::map<std::size_t, const bar*> widest;
    for (const auto& item : lane.work) {
      if (!is_copy(item)) continue;
      auto& best = widest[item.shares.front().style];
      if (best == nullptr || item.width() > best->width()) best = &item;
    }
    for (auto at = lane.work.begin(); at != lane.work.end();) {
      const auto end = end_of_run(at, lane.work.end());
      if (end - at > 1) {
        draw_run_captions(at, end, middle);
        at = end;
        continue;
      }
      const bool named = is_copy(*at) && widest[at->shares.front().style] == &*at;
      draw_caption(*at, lane.stalls, middle, named);
      ++at;
    }
  }

  using bar_iterator = std::vector<bar>::const_iterator;

  // Neighbours of one microbatch none of which has room for words of its own.
  [[nodiscard]] bar_iterator end_of_run(bar_iterator at, bar_iterator last) const {
    const auto narrow = [&](const bar& item) {
      return is_copy(item) && item.only->layer >= 0 &&
             item.width() < 2 * least_caption * layout_.pixel();
    };
    auto end = at + 1;
    if (!narrow(*at)) return end;
    while (end != last && narrow(*end) && end->only->microbatch == at->only->microbatch &&
           end->start - (end - 1)->end < 3 * layout_.pixel()) {
      ++end;
    }
    return end;
  }

  [[nodiscard]] double room_of(bar_iterator at, bar_iterator end) const {
    return ((end - 1)->end - at->start) / layout_.pixel() - 8;
  }
  [[nodiscard]] static std::string layer_text(const bar& item) {
    return "L" + std::to_string(item.only->layer);
  }

  // Each layer, where all have room; else the first and the last.
  void draw_run_captions(bar_iterator at, bar_iterator end, double middle) {
    std::vector<bar_iterator> layers{at};
    for (auto next = at + 1; next != end; ++next) {
      if (next->only->layer != layers.back()->only->layer) layers.push_back(next);
    }
    layers.push_back(end);
    std::size_t fitting = 0;
    for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
      const auto room = room_of(layers[i], layers[i + 1]);
      fitting += text_width(layer_text(*layers[i]), caption_size) <= room ? 1 : 0;
    }
    // A lane in which some have names and others do not is worse than one with fewer.
    if (2 * fitting >= layers.size() - 1) {
      for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
        draw_over(layers[i], layers[i + 1], layer_text(*layers[i]), middle);
      }
      return;
    }
    auto text = layer_text(*at) + " to " + layer_text(*(end - 1));
    if (at->only->microbatch >= 0) text += " m" + std::to_string(at->only->microbatch);
    draw_over(at, end, text, middle);
  }

  void draw_over(bar_iterator at, bar_iterator end, const std::string& text, double middle) {
    if (text_width(text, caption_size) > room_of(at, end)) return;
    front_.halo_label(layout_.x_of((at->start + (end - 1)->end) / 2), middle + 3.2, text,
                      {caption_size, ink, anchor::middle, true});
  }

  // As much of reason, module and layer as there is room for.
  void draw_stall_caption(const bar& item, double middle) {
    if (item.only == nullptr || lane_height_ < 18) return;
    const double room = item.width() / layout_.pixel() - 4;
    const auto& span = *item.only;
    const auto layer = span.layer >= 0 ? " L" + std::to_string(span.layer) : std::string();
    for (const auto& text : {short_text(span), cut(span.name, 40) + layer, cut(span.name, 40)}) {
      if (text_width(text, caption_size) > room) continue;
      front_.halo_label(layout_.x_of(item.start) + 3, middle + 3.2, text,
                        {caption_size, red_ink, anchor::start, true});
      return;
    }
  }

  // As much about a span as there is room for beside the stalls in it; a copy that is `named` has
  // its module's name first.
  void draw_caption(const bar& item, const std::vector<bar>& stalls, double middle, bool named) {
    constexpr double size = caption_size;
    if (item.only == nullptr || item.width() < least_caption * layout_.pixel()) return;
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
    if (named) {
      if (text_width(span.name + " " + text, size) <= room) {
        text = span.name + (text.empty() ? "" : " " + text);
      } else if (const auto part = fit(span.name, room - 2, size, 5); !part.empty()) {
        text = part;
      }
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
    if (!span.module.empty()) text += ", waits for " + cut(span.module, 60);
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
  const trace::record& record_;
  double lane_height_;
  svg& back_;
  svg& front_;
};

}  // namespace tidepool::trace::detail
