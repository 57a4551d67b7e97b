/// The first line of a report: which change of the options takes away most of the waiting.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tidepool/core/join_site.hpp"
#include "tidepool/trace/detail/print.hpp"
#include "tidepool/trace/detail/stall_text.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

// Bytes that the link copies to the host while forward waits for memory: with so many more, forward
// does not wait. In backward passes the link catches up.
[[nodiscard]] inline std::size_t memory_missing(const trace::record& of) {
  double bytes = 0;
  double copying = 0;
  std::vector<const trace::span*> stalls;
  for (const auto& each : of.spans) {
    if (each.kind == trace::span_kind::offload && trace::placed(of, each)) {
      bytes += static_cast<double>(each.bytes);
      copying += each.end - each.start;
    }
    if (each.name == name_of(join_site::device_reuse) && trace::placed(of, each)) {
      stalls.push_back(&each);
    }
  }
  double waited = 0;
  double most = 0;
  for (const auto& pass : of.passes) {
    if (pass.backward) waited = 0;
    for (const auto* each : stalls) {
      const bool inside = each->start >= pass.start && each->end <= pass.end;
      if (inside) waited += each->end - each->start;
    }
    most = std::max(most, waited);
  }
  return copying > 0 ? static_cast<std::size_t>(std::ceil(most * bytes / copying)) : 0;
}

// The remedy for reloads that are late: begin them earlier where the link stood still before them,
// else reload less.
[[nodiscard]] inline std::string reload_remedy(const trace::record& of, const stall_sum& late) {
  const copy_index copies(of);
  double idle = 0;
  double copying = 0;
  double seen = 0;
  // The longest tell enough.
  for (const auto* stall :
       std::span(late.stalls).first(std::min<std::size_t>(late.stalls.size(), 99))) {
    const auto* copy = copies.behind(*stall);
    if (copy == nullptr) continue;
    double before = 0;  // the end of the copy before it
    for (const auto& each : of.spans) {
      if (each.lane == copy->lane && each.end <= copy->start) before = std::max(before, each.end);
    }
    idle += std::clamp(copy->start - before, 0.0, stall->end - stall->start);
    copying = std::max(copying, copy->end - copy->start);
    seen += stall->end - stall->start;
  }
  if (2 * idle >= seen)
    return "the link stands still before its reloads: raise --reload-ahead, or --device-budget "
           "where no memory is free";
  const auto stalls = static_cast<double>(late.stalls.size());
  const auto backward = std::ranges::count(of.passes, true, &trace::pass_span::backward);
  const auto times = std::max(1.0, static_cast<double>(backward));
  const auto last = std::ceil(std::clamp(late.time / copying, 1.0, stalls) / times);
  return "the link is full: keep its last " +
         (last > 1 ? fixed(last, 0) + " layers" : std::string("layer")) +
         " (--margin), or offload less (--offload-fraction)";
}

// In one sentence, from the record alone.
[[nodiscard]] inline std::string advice(const trace::record& of) {
  const auto sums = sum_stalls(of);
  if (sums.empty()) return "Nothing waits: compute never stood still for Tidepool.";
  const auto& worst = sums.front();
  auto text = (worst.module.empty() ? "Compute" : worst.module) + " waits " +
              duration_text(worst.time) + " ";
  if (worst.reason == name_of(join_site::device_reuse)) {
    constexpr std::size_t step = std::size_t{1} << 20;
    const auto more = (memory_missing(of) + step - 1) / step * step;
    if (of.budget == 0 || more == 0) return text + "for memory: raise --device-budget.";
    return text + "for memory: raise --device-budget by " + bytes_text(more) + ", to " +
           bytes_text(of.budget + more) + ".";
  }
  if (worst.reason == name_of(join_site::consumer)) {
    return text + "for reloads, and " + reload_remedy(of, worst) + ".";
  }
  if (worst.reason == name_of(join_site::cap)) {
    return text + "for the cap on offloads in flight: raise --max-inflight.";
  }
  const auto meaning = meaning_of(worst.reason);
  return text + "at " + worst.reason + (meaning.empty() ? "." : ": " + std::string(meaning) + ".");
}

}  // namespace tidepool::trace::detail
