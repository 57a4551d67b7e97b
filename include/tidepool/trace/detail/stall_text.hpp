/// The reasons of stalls in words, the same in pictures, timelines and reports.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tidepool/core/join_site.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// The meaning of a join's name for a person who tunes a step; empty for a name that is not
// Tidepool's.
[[nodiscard]] inline std::string_view meaning_of(std::string_view join) {
  if (join == name_of(join_site::device_reuse)) return "no free device memory yet";
  if (join == name_of(join_site::consumer)) return "what backward reads is not back yet";
  if (join == name_of(join_site::cap)) return "as many offloads in flight as the cap allows";
  if (join == name_of(join_site::borrow)) return "its allocator's stream has not come this far";
  if (join == name_of(join_site::give_back)) return "its memory goes back to its allocator";
  if (join == name_of(join_site::after_launch)) return "a graph runs";
  return {};
}

// Computing has a name of its own.
[[nodiscard]] constexpr std::string_view words_of(trace::span_kind kind) {
  constexpr std::string_view words[]{"", "offload", "reload", "stall"};
  return words[static_cast<std::size_t>(kind)];
}

// `layer 3, microbatch 1`.
[[nodiscard]] inline std::string place_text(const trace::span& of) {
  std::string text = of.layer >= 0 ? "layer " + std::to_string(of.layer) : "";
  if (of.microbatch < 0) return text;
  return text + (text.empty() ? "" : ", ") + "microbatch " + std::to_string(of.microbatch);
}

// The copies of a record, by module, layer and microbatch.
class copy_index {
 public:
  explicit copy_index(const trace::record& of) {
    for (const auto& each : of.spans) {
      if (each.kind != trace::span_kind::offload && each.kind != trace::span_kind::reload) continue;
      if (!trace::placed(of, each) || !(each.end > each.start)) continue;
      copies_[{each.name, each.layer, each.microbatch}].push_back(&each);
    }
  }

  // The copy that a stall waited for, whose end is nearest; null without one.
  [[nodiscard]] const trace::span* behind(const trace::span& stall) const {
    return nearest(stall.module, stall, stall.end,
                   [&](const trace::span& copy) { return copy.bytes == stall.bytes; });
  }

  // The latest offload before a reload; null without one.
  [[nodiscard]] const trace::span* offload_of(const trace::span& reload) const {
    return nearest(reload.name, reload, reload.start, [&](const trace::span& copy) {
      return copy.kind == trace::span_kind::offload && copy.end <= reload.start;
    });
  }

 private:
  // The copy of the group of `of` whose end is nearest to a time.
  template <class Counts>
  [[nodiscard]] const trace::span* nearest(std::string_view module, const trace::span& of,
                                           double time, const Counts& counts) const {
    const trace::span* best = nullptr;
    const auto at = copies_.find({module, of.layer, of.microbatch});
    if (at == copies_.end()) return best;
    for (const auto* each : at->second) {
      const bool nearer =
          best == nullptr || std::abs(each->end - time) < std::abs(best->end - time);
      if (nearer && counts(*each)) best = each;
    }
    return best;
  }

  std::map<std::tuple<std::string_view, int, int>, std::vector<const trace::span*>> copies_;
};

// All stalls of one reason for copies of one module.
struct stall_sum {
  std::string reason;
  std::string module;
  double time = 0;                         // microseconds
  std::vector<const trace::span*> stalls;  // the longest first
};

// A text such as `cap 2.67 ms, consumer 31.2 us`, with one figure for each reason, the longest
// first.
[[nodiscard]] inline std::string reasons_text(const std::vector<stall_sum>& sums) {
  std::vector<std::pair<std::string_view, double>> reasons;
  for (const auto& each : sums) {
    const auto at =
        std::ranges::find(reasons, each.reason, [](const auto& of) { return of.first; });
    if (at == reasons.end()) {
      reasons.emplace_back(each.reason, each.time);
    } else {
      at->second += each.time;
    }
  }
  std::ranges::stable_sort(reasons, std::greater<>(), [](const auto& of) { return of.second; });
  std::string text;
  for (const auto& [reason, time] : reasons) {
    text += (text.empty() ? "" : ", ") + std::string(reason) + " " + duration_text(time);
  }
  return text;
}

// The sums of all stalls, the longest first. Stalls of no duration are left out.
[[nodiscard]] inline std::vector<stall_sum> sum_stalls(const trace::record& of) {
  std::vector<stall_sum> sums;
  for (const auto& each : of.spans) {
    if (each.kind != trace::span_kind::stall || !trace::placed(of, each)) continue;
    if (!(each.end > each.start)) continue;
    auto at = std::find_if(sums.begin(), sums.end(), [&](const stall_sum& sum) {
      return sum.reason == each.name && sum.module == each.module;
    });
    if (at == sums.end()) at = sums.insert(at, {each.name, each.module, 0, {}});
    at->time += each.end - each.start;
    at->stalls.push_back(&each);
  }
  for (auto& sum : sums) {
    std::stable_sort(sum.stalls.begin(), sum.stalls.end(), [](const auto* a, const auto* b) {
      return a->end - a->start > b->end - b->start;
    });
  }
  std::stable_sort(sums.begin(), sums.end(),
                   [](const auto& a, const auto& b) { return a.time > b.time; });
  return sums;
}

}  // namespace tidepool::trace::detail
