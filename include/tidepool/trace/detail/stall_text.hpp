/// Why a stream waited, in words: the same in pictures, timelines and reports.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/core/join_site.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// What a join's name means to whoever tunes a step; empty for a name of somebody else's.
[[nodiscard]] inline std::string_view meaning_of(std::string_view join) {
  if (join == name_of(join_site::device_reuse)) return "no free device memory yet";
  if (join == name_of(join_site::consumer)) return "what backward reads is not back yet";
  if (join == name_of(join_site::cap)) return "as many offloads in flight as the cap allows";
  if (join == name_of(join_site::borrow)) return "its allocator's stream has not come this far";
  if (join == name_of(join_site::give_back)) return "its memory goes back to its allocator";
  if (join == name_of(join_site::after_launch)) return "a graph runs";
  return {};
}

// `consumer core_attn L3 m1`.
[[nodiscard]] inline std::string short_text(const trace::span& stall) {
  std::string text = stall.name;
  if (!stall.module.empty()) text += " " + stall.module;
  if (stall.layer >= 0) text += " L" + std::to_string(stall.layer);
  if (stall.microbatch >= 0) text += " m" + std::to_string(stall.microbatch);
  return text;
}

// All stalls of one reason for copies of one module.
struct stall_sum {
  std::string reason;
  std::string module;
  std::size_t count = 0;
  double time = 0;  // microseconds
  const trace::span* longest = nullptr;
};

// `cap 2.67 ms, consumer 31.2 us`: one figure for each reason, the longest first.
[[nodiscard]] inline std::string reasons_text(const std::vector<stall_sum>& sums) {
  std::vector<std::pair<std::string_view, double>> reasons;
  for (const auto& each : sums) {
    auto at = std::find_if(reasons.begin(), reasons.end(),
                           [&](const auto& known) { return known.first == each.reason; });
    if (at == reasons.end()) at = reasons.insert(at, {each.reason, 0});
    at->second += each.time;
  }
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [reason, time] : reasons) {
    text += (text.empty() ? "" : ", ") + std::string(reason) + " " + duration_text(time);
  }
  return text;
}

// The longest first; those without length are none.
[[nodiscard]] inline std::vector<stall_sum> sum_stalls(const trace::record& of) {
  std::vector<stall_sum> sums;
  for (const auto& each : of.spans) {
    if (each.kind != trace::span_kind::stall || !trace::placed(of, each)) continue;
    if (!(each.end > each.start)) continue;
    auto at = std::find_if(sums.begin(), sums.end(), [&](const stall_sum& sum) {
      return sum.reason == each.name && sum.module == each.module;
    });
    if (at == sums.end()) at = sums.insert(at, {each.name, each.module});
    ++at->count;
    at->time += each.end - each.start;
    const auto* longest = at->longest;
    if (longest == nullptr || each.end - each.start > longest->end - longest->start) {
      at->longest = &each;
    }
  }
  std::stable_sort(sums.begin(), sums.end(),
                   [](const auto& a, const auto& b) { return a.time > b.time; });
  return sums;
}

}  // namespace tidepool::trace::detail
