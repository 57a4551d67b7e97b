/// Around the lanes of a step's picture: its passes above, and why it stalled below.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "tidepool/trace/detail/picture_layout.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/stall_text.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

inline constexpr std::string_view forward_fill = "#d6e6f7";
inline constexpr std::string_view backward_fill = "#f7e1c8";

// A row of forward and backward passes, from `y` down; returns where it ends.
inline double draw_passes(const picture_layout& layout, svg& front, double y) {
  constexpr double height = 16;
  if (layout.passes().empty()) return y;
  front.label(layout.left() - 12, y + 12, "passes", {12, ink, anchor::end, false});
  for (const auto* pass : layout.passes()) {
    const double x = layout.x_of(pass->start);
    const double width = std::max(layout.x_of(pass->end) - x - 0.6, 0.6);
    const std::string word = pass->backward ? "backward" : "forward";
    std::string about = word + ", microbatch " + std::to_string(pass->microbatch);
    if (pass->model_chunk > 0) about += ", model chunk " + std::to_string(pass->model_chunk);
    about += "\n" + duration_text(pass->end - pass->start) + " from " + duration_text(pass->start);
    front.rectangle({x, y, width, height}, pass->backward ? backward_fill : forward_fill,
                    width > 8 ? svg::attribute("rx", 1.5) : std::string(), about);
    const auto number = " " + std::to_string(pass->microbatch);
    for (const auto& text : {word + number, (pass->backward ? "B" : "F") + number.substr(1)}) {
      if (text_width(text, 10) > width - 4) continue;
      front.label(x + width / 2, y + 12, text, {10, ink, anchor::middle, false});
      break;
    }
  }
  return y + height + 8;
}

// The reasons of all stalls, the longest first, a line each; returns where they end.
inline double draw_stall_list(const trace::record& record, const picture_layout& layout, svg& front,
                              double y) {
  constexpr std::size_t most = 6;
  const auto sums = sum_stalls(record);
  if (sums.empty()) return y;
  y += 22;
  const auto heading = "Why it stalled: " + reasons_text(sums);
  front.label(20, y, fit(heading, layout.right() + 60 - 20, 12), {12, ink, anchor::start, true},
              heading);
  for (std::size_t i = 0; i < std::min(most, sums.size()); ++i) {
    const auto& each = sums[i];
    std::string text = duration_text(each.time) + " in " + std::to_string(each.count) +
                       (each.count == 1 ? " stall" : " stalls") + ": " + cut(each.reason, 40);
    if (const auto meaning = meaning_of(each.reason); !meaning.empty()) {
      text.append(" (").append(meaning).append(")");
    }
    if (!each.module.empty()) text += ", waits for " + cut(each.module, 40);
    if (each.longest->layer >= 0) {
      text += "; the longest, " + duration_text(each.longest->end - each.longest->start) +
              ", at layer " + std::to_string(each.longest->layer);
      if (each.longest->microbatch >= 0) {
        text += ", microbatch " + std::to_string(each.longest->microbatch);
      }
    }
    y += 17;
    front.label(20, y, fit(text, layout.right() + 60 - 20, 12), {12, red_ink}, text);
  }
  if (sums.size() > most) {
    y += 17;
    front.label(20, y, "and " + std::to_string(sums.size() - most) + " shorter ones",
                {12, faint_ink});
  }
  return y;
}

}  // namespace tidepool::trace::detail
