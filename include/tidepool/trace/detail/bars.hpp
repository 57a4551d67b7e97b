/// Spans of one lane turned into few enough bars to draw.
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

// What one style has in a bar.
struct bar_share {
  std::size_t style = 0;
  std::size_t spans = 0;
  std::size_t bytes = 0;
  double time = 0;
};

// A piece of a lane: one span, or a run of many narrow ones with what each style has in it.
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
  // In order of style, so that neighbours are stacked alike.
  const auto place = std::find_if(shares.begin(), shares.end(),
                                  [&](const auto& share) { return share.style > more.style; });
  shares.insert(place, more);
}

// Two runs that would be drawn nearly alike.
[[nodiscard]] inline bool alike(const bar& a, const bar& b) {
  if (a.shares.size() != b.shares.size() || !(a.width() > 0) || !(b.width() > 0)) return false;
  return std::all_of(a.shares.begin(), a.shares.end(), [&](const bar_share& share) {
    return std::any_of(b.shares.begin(), b.shares.end(), [&](const bar_share& other) {
      return other.style == share.style &&
             std::abs(share.time / a.width() - other.time / b.width()) < 0.08;
    });
  });
}

// Bars in order of start, from spans in order of start (the longer first of two that start
// together). Spans shorter than `narrow` go into runs: a run takes what follows within `narrow`
// until it is four times as long, and joins the one before where the two look alike.
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

// The longest piece (start, end) of a bar that none of `others` touches; those in order of start.
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

// The same curve with at most four levels in each interval of length `narrow`: the first, the
// lowest, the highest and the last, in order of time.
[[nodiscard]] inline std::vector<trace::level> thin_levels(const std::vector<trace::level>& levels,
                                                           double narrow) {
  std::vector<trace::level> kept;
  for (std::size_t i = 0; i < levels.size();) {
    std::size_t end = i;
    std::size_t low = i;
    std::size_t high = i;
    while (end < levels.size() && levels[end].time - levels[i].time < narrow) {
      if (levels[end].bytes < levels[low].bytes) low = end;
      if (levels[end].bytes > levels[high].bytes) high = end;
      ++end;
    }
    end = std::max(end, i + 1);
    std::size_t picked[]{i, std::min(low, high), std::max(low, high), end - 1};
    for (std::size_t p = 0; p < 4; ++p) {
      if (p == 0 || picked[p] != picked[p - 1]) kept.push_back(levels[picked[p]]);
    }
    i = end;
  }
  return kept;
}

}  // namespace tidepool::trace::detail
