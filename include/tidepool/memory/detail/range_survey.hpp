/// What runs of free neighbours there are: the oldest, and for a request that must not cut up the
/// last large one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tidepool/memory/detail/range_list.hpp"

namespace tidepool::inline v0_3_0::detail {

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

  // The run of free neighbours with the oldest fence, merged into its first range; one that begins
  // among the first `limit` ranges.
  template <class Joined>
  std::uint32_t pick_run(std::size_t need, const Joined& joined, bool may_wait, std::size_t limit) {
    if (free_bytes_ < need) return none;
    free_run best;
    for (const auto first : first_of_region_) {
      for (auto i = first; i != none && limit > 0;) {
        const auto seen = run_from(i, need, joined, may_wait, best);
        if (seen.run.bytes >= need) best = seen.run;
        limit -= std::min(limit, seen.passed);
        i = seen.next;
      }
    }
    if (best.first != none) merge(best);
    return best.first;
  }

  struct run_found {
    free_run run;            // of fewer bytes than are needed where there is none
    std::uint32_t next;      // where a better one may begin
    std::size_t passed = 0;  // ranges before that
  };

  // A run from `first` on that is older than `best`. None that begins before its youngest part, or
  // before what ends it too early, is better: so that a search looks at most ranges once.
  template <class Joined>
  [[nodiscard]] run_found run_from(std::uint32_t first, std::size_t need, const Joined& joined,
                                   bool may_wait, const free_run& best) const {
    run_found result{{first, 0, {}}, none};
    std::size_t seen = 0;
    for (auto i = first; i != none && result.run.bytes < need; i = nodes_[i].right) {
      const auto& each = nodes_[i];
      const auto order = each.ready.order();
      const bool ends = each.used || (!may_wait && !joined(each.ready)) ||
                        (best.first != none && order >= best.ready.order());
      ++seen;
      if (ends || order >= result.run.ready.order()) {
        result.next = each.right;
        result.passed = seen;
      }
      if (ends) {
        result.run.bytes = 0;
        return result;
      }
      result.run.bytes += each.bytes;
      result.run.ready.add(each.ready);
    }
    if (result.run.bytes < need) {  // and so has none of those behind
      result.next = none;
      result.passed = seen;
    }
    return result;
  }
};

}  // namespace tidepool::detail
