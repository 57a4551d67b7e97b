/// What `tidepool::ranges` is held against: the simplest book of pieces with the same rules.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tidepool/core/block.hpp"

namespace tidepool::test {

inline constexpr std::size_t few_lanes = 3;

/// What the asking lane has waited for.
struct waited_for {
  std::array<std::uint64_t, few_lanes> known{};

  bool operator()(const fence& until) const {
    for (std::size_t lane = 0; lane < few_lanes; ++lane) {
      if (until.position(lane) > known[lane]) return false;
    }
    return true;
  }
};

/// The simplest book with the same rules: every question goes through all pieces.
class plain_book {
 public:
  struct piece {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
    fence ready{};
    std::uint64_t since = 0;  // when it came to be as it is
    bool used = false;
  };
  struct spot {
    std::size_t region;
    std::size_t at;
    bool waits;
  };

  void add_region(std::byte* base, std::size_t bytes) {
    regions_.push_back({{base, bytes, {}, ++now_, false}});
  }

  std::optional<spot> find(std::size_t need, const waited_for& joined, bool may_wait) {
    return gathered(search(need, joined, may_wait), need, joined);
  }
  std::optional<spot> find_snug(std::size_t need, const waited_for& joined) {
    return gathered(search_snug(need, joined), need, joined);
  }
  std::optional<spot> find_sparing(std::size_t need, const waited_for& joined) {
    return gathered(search_sparing(need, joined), need, joined);
  }
  explicit plain_book(std::size_t most_loose) : most_loose_(most_loose) {}
  /// How often a request has put together what it need not have.
  std::size_t gatherings = 0;

  /// Large ones from the front, small ones from the end.
  piece& take(const spot& from, std::size_t need) {
    auto& row = regions_[from.region];
    auto at = from.at;
    if (row[at].bytes != need) {
      const bool small = is_small(need);
      cut(from.region, at, small ? row[at].bytes - need : need);
      row[small ? at : at + 1].since = ++now_;
      if (small) ++at;
    }
    return use(row[at]);
  }

  piece* take_at(std::byte* begin, std::size_t need) {
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      auto& row = regions_[r];
      for (std::size_t first = 0; first < row.size(); ++first) {
        if (begin < row[first].begin || begin >= row[first].begin + row[first].bytes) continue;
        auto end = first;
        while (end < row.size() && !row[end].used && row[end].begin < begin + need) ++end;
        if (end == first || row[end - 1].begin + row[end - 1].bytes < begin + need) return nullptr;
        auto at = first;
        if (begin != row[at].begin) {
          cut(r, at, static_cast<std::size_t>(begin - row[at].begin));
          row[at++].since = ++now_;
          row[at].since = ++now_;
          ++end;
        }
        const auto last = end - 1;
        const auto over =
            static_cast<std::size_t>(row[last].begin + row[last].bytes - begin) - need;
        if (over > 0) {
          cut(r, last, row[last].bytes - over);
          row[last].since = ++now_;
          row[last + 1].since = ++now_;
        }
        merged({r, at, end, 0, {}}, false);
        return &use(row[at]);
      }
    }
    return nullptr;
  }

  void release(const void* begin, const fence& after) {
    for (auto& row : regions_) {
      for (auto& each : row) {
        if (each.begin == begin) each = {each.begin, each.bytes, after, ++now_, false};
      }
    }
  }

  void join_if_unused() {
    if (used_bytes() > 0) return;
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      if (regions_[r].size() > 1) merged({r, 0, regions_[r].size(), 0, {}}, false);
    }
  }

  std::vector<std::pair<std::byte*, std::size_t>> drop_unused_regions() {
    std::vector<std::pair<std::byte*, std::size_t>> gone;
    std::erase_if(regions_, [&](const std::vector<piece>& row) {
      if (std::any_of(row.begin(), row.end(), [](const piece& each) { return each.used; })) {
        return false;
      }
      std::size_t bytes = 0;
      for (const auto& each : row) bytes += each.bytes;
      gone.emplace_back(row.front().begin, bytes);
      return true;
    });
    return gone;
  }

  [[nodiscard]] const piece& at(const spot& where) const {
    return regions_[where.region][where.at];
  }
  [[nodiscard]] std::size_t used_bytes() const { return bytes_of_all(true); }
  [[nodiscard]] std::size_t free_bytes() const { return bytes_of_all(false); }
  [[nodiscard]] std::size_t largest_free() const {
    std::size_t best = 0;
    for (const auto& each : runs()) best = std::max(best, each.bytes);
    return best;
  }

 private:
  static constexpr std::size_t every = std::numeric_limits<std::size_t>::max();

  /// Free neighbours: the pieces from `first` to before `end`.
  struct run {
    std::size_t region;
    std::size_t first;
    std::size_t end;
    std::size_t bytes;
    fence ready;
  };

  std::optional<spot> search(std::size_t need, const waited_for& joined, bool may_wait) {
    const auto alone = one_piece(need, joined, may_wait);
    if (alone && !alone->waits) return alone;
    if (const auto ready = oldest_run(need, alone ? 8 : every, joined)) {
      return merged(*ready, false);
    }
    if (alone || !may_wait) return alone;
    const auto any = oldest_run(need, every, [](const fence&) { return true; });
    return any ? std::optional(merged(*any, true)) : std::nullopt;
  }

  std::optional<spot> search_snug(std::size_t need, const waited_for& joined) {
    if (is_ample(need)) return search(need, joined, true);
    const auto best = filled_best(runs(), need);
    return best ? std::optional(part_of(*best, need, joined)) : std::nullopt;
  }

  std::optional<spot> search_sparing(std::size_t need, const waited_for& joined) {
    if (need >= largest_ || is_ample(need)) return search(need, joined, true);
    run longest{};
    std::vector<run> others;
    for (auto each : runs()) {
      if (each.bytes > longest.bytes) std::swap(each, longest);
      if (each.bytes > 0) others.push_back(each);
    }
    const auto holds_largest = [&](const run& each) { return each.bytes >= largest_; };
    if (!holds_largest(longest) || std::any_of(others.begin(), others.end(), holds_largest)) {
      return search(need, joined, true);
    }
    const auto usual = one_piece(need, joined, true);
    const bool spares = usual && largest_free_without(*usual, need) >= largest_;
    if (spares && !usual->waits) return usual;
    if (const auto ready = smallest_joined(others, need, joined)) return ready;
    if (spares) return usual;
    if (const auto best = filled_best(others, need)) return part_of(*best, need, joined);
    if (longest.bytes - need < largest_) return search(need, joined, true);
    return part_of(longest, need, joined);
  }

  /// With more than `most_loose` free pieces beside as many as are in use, what would be cut up
  /// takes up to eight free neighbours on each side in, as far as they need no wait.
  std::optional<spot> gathered(std::optional<spot> found, std::size_t need,
                               const waited_for& joined) {
    std::size_t all = 0;
    std::size_t used = 0;
    for (const auto& row : regions_) {
      for (const auto& each : row) {
        ++all;
        used += each.used ? 1 : 0;
      }
    }
    if (!found || all <= 2 * used + most_loose_ || at(*found).bytes == need) return found;
    const auto& row = regions_[found->region];
    const auto joins = [&](std::size_t i) {
      return i < row.size() && !row[i].used && joined(row[i].ready);
    };
    run whole{found->region, found->at, found->at + 1, 0, {}};
    while (whole.end - found->at <= 8 && joins(whole.end)) ++whole.end;
    while (found->at - whole.first < 8 && joins(whole.first - 1)) --whole.first;
    if (whole.end - whole.first == 1) return found;
    ++gatherings;
    return merged(whole, found->waits);
  }

  /// Four for each power of two.
  using size_class = std::pair<std::size_t, std::size_t>;
  [[nodiscard]] static size_class class_of(std::size_t bytes) {
    const auto units = bytes / block_alignment;
    const auto power = std::bit_floor(units);
    return {power, power < 4 ? 0 : (units - power) / (power / 4)};
  }

  /// Without a wait of the smallest class that has one; else the oldest, of its own class if that
  /// has one. Of a class only the eight that have been in it longest are looked at.
  [[nodiscard]] std::optional<spot> one_piece(std::size_t need, const waited_for& joined,
                                              bool may_wait) const {
    std::map<std::pair<size_class, std::uint64_t>, spot> in_order;
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      for (std::size_t i = 0; i < regions_[r].size(); ++i) {
        const auto& each = regions_[r][i];
        if (each.used) continue;
        in_order.emplace(std::pair(class_of(each.bytes), each.since), spot{r, i, true});
      }
    }
    const auto own = class_of(need);
    std::map<size_class, std::size_t> seen;
    std::optional<spot> alike;
    std::optional<spot> oldest;
    for (const auto& [key, each] : in_order) {
      if (key.first < own || seen[key.first]++ >= 8 || at(each).bytes < need) continue;
      if (joined(at(each).ready)) return spot{each.region, each.at, false};
      const auto older_than = [&, here = each](const std::optional<spot>& other) {
        return !other || at(here).ready.order() < at(*other).ready.order();
      };
      if (key.first == own && older_than(alike)) alike = each;
      if (older_than(oldest)) oldest = each;
    }
    if (!may_wait) return std::nullopt;
    return alike ? alike : oldest;
  }

  /// Enough free neighbours, no more than that, all of them `good`; looked for from the first so
  /// many pieces on.
  template <class Good>
  [[nodiscard]] std::optional<run> oldest_run(std::size_t need, std::size_t starts,
                                              const Good& good) const {
    std::optional<run> best;
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      const auto& row = regions_[r];
      for (std::size_t i = 0; i < row.size() && starts > 0; ++i, --starts) {
        run each{r, i, i, 0, {}};
        while (each.bytes < need && each.end < row.size() && !row[each.end].used &&
               good(row[each.end].ready)) {
          each.bytes += row[each.end].bytes;
          each.ready.add(row[each.end++].ready);
        }
        if (each.bytes < need) continue;
        if (!best || each.ready.order() < best->ready.order()) best = each;
      }
    }
    return best;
  }

  /// All free neighbours.
  [[nodiscard]] std::vector<run> runs() const {
    std::vector<run> result;
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      bool open = false;
      for (std::size_t i = 0; i < regions_[r].size(); ++i) {
        const auto& each = regions_[r][i];
        if (!each.used && !open) result.push_back({r, i, i, 0, {}});
        open = !each.used;
        if (!open) continue;
        result.back().end = i + 1;
        result.back().bytes += each.bytes;
      }
    }
    return result;
  }

  [[nodiscard]] static std::optional<run> filled_best(const std::vector<run>& among,
                                                      std::size_t need) {
    std::optional<run> best;
    for (const auto& each : among) {
      if (each.bytes >= need && (!best || each.bytes < best->bytes)) best = each;
    }
    return best;
  }

  [[nodiscard]] std::optional<spot> smallest_joined(const std::vector<run>& among, std::size_t need,
                                                    const waited_for& joined) const {
    std::optional<spot> best;
    for (const auto& each : among) {
      for (auto i = each.first; i < each.end; ++i) {
        const auto& one = regions_[each.region][i];
        if (one.bytes < need || !joined(one.ready)) continue;
        if (!best || one.bytes < at(*best).bytes) best = spot{each.region, i, false};
      }
    }
    return best;
  }

  [[nodiscard]] std::size_t largest_free_without(const spot& gone, std::size_t need) const {
    auto then = *this;
    then.take(gone, need);
    return then.largest_free();
  }

  /// What a request needs of a run, at the end that it will come from.
  spot part_of(run whole, std::size_t need, const waited_for& joined) {
    const auto& row = regions_[whole.region];
    if (is_small(need)) {
      const auto end = whole.end;
      for (std::size_t bytes = 0; bytes < need;) bytes += row[--whole.end].bytes;
      whole.first = std::exchange(whole.end, end);
    } else {
      whole.end = whole.first;
      for (std::size_t bytes = 0; bytes < need;) bytes += row[whole.end++].bytes;
    }
    auto part = merged(whole, true);
    part.waits = !joined(at(part).ready);
    return part;
  }

  /// One piece, with the fences of all its parts.
  spot merged(const run& parts, bool waits) {
    auto& row = regions_[parts.region];
    auto& whole = row[parts.first];
    for (auto i = parts.first + 1; i < parts.end; ++i) {
      whole.bytes += row[i].bytes;
      whole.ready.add(row[i].ready);
    }
    whole.since = ++now_;
    const auto begin = row.begin() + static_cast<std::ptrdiff_t>(parts.first);
    row.erase(begin + 1, begin + static_cast<std::ptrdiff_t>(parts.end - parts.first));
    return {parts.region, parts.first, waits};
  }

  void cut(std::size_t region, std::size_t at, std::size_t bytes) {
    auto& row = regions_[region];
    auto rest = row[at];
    rest.begin += bytes;
    rest.bytes -= bytes;
    row[at].bytes = bytes;
    row.insert(row.begin() + static_cast<std::ptrdiff_t>(at) + 1, rest);
  }

  piece& use(piece& taken) {
    taken.used = true;
    largest_ = std::max(largest_, taken.bytes);
    return taken;
  }

  [[nodiscard]] bool is_small(std::size_t need) const { return need < largest_ / 4 * 3; }
  [[nodiscard]] bool is_ample(std::size_t need) const {
    return free_bytes() >= need && free_bytes() - need >= 8 * largest_;
  }

  [[nodiscard]] std::size_t bytes_of_all(bool used) const {
    std::size_t bytes = 0;
    for (const auto& row : regions_) {
      for (const auto& each : row) bytes += each.used == used ? each.bytes : 0;
    }
    return bytes;
  }

  std::vector<std::vector<piece>> regions_;
  std::size_t most_loose_;
  std::size_t largest_ = 0;  // request so far
  std::uint64_t now_ = 0;
};

}  // namespace tidepool::test
