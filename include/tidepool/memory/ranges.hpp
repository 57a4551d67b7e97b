/// The book of pool, arena and pinned memory: the free parts of regions, and their fences. Pure
/// bookkeeping; it touches no memory and no device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tidepool/core/block.hpp"
#include "tidepool/memory/detail/range_survey.hpp"

namespace tidepool::inline v0_3_0 {

/// Free and used ranges of one or more regions.
///
/// Free neighbours keep their own fences. They are merged only when a request needs several of
/// them, or while free ranges are many beside those in use: a request then merges a range that it
/// would cut up with neighbours that it need not wait for either. So the number of ranges does not
/// grow with the steps. A merged range carries the fences of all its parts.
///
/// A request takes, in this order: a range its lane need not wait for (smallest size class first),
/// neighbours it need not wait for, then, if `may_wait`, the range whose fence is oldest (of its
/// own size class, if that has one), or such a run of neighbours. All but the last take constant
/// time, because the search for neighbours is cut short where a wait would do; the last is linear
/// in the number of ranges.
///
/// Functions on the way of a commit or a restore are inlined by force, because calls and spills
/// were a tenth of its time.
class ranges : detail::range_survey {
 public:
  using range_list::none;

  /// Free ranges are merged while they outnumber those in use by more than `most_loose`.
  explicit ranges(std::size_t most_loose = most_searched) : most_loose_(most_loose) {}

  /// Adds a free region; `bytes` is a multiple of `block_alignment`.
  using range_list::add_region;
  /// Forgets the regions of which no part is in use, whatever their fences, and calls `gone(base,
  /// bytes)` for each.
  using range_list::drop_unused_regions;

  /// The place for a request: a range, and whether the asking lane has to wait for it.
  struct place {
    std::uint32_t range = none;  ///< index of the range; `none`: no room
    bool waits = true;           ///< whether its fence is to be joined first

    explicit operator bool() const { return range != none; }  ///< True when there is room.
  };

  /// Finds room for `bytes`; `joined(fence)` is true where the asking lane need not wait for a
  /// fence. The answer holds until the book changes.
  template <class Joined>
  [[nodiscard, gnu::always_inline]] place find(std::size_t bytes, const Joined& joined,
                                               bool may_wait) {
    return find_aligned(aligned(bytes), joined, may_wait);
  }

  /// Like `find`, where room matters more than a wait. Once less than eight of the largest blocks
  /// so far would stay free, the place is in the run of free neighbours that is filled best,
  /// whatever their fences. Linear in the number of ranges; with more than 1024 ranges like `find`.
  template <class Joined>
  [[nodiscard]] place find_snug(std::size_t bytes, const Joined& joined) {
    const auto need = aligned(bytes);
    return gathered(search_snug(need, joined), need, joined);
  }

  /// Like `find`, but while one free run alone has room for the largest block so far, that run is
  /// left as long as there is another way: memory that need not be waited for, then the range that
  /// `find` would wait for, then the run that is filled best, whatever its fences. So a few blocks
  /// that stay for long do not leave memory in pieces. Linear in the number of ranges where memory
  /// is short; with more than 1024 ranges like `find`.
  template <class Joined>
  [[nodiscard]] place find_sparing(std::size_t bytes, const Joined& joined) {
    const auto need = aligned(bytes);
    return gathered(search_sparing(need, joined), need, joined);
  }

  /// Takes the place that `find` found for as many bytes. The block is written in place, because a
  /// block that is copied right after it was made costs more than the search.
  [[gnu::always_inline]] void take(const place& found, std::size_t bytes, block& into,
                                   fence& ready) {
    take_aligned(found, aligned(bytes), into, ready);
  }

  /// Does `find` and `take` in one call; returns an empty grant when there is no room.
  template <class Joined>
  [[nodiscard]] grant acquire(std::size_t bytes, const Joined& joined, bool may_wait) {
    grant result;
    if (const auto found = find(bytes, joined, may_wait)) {
      take(found, bytes, result.memory, result.ready);
    }
    return result;
  }

  /// Like `acquire`, in place; `need` is a multiple of `block_alignment`. The request waits only
  /// where `in_flight` bytes stay free beside it. Returns false, and writes nothing, when there is
  /// no room.
  template <class Joined>
  [[nodiscard, gnu::always_inline]] bool take_any(std::size_t need, const Joined& joined,
                                                  std::size_t in_flight, block& into,
                                                  fence& ready) {
    if (free_bytes_ < need) return false;
    const auto found = find_aligned(need, joined, free_bytes_ - need >= in_flight);
    if (found) take_aligned(found, need, into, ready);
    return static_cast<bool>(found);
  }

  /// Takes the `bytes` that begin at `from`, if all of them are free; else returns false, and
  /// changes nothing. From the first call on the ranges are also kept in the order of their
  /// addresses.
  template <class Joined>
  [[nodiscard]] bool take_at(const void* from, std::size_t bytes, const Joined& joined, block& into,
                             fence& ready) {
    const auto need = aligned(bytes);
    const auto* const begin = static_cast<const std::byte*>(from);
    if (!indexed_) index_by_address();
    make_room(2);
    auto parts = run_at(begin, need);
    if (parts.first == none) return false;
    // The ends are cut off before the rest is merged: they keep their own fences, and whoever takes
    // them waits for nothing else.
    if (nodes_[parts.first].base != begin) {
      const auto at = static_cast<std::size_t>(begin - nodes_[parts.first].base);
      parts.first = cut_free(parts.first, at);
    }
    parts.ready = fence{};
    auto last = parts.first;
    for (parts.bytes = 0;; last = nodes_[last].right) {
      parts.bytes += nodes_[last].bytes;
      parts.ready.add(nodes_[last].ready);
      if (parts.bytes >= need) break;
    }
    if (parts.bytes > need) {
      cut_free(last, nodes_[last].bytes - (parts.bytes - need));
      parts.bytes = need;
    }
    merge(parts);
    const auto index = parts.first;
    unlink(index);
    auto& taken = nodes_[index];
    taken.used = true;
    used_bytes_ += need;
    largest_ = std::max(largest_, need);
    into = {taken.base, need, index};
    if (!joined(taken.ready)) ready = taken.ready;
    return true;
  }

  /// Releases a range, which is free behind `after`: a fence, or a ticket.
  template <class After = fence>  // or a ticket
  void release(std::uint32_t index, const After& after) {
    auto& freed = nodes_[index];
    freed.used = false;
    freed.ready = after;
    used_bytes_ -= freed.bytes;
    put(index);
  }

  /// Merges each region into one range, if no part of any region is in use. The range carries the
  /// fences of all its parts.
  void join_if_unused() noexcept {
    if (used_bytes_ > 0) return;
    for (const auto first : first_of_region_) {
      free_run whole{first, 0, {}};
      for (auto i = first; i != none; i = nodes_[i].right) {
        whole.bytes += nodes_[i].bytes;
        whole.ready.add(nodes_[i].ready);
      }
      if (nodes_[first].right != none) merge(whole);
    }
  }

  [[nodiscard]] std::size_t used_bytes() const { return used_bytes_; }  ///< Bytes in use.
  /// Bytes that are free, whatever their fences.
  [[nodiscard]] std::size_t free_bytes() const { return free_bytes_; }

  /// Longest run of free neighbours.
  [[nodiscard]] std::size_t largest_free() const {
    std::size_t best = 0;
    for (const auto first : first_of_region_) {
      std::size_t run = 0;
      for (auto i = first; i != none; i = nodes_[i].right) {
        run = nodes_[i].used ? 0 : run + nodes_[i].bytes;
        best = std::max(best, run);
      }
    }
    return best;
  }

 private:
  static constexpr std::size_t scan_limit = 8;  // ranges of one bin, the oldest first
  static constexpr std::size_t most_snug = 8;   // number of largest blocks
  static constexpr std::size_t most_searched = 1024;
  static constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

  template <class Joined>
  [[gnu::always_inline]] place find_aligned(std::size_t need, const Joined& joined, bool may_wait) {
    return gathered(search(need, joined, may_wait), need, joined);
  }

  template <class Joined>
  [[gnu::always_inline]] place search(std::size_t need, const Joined& joined, bool may_wait) {
    place found;
    found.range = pick(need, joined, may_wait, found.waits);
    if (found.waits) {
      // Neighbours that need no wait are better, but not worth a long search when a wait will do.
      const auto neighbours = pick_run(need, joined, false, found ? scan_limit : no_limit);
      if (neighbours != none) found = {neighbours, false};
    }
    if (!found && may_wait) found.range = pick_run(need, joined, true, no_limit);
    return found;
  }

  template <class Joined>
  [[nodiscard]] place search_snug(std::size_t need, const Joined& joined) {
    if (is_ample(need)) return search(need, joined, true);
    std::uint32_t best = none;
    std::size_t best_bytes = 0;
    for (const auto first : first_of_region_) {
      for (auto i = first; i != none;) {
        if (nodes_[i].used) {
          i = nodes_[i].right;
          continue;
        }
        const auto whole = whole_run(i);
        if (whole.bytes >= need && (best == none || whole.bytes < best_bytes)) {
          best = i;
          best_bytes = whole.bytes;
        }
        i = whole.behind;
      }
    }
    if (best == none) return {};
    return place_in(part_of(best, need), joined);
  }

  template <class Joined>
  [[nodiscard]] place search_sparing(std::size_t need, const Joined& joined) {
    if (need >= largest_ || is_ample(need)) return search(need, joined, true);
    const auto seen = survey(need, joined);
    if (seen.longest.bytes < largest_ || seen.second >= largest_) return search(need, joined, true);
    place usual;
    usual.range = pick(need, joined, true, usual.waits);
    const bool spares = usual && longest_without(usual.range, need, seen) >= largest_;
    if (spares && !usual.waits) return usual;
    if (seen.beside.joined != none) return {seen.beside.joined, false};
    if (spares) return usual;
    if (seen.beside.first != none) return place_in(part_of(seen.beside.first, need), joined);
    if (seen.longest.bytes - need < largest_) return search(need, joined, true);
    return place_in(part_of(seen.longest.first, need), joined);
  }

  // While free ranges are many, merges a range that is to be cut up with neighbours that need no
  // wait.
  template <class Joined>
  [[gnu::always_inline]] place gathered(place found, std::size_t need, const Joined& joined) {
    if (found && is_crowded() && nodes_[found.range].bytes != need)
      found.range = gather(found.range, joined);
    return found;
  }
  template <class Joined>
  [[gnu::noinline]] std::uint32_t gather(std::uint32_t range, const Joined& joined) {
    free_run whole{range, nodes_[range].bytes, nodes_[range].ready};
    const auto add = [&](std::uint32_t i) {
      const bool joins = is_free(i) && joined(nodes_[i].ready);
      if (!joins) return false;
      whole.bytes += nodes_[i].bytes;
      whole.ready.add(nodes_[i].ready);
      return true;
    };
    auto next = nodes_[range].right;
    for (std::size_t n = 0; n < scan_limit && add(next); ++n) next = nodes_[next].right;
    next = nodes_[range].left;
    for (std::size_t n = 0; n < scan_limit && add(next); ++n) {
      next = nodes_[whole.first = next].left;
    }
    if (whole.bytes > nodes_[range].bytes) merge(whole);
    return whole.first;
  }

  [[gnu::always_inline]] void take_aligned(const place& found, std::size_t need, block& into,
                                           fence& ready) {
    if (spare_.empty()) make_room(1);
    unlink(found.range);
    auto index = found.range;
    if (nodes_[index].bytes != need) index = split(index, need);
    auto& taken = nodes_[index];
    taken.used = true;
    used_bytes_ += need;
    largest_ = std::max(largest_, need);
    into.data = taken.base;
    into.bytes = need;
    into.index = index;
    // A fence that the lane has joined already need not be looked at again.
    if (found.waits) ready = taken.ready;
  }

  // Finds a range that needs no wait, of the smallest class that has one. Else it is the oldest of
  // the request's own class, which need not be cut up, and only then the oldest of all.
  template <class Joined>
  [[gnu::always_inline]] std::uint32_t pick(std::size_t need, const Joined& joined, bool may_wait,
                                            bool& waits) const {
    const auto own = bin_of(need);
    auto best = none;
    auto alike = none;
    for (auto bin = next_filled(own); bin < bin_count; bin = next_filled(bin + 1)) {
      std::size_t scanned = 0;
      for (auto i = bins_[bin].front; i != none && scanned < scan_limit;
           i = nodes_[i].behind, ++scanned) {
        if (nodes_[i].bytes < need) continue;
        if (joined(nodes_[i].ready)) {
          waits = false;
          return i;
        }
        if (may_wait && (best == none || nodes_[i].ready.order() < nodes_[best].ready.order())) {
          best = i;
        }
      }
      if (bin == own) alike = best;
    }
    return alike != none ? alike : best;
  }

  // True where more ranges are free than ranges in use keep apart.
  [[nodiscard]] bool is_crowded() const {
    return 2 * free_count_ > nodes_.size() - spare_.size() + most_loose_;
  }

  // True where so much is free, or in so many pieces, that a search for the best is not worth it.
  [[nodiscard]] bool is_ample(std::size_t need) const {
    return (free_bytes_ >= need && free_bytes_ - need >= most_snug * largest_) ||
           nodes_.size() - spare_.size() > most_searched;
  }

  template <class Joined>
  [[nodiscard]] place place_in(const free_run& part, const Joined& joined) {
    merge(part);
    return {part.first, !joined(nodes_[part.first].ready)};
  }

  // The part of the run of `first` that a request needs, at the end that the request comes from, so
  // that the rest keeps its own fences.
  [[nodiscard]] free_run part_of(std::uint32_t first, std::size_t need) const {
    const bool small = is_small(need);
    auto last = first;
    while (small && is_free(nodes_[last].right)) last = nodes_[last].right;
    free_run part{last, nodes_[last].bytes, nodes_[last].ready};
    for (auto i = last; part.bytes < need;) {
      i = small ? nodes_[i].left : nodes_[i].right;
      part.bytes += nodes_[i].bytes;
      part.ready.add(nodes_[i].ready);
      if (small) part.first = i;
    }
    return part;
  }

  // The longest run left once `need` bytes of the free range `taken` are taken from their end of
  // it.
  [[nodiscard]] std::size_t longest_without(std::uint32_t taken, std::size_t need,
                                            const runs_seen& seen) const {
    std::size_t before = 0;
    std::size_t behind = 0;
    auto first = taken;
    for (auto i = nodes_[taken].left; is_free(i); i = nodes_[i].left) {
      before += nodes_[i].bytes;
      first = i;
    }
    if (first != seen.longest.first) return seen.longest.bytes;
    for (auto i = nodes_[taken].right; is_free(i); i = nodes_[i].right) behind += nodes_[i].bytes;
    (is_small(need) ? before : behind) += nodes_[taken].bytes - need;
    return std::max({before, behind, seen.second});
  }

  // Large requests come from the front of a range and small ones from its end, so that a few sizes
  // that alternate do not end up between each other.
  [[nodiscard]] bool is_small(std::size_t need) const { return need < largest_ / 4 * 3; }

  // Cuts a range in two; returns the part of `need` bytes.
  std::uint32_t split(std::uint32_t index, std::size_t need) {
    largest_ = std::max(largest_, need);
    const bool small = is_small(need);
    const auto other = cut(index, small ? nodes_[index].bytes - need : need);
    put(small ? index : other);
    return small ? other : index;
  }

  std::size_t most_loose_;
  std::size_t largest_ = 0;  // largest request so far
  std::size_t used_bytes_ = 0;
};

}  // namespace tidepool
