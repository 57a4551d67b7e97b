/// Ranges in the order of their addresses, the free ones by size class as well.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "tidepool/core/block.hpp"

namespace tidepool::inline v0_3_0::detail {

// How ranges are arranged; which of them a request should get is for `ranges` to say. Once
// `make_room` has come back, what follows cannot fail.
class range_list {
 public:
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

  // Adds a free region; `bytes` is a multiple of `block_alignment`.
  void add_region(std::byte* base, std::size_t bytes) {
    make_room(1);
    first_of_region_.reserve(first_of_region_.size() + 1);
    const auto fresh = new_node();
    nodes_[fresh] = {base, bytes, none, none, none, none, next_region_++, 0, false, {}};
    first_of_region_.push_back(fresh);
    if (indexed_) by_address_.insert(behind(base), fresh);
    put(fresh);
  }

  // Forgets the regions of which no part is in use, and hands each to `gone`.
  template <class Gone>
  void drop_unused_regions(const Gone& gone) noexcept {
    std::erase_if(first_of_region_, [&](std::uint32_t first) {
      if (whole_run(first).behind != none) return false;
      std::byte* const base = nodes_[first].base;
      std::size_t bytes = 0;
      for (auto i = first; i != none; i = nodes_[i].right) {
        unlink(i);
        bytes += nodes_[i].bytes;
        spare_.push_back(i);
      }
      gone(base, bytes);
      return true;
    });
    if (indexed_) index_by_address();
  }

 protected:
  static constexpr std::size_t bin_count = 256;

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

  // The bytes of all free neighbours from `first` on, and what comes after them.
  struct run_and_next {
    std::size_t bytes;
    std::uint32_t behind;
  };
  [[nodiscard]] run_and_next whole_run(std::uint32_t first) const {
    run_and_next result{0, first};
    auto& i = result.behind;
    for (; i != none && !nodes_[i].used; i = nodes_[i].right) result.bytes += nodes_[i].bytes;
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

  // Cuts a free range in two. Both are free, and have its fence.
  std::uint32_t cut_free(std::uint32_t index, std::size_t at) {
    unlink(index);
    const auto other = cut(index, at);
    put(index);
    put(other);
    return other;
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
    ++free_count_;
  }

  [[gnu::always_inline]] void unlink(std::uint32_t index) {
    const auto& gone = nodes_[index];
    const std::size_t which = gone.bin;
    auto& bin = bins_[which];
    (gone.before == none ? bin.front : nodes_[gone.before].behind) = gone.behind;
    (gone.behind == none ? bin.back : nodes_[gone.behind].before) = gone.before;
    if (bin.front == none) filled_[which / 64] &= ~(std::uint64_t{1} << (which % 64));
    free_bytes_ -= gone.bytes;
    --free_count_;
  }

  [[nodiscard]] std::size_t next_filled(std::size_t from) const {
    for (auto word = from / 64; word < filled_.size(); ++word) {
      auto bits = filled_[word];
      if (word == from / 64) bits &= ~std::uint64_t{0} << (from % 64);
      if (bits != 0) return word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
    }
    return bin_count;
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

  std::vector<node> nodes_;
  std::vector<std::uint32_t> spare_;
  std::vector<std::uint32_t> first_of_region_;
  bool indexed_ = false;  // also by address
  std::array<bin_ends, bin_count> bins_{};
  std::size_t free_bytes_ = 0;
  std::size_t free_count_ = 0;

 private:
  // The first range that begins behind an address.
  [[nodiscard]] std::vector<std::uint32_t>::const_iterator behind(const std::byte* address) const {
    return std::upper_bound(by_address_.begin(), by_address_.end(), address,
                            [&](const std::byte* at, std::uint32_t each) {
                              return std::less<>()(at, nodes_[each].base);
                            });
  }

  std::vector<std::uint32_t> by_address_;
  std::array<std::uint64_t, bin_count / 64> filled_{};
  std::uint32_t next_region_ = 0;
};

}  // namespace tidepool::detail
