/// The notes of a step's picture: a row of passes above the lanes, and the reasons of stalls below.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "tidepool/core/text.hpp"
#include "tidepool/trace/detail/picture_layout.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/stall_text.hpp"
#include "tidepool/trace/detail/svg.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// A row of forward and backward passes, from `y` down; returns where it ends.
inline double draw_passes(const picture_layout& layout, sheet& on, double y) {
  constexpr double height = 16;
  if (layout.passes().empty()) return y;
  on.words.label(layout.left() - 12, y + 12, "passes", {12, ink, anchor::end});
  for (const auto* pass : layout.passes()) {
    const double x = layout.x_of(pass->start);
    const double width = std::max(layout.x_of(pass->end) - x - 0.6, 0.6);
    const std::string word = pass->backward ? "backward" : "forward";
    std::string about = word + ", microbatch " + std::to_string(pass->microbatch);
    if (pass->model_chunk > 0) about += ", model chunk " + std::to_string(pass->model_chunk);
    about += "\n" + duration_text(pass->end - pass->start) + " from " + duration_text(pass->start);
    on.shapes.rectangle({x, y, width, height}, layout.style_of(*pass).fill, {}, about);
    if (layout.detail() > 1) continue;  // the page's script writes into bars
    const auto number = " " + std::to_string(pass->microbatch);
    for (const auto& text : {word + number, (pass->backward ? "B" : "F") + number.substr(1)}) {
      if (text_width(text, 10) > width - 4) continue;
      on.words.label(x + width / 2, y + 12, text, {10, ink, anchor::middle});
      break;
    }
  }
  return y + height + 8;
}

// Draws the reasons of stalls, a line each, the longest first; returns the lower end.
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
    std::string text = duration_text(each.time) + " in " +
                       tidepool::detail::text::count_of(each.stalls.size(), "stall") + ": " +
                       cut(each.reason, 40);
    if (const auto meaning = meaning_of(each.reason); !meaning.empty()) {
      text.append(" (").append(meaning).append(")");
    }
    if (!each.module.empty()) text += ", waits for " + cut(each.module, 40);
    const auto& longest = *each.stalls.front();
    if (longest.layer >= 0) {
      text += "; the longest, " + duration_text(longest.end - longest.start) + ", at " +
              place_text(longest);
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
