/// Merges the spans of a lane into few enough bars to draw.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// A span and the index of the colour it is drawn in.
struct styled_span {
  const trace::span* span = nullptr;
  std::size_t style = 0;
};

// The spans of one style in a bar: number, bytes, and time in microseconds.
struct bar_share {
  std::size_t style = 0;
  std::size_t spans = 0;
  std::size_t bytes = 0;
  double time = 0;
};

// A piece of a lane: one span, or a run of many narrow spans with a share for each style.
struct bar {
  double start = 0;
  double end = 0;
  const trace::span* only = nullptr;  // null for a run
  std::vector<bar_share> shares;

  [[nodiscard]] double width() const { return end - start; }
};

inline void add_share(std::vector<bar_share>& shares, const bar_share& more) {
  for (auto& share : shares) {
    if (share.style != more.style) continue;
    share.spans += more.spans;
    share.bytes += more.bytes;
    share.time += more.time;
    return;
  }
  // Shares are sorted by style, so that neighbouring bars are stacked in the same order.
  const auto place = std::find_if(shares.begin(), shares.end(),
                                  [&](const auto& share) { return share.style > more.style; });
  shares.insert(place, more);
}

// True if two runs would look nearly the same.
[[nodiscard]] inline bool alike(const bar& a, const bar& b) {
  if (a.shares.size() != b.shares.size() || !(a.width() > 0) || !(b.width() > 0)) return false;
  return std::all_of(a.shares.begin(), a.shares.end(), [&](const bar_share& share) {
    return std::any_of(b.shares.begin(), b.shares.end(), [&](const bar_share& other) {
      return other.style == share.style &&
             std::abs(share.time / a.width() - other.time / b.width()) < 0.08;
    });
  });
}

// Makes bars, in order of start, from spans that are sorted by start (of two that start together
// the longer first). Spans shorter than `narrow` go into runs. A run takes further spans within a
// distance of `narrow` until it is four times as long. The run joins the one before it if both look
// alike.
[[nodiscard]] inline std::vector<bar> merge_spans(const std::vector<styled_span>& spans,
                                                  double narrow) {
  std::vector<bar> bars;
  bar run;
  const auto flush = [&] {
    if (run.shares.empty()) return;
    if (!bars.empty() && bars.back().only == nullptr && run.start - bars.back().end < narrow &&
        alike(bars.back(), run)) {
      auto& last = bars.back();
      last.end = std::max(last.end, run.end);
      for (const auto& share : run.shares) add_share(last.shares, share);
    } else {
      bars.push_back(std::move(run));
    }
    run = {};
  };
  for (const auto& [span, style] : spans) {
    const double time = span->end - span->start;
    const bar_share share{style, 1, span->bytes, time};
    if (time >= narrow) {
      flush();
      bars.push_back({span->start, span->end, span, {share}});
      continue;
    }
    if (!run.shares.empty() && (span->start - run.end >= narrow || run.width() >= 4 * narrow)) {
      flush();
    }
    if (run.shares.empty()) {
      run.start = span->start;
      run.end = span->end;
      run.only = span;
    } else {
      run.only = nullptr;
    }
    run.end = std::max(run.end, span->end);
    add_share(run.shares, share);
  }
  flush();
  return bars;
}

// The longest piece (start, end) of a bar that no bar of `others` covers; `others` are sorted by
// start.
[[nodiscard]] inline std::pair<double, double> free_part(const bar& of,
                                                         const std::vector<bar>& others) {
  std::pair<double, double> best{of.start, of.start};
  double from = of.start;
  const auto take = [&](double to) {
    if (to - from > best.second - best.first) best = {from, to};
  };
  for (const auto& other : others) {
    if (other.start >= of.end) break;
    if (other.end <= from) continue;
    take(other.start);
    from = other.end;
  }
  take(of.end);
  return best;
}

// Time covered by at least one of the intervals (start, end).
[[nodiscard]] inline double covered(std::vector<std::pair<double, double>> intervals) {
  std::sort(intervals.begin(), intervals.end());
  double total = 0;
  double end = -std::numeric_limits<double>::infinity();
  for (const auto& [from, to] : intervals) {
    total += std::max(0.0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return total;
}

// A curve that looks alike with at most three levels in each interval of length `narrow`: the
// lowest, the highest and the last, in order of time.
[[nodiscard]] inline std::vector<trace::level> thin_levels(const std::vector<trace::level>& levels,
                                                           double narrow) {
  std::vector<trace::level> kept;
  for (auto at = levels.begin(); at != levels.end();) {
    const auto end = std::find_if(at + 1, levels.end(), [&](const trace::level& each) {
      return each.time - at->time >= narrow;
    });
    const auto [low, high] = std::minmax_element(
        at, end, [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    for (; at != end; ++at) {
      if (at == low || at == high || at + 1 == end) kept.push_back(*at);
    }
  }
  return kept;
}

}  // namespace tidepool::trace::detail
