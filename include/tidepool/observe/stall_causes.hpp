// Completes a finished trace: finds the copy that each stall waited for, and the unnamed computing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "tidepool/core/join_site.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::detail {

// The copy that ended with a stall. Its end may differ by `apart_us`, because a GPU's events of two
// streams are some microseconds apart. Kernels unpack behind a reload.
[[nodiscard]] inline const trace::span* copy_behind(const trace::span& stall,
                                                    const std::vector<const trace::span*>& copies) {
  constexpr double apart_us = 20, unpacking_us = 200;
  const bool for_reload = stall.name == name_of(join_site::consumer);
  const bool for_cap = stall.name == name_of(join_site::cap);
  // `copies` are in order of their ends.
  auto at = std::partition_point(copies.begin(), copies.end(), [&](const trace::span* copy) {
    return copy->end < stall.end - unpacking_us;
  });
  const trace::span* best = nullptr;
  const auto miss = [&](const trace::span* copy) { return std::abs(copy->end - stall.end); };
  for (; at != copies.end() && (*at)->end <= stall.end + apart_us; ++at) {
    const bool reload = (*at)->kind == trace::span_kind::reload;
    const bool unpacks = reload && (*at)->spared > 0;
    const bool early = (*at)->end <= stall.start || (*at)->end < stall.end - apart_us;
    if ((early && !unpacks) || (for_reload && !reload) || (for_cap && reload)) continue;
    if (best == nullptr || miss(*at) < miss(best)) best = *at;
  }
  return best;
}

inline void find_causes(trace::record& of) {
  std::vector<const trace::span*> copies;
  for (const auto& each : of.spans) {
    const bool copy =
        each.kind == trace::span_kind::offload || each.kind == trace::span_kind::reload;
    if (copy && each.end > each.start) copies.push_back(&each);
  }
  std::stable_sort(copies.begin(), copies.end(),
                   [](const auto* a, const auto* b) { return a->end < b->end; });
  for (auto& each : of.spans) {
    if (each.kind != trace::span_kind::stall || !(each.end > each.start)) continue;
    const auto* cause = copy_behind(each, copies);
    if (cause == nullptr) continue;
    each.module = cause->name;
    each.layer = cause->layer;
    each.microbatch = cause->microbatch;
    each.bytes = cause->bytes;
  }
}

// Adds work on a lane outside of its named spans, as spans named `compute`. Kernels without a gap
// between them become one span in each pass.
inline void add_unnamed_compute(trace::record& into, std::size_t lane,
                                std::vector<std::pair<double, double>> runs) {
  constexpr double gap_us = 1e-6;
  std::vector<std::pair<double, double>> named;
  for (const auto& each : into.spans) {
    if (each.lane == lane && each.kind == trace::span_kind::compute) {
      named.emplace_back(each.start, each.end);
    }
  }
  std::sort(named.begin(), named.end());
  std::vector<double> cuts;
  for (const auto& each : into.passes) {
    cuts.push_back(each.start);
    cuts.push_back(each.end);
  }
  std::sort(cuts.begin(), cuts.end());
  std::sort(runs.begin(), runs.end());
  const auto add = [&](double from, double to) {
    while (to > from + gap_us) {
      const auto cut = std::upper_bound(cuts.begin(), cuts.end(), from + gap_us);
      const auto end = cut == cuts.end() ? to : std::min(to, *cut);
      into.spans.push_back({trace::span_kind::compute, lane, "compute", -1, -1, 0, from, end, {}});
      from = end;
    }
  };
  double from = 0;
  double to = 0;
  const auto flush = [&] {
    for (const auto& [begin, end] : named) {
      if (end <= from) continue;
      if (begin >= to) break;
      add(from, begin);
      from = std::max(from, end);
    }
    add(from, to);
  };
  for (const auto& [begin, end] : runs) {
    if (begin <= to + gap_us) {
      to = std::max(to, end);
      continue;
    }
    flush();
    from = begin;
    to = end;
  }
  flush();
}

}  // namespace tidepool::detail
