/// The figures of `caps` as text to read and to paste.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <tidepool/trace/detail/print.hpp>
#include <vector>

#include "study.hpp"

namespace caps {

namespace detail {

inline std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

// One more column where there is room.
inline std::string cell_of(const series& all, const row& of, const row* best, bool held) {
  namespace print = tidepool::trace::detail;
  return padded(print::fixed(all.over(of), 2) + "x", 7) + padded(print::bytes_text(of.taken), 11) +
         (held ? padded(print::bytes_text(of.held), 11) : "") +
         padded(print::fixed(100 * all.stall_share(of), 1) + "%", 7) + (&of == best ? " *" : "  ");
}

inline std::string head_of(bool held) {
  return padded("time", 7) + padded("taken", 11) + (held ? padded("held", 11) : "") +
         padded("stall", 7) + "  ";
}

inline std::string kept_of(const series& all, bool held) {
  namespace print = tidepool::trace::detail;
  return padded("1.00x", 7) + padded(print::bytes_text(all.kept), 11) +
         (held ? padded(print::bytes_text(all.kept), 11) : "") + padded("", 9);
}

}  // namespace detail

/// A table for each schedule, caps as rows and ratios side by side, at most three.
[[nodiscard]] inline std::string table_of(const std::vector<series>& all, double tolerance) {
  constexpr std::size_t across = 3;
  std::string text;
  const auto line = [&](std::string one) {
    while (one.ends_with(' ')) one.pop_back();
    text += one + "\n";
  };
  const bool held = all.size() == 1;
  for (std::size_t first = 0; first < all.size();) {
    std::size_t end = first;
    while (end < all.size() && end - first < across && all[end].order == all[first].order) ++end;
    const auto each = [&](std::string one, const auto& cell) {
      for (std::size_t i = first; i < end; ++i) one += cell(all[i]);
      line(one);
    };
    text += "\n" + all[first].order + "\n";
    each("     ", [](const series& one) { return detail::padded(one.ratio, 25) + "  "; });
    each("  cap", [&](const series&) { return detail::head_of(held); });
    each(" kept", [&](const series& one) { return detail::kept_of(one, held); });
    for (std::size_t r = 0; r < all[first].rows.size(); ++r) {
      each(detail::padded(name_of(all[first].rows[r].cap), 5), [&](const series& one) {
        return detail::cell_of(one, one.rows[r], best_of(one, tolerance), held);
      });
    }
    first = end;
  }
  text +=
      "\ntime: of a step, over the same step with nothing offloaded (kept). taken: device memory "
      "for saved\ntensors. ";
  if (held) text += "held: the most of it that is in use at once. ";
  return text +
         "stall: share of the step that compute waits.\n*: as fast as no cap, in the least "
         "memory.\n";
}

/// A sentence for each series, and one for all.
[[nodiscard]] inline std::string sentences(const std::vector<series>& all, double tolerance) {
  std::string text;
  if (all.size() > 1) {
    for (const auto& each : all) {
      text += each.order + ", " + each.ratio + ": " + sentence(each, tolerance) + ".\n";
    }
    return text + conclusion(all, tolerance) + "\n";
  }
  auto only = sentence(all.front(), tolerance);
  only.front() = static_cast<char>(only.front() - 'a' + 'A');
  return only + ".\n";
}

}  // namespace caps
