/// Which parts of some regions are free, and after which fence: the book that pool, arena and
/// pinned memory keep. Pure bookkeeping; it touches no memory and no device.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "tidepool/memory/block.hpp"

namespace tidepool {

/// Free and used ranges of one or more regions.
///
/// Free neighbours keep their own fences and are joined into one range only when a request needs
/// several of them; the result then carries the fences of all its parts. A request takes, in this
/// order: a range its lane need not wait for (smallest size class first), neighbours it need not
/// wait for, then, if `may_wait`, the range whose fence is oldest (of its own size class, if that
/// has one), or such a run of neighbours. All but the last take constant time, since the search for
/// neighbours is cut short where a wait would do; the last is linear in the number of ranges.
///
/// Inlined by force where a commit or a restore comes through: calls and spills were a tenth of it.
class ranges {
 public:
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

  /// Adds a free region; `bytes` is a multiple of `block_alignment`.
  void add_region(std::byte* base, std::size_t bytes) {
    make_room(1);
    first_of_region_.reserve(first_of_region_.size() + 1);
    const auto fresh = new_node();
    nodes_[fresh] = {base, bytes, none, none, none, none, next_region_++, 0, false, {}};
    first_of_region_.push_back(fresh);
    if (indexed_) by_address_.insert(behind(base), fresh);
    put(fresh);
  }

  /// Where a request may go: a range, and whether the asking lane has to wait for it.
  struct place {
    std::uint32_t range = none;
    bool waits = true;

    explicit operator bool() const { return range != none; }
  };

  /// Finds room for `bytes`; `joined(fence)` says whether the asking lane need not wait for it. The
  /// answer holds until the book changes.
  template <class Joined>
  [[nodiscard, gnu::always_inline]] place find(std::size_t bytes, const Joined& joined,
                                               bool may_wait) {
    const auto need = aligned(bytes);
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

  /// The same where room matters more than a wait: once less than eight of the largest blocks so
  /// far would stay free, in the run of free neighbours that is filled best, whatever their fences.
  /// Linear in the number of ranges; with more than 1024 of them as `find`.
  template <class Joined>
  [[nodiscard]] place find_snug(std::size_t bytes, const Joined& joined) {
    const auto need = aligned(bytes);
    const bool ample = free_bytes_ >= need && free_bytes_ - need >= most_snug * largest_;
    if (ample || nodes_.size() - spare_.size() > most_searched) return find(bytes, joined, true);
    free_run best;
    for (const auto first : first_of_region_) {
      for (auto i = first; i != none;) {
        if (nodes_[i].used) {
          i = nodes_[i].right;
          continue;
        }
        const auto whole = whole_run(i);
        if (whole.run.bytes >= need && (best.first == none || whole.run.bytes < best.bytes)) {
          best = whole.run;
        }
        i = whole.behind;
      }
    }
    if (best.first == none) return {};
    merge(best);
    return {best.first, !joined(nodes_[best.first].ready)};
  }

  /// Takes what `find` found for as many bytes. Written in place: a block that is copied right
  /// after it was made costs more than the search.
  [[gnu::always_inline]] void take(const place& found, std::size_t bytes, block& into,
                                   fence& ready) {
    const auto need = aligned(bytes);
    if (spare_.empty()) make_room(1);
    unlink(found.range);
    auto index = found.range;
    if (nodes_[index].bytes != need) index = split(index, need);
    auto& taken = nodes_[index];
    taken.used = true;
    used_bytes_ += need;
    into.data = taken.base;
    into.bytes = need;
    into.index = index;
    // What the lane has joined already it need not look at again.
    if (found.waits) ready = taken.ready;
  }

  template <class Joined>
  [[nodiscard]] grant acquire(std::size_t bytes, const Joined& joined, bool may_wait) {
    grant result;
    if (const auto found = find(bytes, joined, may_wait)) {
      take(found, bytes, result.memory, result.ready);
    }
    return result;
  }

  /// Takes the `bytes` that begin at `from`, if all of them are free; else false, and nothing is
  /// changed. From the first call on the ranges are also kept in the order of their addresses.
  template <class Joined>
  [[nodiscard]] bool take_at(const void* from, std::size_t bytes, const Joined& joined, block& into,
                             fence& ready) {
    const auto need = aligned(bytes);
    const auto* const begin = static_cast<const std::byte*>(from);
    if (!indexed_) index_by_address();
    make_room(2);
    const auto parts = run_at(begin, need);
    if (parts.first == none) return false;
    merge(parts);
    auto index = parts.first;
    unlink(index);
    if (nodes_[index].base != begin) {
      index = cut(index, static_cast<std::size_t>(begin - nodes_[index].base));
      put(nodes_[index].left);
    }
    if (nodes_[index].bytes != need) put(cut(index, need));
    auto& taken = nodes_[index];
    taken.used = true;
    used_bytes_ += need;
    into = {taken.base, need, index};
    if (!joined(taken.ready)) ready = taken.ready;
    return true;
  }

  template <class After = fence>  // or a ticket
  void release(std::uint32_t index, const After& after) {
    auto& freed = nodes_[index];
    freed.used = false;
    freed.ready = after;
    used_bytes_ -= freed.bytes;
    put(index);
  }

  /// Puts each region together again while no part of any is in use. The whole carries the fences
  /// of all its parts.
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

  [[nodiscard]] std::size_t used_bytes() const { return used_bytes_; }
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
  static constexpr std::size_t bin_count = 256;
  static constexpr std::size_t scan_limit = 8;  // of one bin, whose front is its oldest
  static constexpr std::size_t most_snug = 8;   // of the largest blocks
  static constexpr std::size_t most_searched = 1024;
  static constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

  struct node {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    std::uint32_t left = none;  // neighbours in address order
    std::uint32_t right = none;
    std::uint32_t before = none;  // neighbours in the bin, oldest first
    std::uint32_t behind = none;
    std::uint32_t region = 0;
    std::uint8_t bin = 0;  // while free
    bool used = false;
    fence ready;
  };

  struct bin_ends {
    std::uint32_t front = none;
    std::uint32_t back = none;
  };

  struct free_run {
    std::uint32_t first = none;
    std::size_t bytes = 0;
    fence ready;
  };

  // Four size classes for each power of two.
  static std::size_t bin_of(std::size_t bytes) {
    const auto units = bytes / block_alignment;
    const auto power = static_cast<std::size_t>(std::bit_width(units)) - 1;
    const auto quarter = power >= 2 ? (units >> (power - 2)) & 3U : 0;
    return std::min(power * 4 + quarter, bin_count - 1);
  }

  // A range that needs no wait, of the smallest class that has one. Else the oldest of the
  // request's own class, which need not be cut up, and only then the oldest of all.
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

  // The run of free neighbours with the oldest fence, merged into its first range.
  template <class Joined>
  std::uint32_t pick_run(std::size_t need, const Joined& joined, bool may_wait, std::size_t limit) {
    if (free_bytes_ < need) return none;
    free_run best;
    for (const auto first : first_of_region_) {
      for (auto i = first; i != none && limit > 0; --limit, i = nodes_[i].right) {
        const auto candidate = run_from(i, need, joined, may_wait);
        if (candidate.first == none) continue;
        if (best.first == none || candidate.ready.order() < best.ready.order()) best = candidate;
      }
    }
    if (best.first != none) merge(best);
    return best.first;
  }

  template <class Joined>
  [[nodiscard]] free_run run_from(std::uint32_t first, std::size_t need, const Joined& joined,
                                  bool may_wait) const {
    free_run result{first, 0, {}};
    for (auto i = first; i != none && !nodes_[i].used; i = nodes_[i].right) {
      if (!may_wait && !joined(nodes_[i].ready)) break;
      result.bytes += nodes_[i].bytes;
      result.ready.add(nodes_[i].ready);
      if (result.bytes >= need) return result;
    }
    return {};
  }

  // All free neighbours from `first` on, and what comes after them.
  struct run_and_next {
    free_run run;
    std::uint32_t behind;
  };
  [[nodiscard]] run_and_next whole_run(std::uint32_t first) const {
    run_and_next result{{first, 0, {}}, first};
    auto& i = result.behind;
    for (; i != none && !nodes_[i].used; i = nodes_[i].right) {
      result.run.bytes += nodes_[i].bytes;
      result.run.ready.add(nodes_[i].ready);
    }
    return result;
  }

  // The free ranges that cover `bytes` from `begin` on.
  [[nodiscard]] free_run run_at(const std::byte* begin, std::size_t bytes) const {
    const auto next = behind(begin);
    if (next == by_address_.begin() || bytes > free_bytes_) return {};
    free_run result{*(next - 1), 0, {}};
    const auto most = static_cast<std::size_t>(begin - nodes_[result.first].base) + bytes;
    for (auto i = result.first; i != none && !nodes_[i].used; i = nodes_[i].right) {
      result.bytes += nodes_[i].bytes;
      result.ready.add(nodes_[i].ready);
      if (result.bytes >= most) return result;
    }
    return {};
  }

  // The first range that begins behind an address.
  [[nodiscard]] std::vector<std::uint32_t>::const_iterator behind(const std::byte* address) const {
    return std::upper_bound(by_address_.begin(), by_address_.end(), address,
                            [&](const std::byte* at, std::uint32_t each) {
                              return std::less<>()(at, nodes_[each].base);
                            });
  }

  void index_by_address() {
    by_address_.reserve(nodes_.capacity());
    by_address_.clear();
    for (const auto first : first_of_region_) {
      for (auto i = first; i != none; i = nodes_[i].right) by_address_.push_back(i);
    }
    std::sort(by_address_.begin(), by_address_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::less<>()(nodes_[a].base, nodes_[b].base);
    });
    indexed_ = true;
  }

  void merge(const free_run& parts) {
    auto& head = nodes_[parts.first];
    unlink(parts.first);
    std::ptrdiff_t count = 0;
    for (; head.bytes < parts.bytes; ++count) {
      const auto eaten = head.right;
      unlink(eaten);
      head.bytes += nodes_[eaten].bytes;
      head.right = nodes_[eaten].right;
      if (head.right != none) nodes_[head.right].left = parts.first;
      spare_.push_back(eaten);
    }
    if (indexed_ && count > 0) {
      const auto next = behind(head.base);
      by_address_.erase(next, next + count);
    }
    head.ready = parts.ready;
    put(parts.first);
  }

  // Large requests come from the front of a range and small ones from its end, so that a few sizes
  // that alternate do not end up between each other. Returns the part that is asked for.
  std::uint32_t split(std::uint32_t index, std::size_t need) {
    largest_ = std::max(largest_, need);
    const bool small = need < largest_ / 4 * 3;
    const auto other = cut(index, small ? nodes_[index].bytes - need : need);
    put(small ? index : other);
    return small ? other : index;
  }

  // In two, neither of them in a bin. Returns the second, which begins `at` bytes behind the first.
  std::uint32_t cut(std::uint32_t index, std::size_t at) {
    const auto other = new_node();
    auto& head = nodes_[index];
    nodes_[other] = {head.base + at, head.bytes - at, index, head.right, none,
                     none,           head.region,     0,     false,      head.ready};
    if (head.right != none) nodes_[head.right].left = other;
    head.right = other;
    head.bytes = at;
    if (indexed_) by_address_.insert(behind(nodes_[other].base), other);
    return other;
  }

  // Before anything is changed: what follows then needs no memory.
  void make_room(std::size_t count) {
    while (spare_.size() < count) {
      nodes_.emplace_back();
      spare_.reserve(nodes_.capacity());
      if (indexed_) by_address_.reserve(nodes_.capacity());
      spare_.push_back(static_cast<std::uint32_t>(nodes_.size() - 1));
    }
  }
  std::uint32_t new_node() {
    const auto index = spare_.back();
    spare_.pop_back();
    return index;
  }

  [[gnu::always_inline]] void put(std::uint32_t index) {
    auto& back = nodes_[index];
    const auto which = bin_of(back.bytes);
    auto& bin = bins_[which];
    back.bin = static_cast<std::uint8_t>(which);
    back.before = bin.back;
    back.behind = none;
    (bin.back == none ? bin.front : nodes_[bin.back].behind) = index;
    bin.back = index;
    filled_[which / 64] |= std::uint64_t{1} << (which % 64);
    free_bytes_ += back.bytes;
  }

  [[gnu::always_inline]] void unlink(std::uint32_t index) {
    const auto& gone = nodes_[index];
    const std::size_t which = gone.bin;
    auto& bin = bins_[which];
    (gone.before == none ? bin.front : nodes_[gone.before].behind) = gone.behind;
    (gone.behind == none ? bin.back : nodes_[gone.behind].before) = gone.before;
    if (bin.front == none) filled_[which / 64] &= ~(std::uint64_t{1} << (which % 64));
    free_bytes_ -= gone.bytes;
  }

  [[nodiscard]] std::size_t next_filled(std::size_t from) const {
    for (auto word = from / 64; word < filled_.size(); ++word) {
      auto bits = filled_[word];
      if (word == from / 64) bits &= ~std::uint64_t{0} << (from % 64);
      if (bits != 0) return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
    }
    return bin_count;
  }

  std::vector<node> nodes_;
  std::vector<std::uint32_t> spare_;
  std::vector<std::uint32_t> first_of_region_;
  std::vector<std::uint32_t> by_address_;
  bool indexed_ = false;
  std::array<bin_ends, bin_count> bins_{};
  std::array<std::uint64_t, bin_count / 64> filled_{};
  std::uint32_t next_region_ = 0;
  std::size_t largest_ = 0;  // request that split a range
  std::size_t used_bytes_ = 0;
  std::size_t free_bytes_ = 0;
};

}  // namespace tidepool
