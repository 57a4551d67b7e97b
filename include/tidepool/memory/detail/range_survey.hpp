/// What runs of free neighbours there are, for a request that must not cut up the last large one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tidepool/memory/detail/range_list.hpp"

namespace tidepool::inline v0_2_0::detail {

class range_survey : protected range_list {
 protected:
  [[nodiscard]] bool is_free(std::uint32_t i) const { return i != none && !nodes_[i].used; }

  // A run of free neighbours, and its smallest range that a request needs no wait for.
  struct run_seen {
    std::uint32_t first = none;
    std::size_t bytes = 0;
    std::uint32_t joined = none;
  };
  struct runs_seen {
    run_seen longest;
    std::size_t second = 0;  // bytes of the longest but that
    run_seen beside;         // of all others: the one filled best, and the smallest such range
  };

  template <class Joined>
  [[nodiscard]] runs_seen survey(std::size_t need, const Joined& joined) const {
    runs_seen result;
    const auto smaller = [&](std::uint32_t a, std::uint32_t b) {
      return a != none && (b == none || nodes_[a].bytes < nodes_[b].bytes);
    };
    const auto add_beside = [&](const run_seen& run) {
      auto& beside = result.beside;
      result.second = std::max(result.second, run.bytes);
      if (run.bytes >= need && (beside.first == none || run.bytes < beside.bytes)) {
        beside.first = run.first;
        beside.bytes = run.bytes;
      }
      if (smaller(run.joined, beside.joined)) beside.joined = run.joined;
    };
    for (const auto first : first_of_region_) {
      for (auto i = first; i != none; i = nodes_[i].right) {
        if (nodes_[i].used) continue;
        run_seen run{i, 0, none};
        for (auto end = i; is_free(end); end = nodes_[end].right) {
          run.bytes += nodes_[end].bytes;
          const bool fits = nodes_[end].bytes >= need && smaller(end, run.joined);
          if (fits && joined(nodes_[end].ready)) run.joined = end;
          i = end;
        }
        if (run.bytes > result.longest.bytes) std::swap(run, result.longest);
        if (run.first != none) add_beside(run);
      }
    }
    return result;
  }
};

}  // namespace tidepool::detail
