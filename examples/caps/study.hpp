/// What each cap costs and saves: rows, the best of them, and a sentence about that.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <tidepool/trace/detail/print.hpp>
#include <vector>

#include "trainer.hpp"

namespace caps {

/// One cap.
struct row {
  cap_limit cap;
  double step_us = 0;
  double stall_us = 0;
  double cap_stall_us = 0;  ///< the part of it that waits for the cap
  std::size_t taken = 0;    ///< device memory that the offloader took
  std::size_t held = 0;     ///< most bytes of saved tensors there at once, by the device's clock
};

/// All caps of one schedule and one ratio, the one without a cap among them.
struct series {
  std::string order;      ///< `one microbatch at a time`, `1F1B, depth 2`
  std::string ratio;      ///< `compute 0.5 x copy`; empty where the step has its own
  double compute_us = 0;  ///< the same step with nothing offloaded
  std::size_t kept = 0;   ///< and the device memory that it takes
  std::vector<row> rows;

  [[nodiscard]] double over(const row& of) const { return of.step_us / compute_us; }
  [[nodiscard]] double stall_share(const row& of) const { return of.stall_us / of.step_us; }
  [[nodiscard]] const row& uncapped() const {
    return *std::find_if(rows.begin(), rows.end(), [](const row& each) { return !each.cap; });
  }
};

[[nodiscard]] inline std::string name_of(const cap_limit& cap) {
  return cap ? std::to_string(*cap) : "none";
}

/// Of the caps that take at most `tolerance` more time than none, the one with the least memory;
/// of those that take the same, the loosest. None: no cap takes less.
[[nodiscard]] inline const row* best_of(const series& all, double tolerance) {
  const row& free = all.uncapped();
  const row* best = nullptr;
  for (const auto& each : all.rows) {
    if (!each.cap || each.step_us > free.step_us * (1 + tolerance)) continue;
    if (each.taken >= free.taken) continue;
    const bool better = best == nullptr || each.taken < best->taken ||
                        (each.taken == best->taken && *each.cap > *best->cap);
    if (better) best = &each;
  }
  return best;
}

namespace detail {

inline std::string percent(double share) {
  return tidepool::trace::detail::trimmed(100 * share, std::abs(share) < 0.0995 ? 1 : 0) + " %";
}

}  // namespace detail

/// `cap 1 is as fast as no cap here and takes 128 MiB less`.
[[nodiscard]] inline std::string sentence(const series& all, double tolerance) {
  const auto bytes = [](std::size_t count) { return tidepool::trace::detail::bytes_text(count); };
  const row& free = all.uncapped();
  if (const auto* best = best_of(all, tolerance)) {
    const double more = best->step_us / free.step_us - 1;
    const auto name = "cap " + name_of(best->cap);
    const auto less = bytes(free.taken - best->taken) + " less";
    if (more < -tolerance) {
      return name + " is " + detail::percent(-more) + " faster than no cap here and takes " + less;
    }
    return name + " is as fast as no cap here and takes " + less;
  }
  const row* least = nullptr;
  for (const auto& each : all.rows) {
    if (!each.cap || each.taken >= free.taken) continue;
    if (least == nullptr || each.step_us < least->step_us) least = &each;
  }
  if (least == nullptr) return "no cap takes less memory than none here";
  return "memory costs time here: cap " + name_of(least->cap) +
         ", the fastest that takes less, takes " + bytes(free.taken - least->taken) + " less and " +
         detail::percent(least->step_us / free.step_us - 1) + " more time than no cap";
}

/// What holds for most of them, in one sentence.
[[nodiscard]] inline std::string conclusion(const std::vector<series>& all, double tolerance) {
  // Of one cap over all series: where it is free, what it saves there, and what it costs elsewhere.
  struct verdict {
    cap_limit cap;
    std::size_t free = 0;
    std::size_t least = static_cast<std::size_t>(-1);
    std::size_t most = 0;
    double slowest = 1;
  };
  std::optional<verdict> best;
  for (const auto& candidate : all.front().rows) {
    if (!candidate.cap) continue;
    verdict seen{candidate.cap};
    for (const auto& each : all) {
      const row& free = each.uncapped();
      const auto own = std::find_if(each.rows.begin(), each.rows.end(),
                                    [&](const row& other) { return other.cap == candidate.cap; });
      const double slower = own->step_us / free.step_us;
      if (slower > 1 + tolerance) {
        seen.slowest = std::max(seen.slowest, slower);
      } else if (own->taken < free.taken) {
        ++seen.free;
        seen.least = std::min(seen.least, free.taken - own->taken);
        seen.most = std::max(seen.most, free.taken - own->taken);
      }
    }
    const bool better = seen.free > 0 && (!best || seen.free > best->free ||
                                          (seen.free == best->free && seen.most > best->most));
    if (better) best = seen;
  }
  if (!best) return "No cap that is as fast as none takes less memory.";
  const auto bytes = [](std::size_t count) { return tidepool::trace::detail::bytes_text(count); };
  const auto saved = best->least == best->most ? bytes(best->most)
                                               : bytes(best->least) + " to " + bytes(best->most);
  const bool everywhere = best->free == all.size();
  std::string text = "Cap " + name_of(best->cap) + " is as fast as no cap in " +
                     (everywhere ? "all " : std::to_string(best->free) + " of ") +
                     std::to_string(all.size()) + " cases and takes " + saved + " less there";
  if (best->slowest > 1)
    text += "; elsewhere it takes up to " + detail::percent(best->slowest - 1) + " more time";
  return text + ".";
}

}  // namespace caps
