// The open chunks of a step, and the choice of the chunk to reload from next.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tidepool/core/room.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::detail {

// A set of small numbers that knows the first number it lacks. It has a bit for each number, and
// above them a bit for each full word, so that 4096 numbers are passed over in one step.
class number_set {
 public:
  // Makes room, so that inserting and erasing numbers below `count` takes no memory.
  void make_room(std::size_t count) {
    const auto words = (count + 63) / 64;
    if (words <= words_.size()) return;
    full_.resize((words + 63) / 64);  // first, because the size of `words_` tells the room
    words_.resize(words);
  }

  void insert(std::size_t number) noexcept {
    auto& word = words_[number / 64];
    word |= bit(number);
    if (word == ~std::uint64_t{0}) full_[number / 4096] |= bit(number / 64);
  }
  void erase(std::size_t number) noexcept {
    words_[number / 64] &= ~bit(number);
    full_[number / 4096] &= ~bit(number / 64);
  }

  // The first number from `from` on that is not in the set.
  [[nodiscard]] std::size_t first_missing(std::size_t from) const noexcept {
    const auto word = from / 64;
    if (word >= words_.size()) return from;
    const auto rest = ~words_[word] >> (from % 64);
    if (rest != 0) return from + static_cast<std::size_t>(std::countr_zero(rest));
    const auto next = first_zero(full_, word + 1);
    return next < words_.size() ? first_zero(words_, next * 64) : words_.size() * 64;
  }

 private:
  [[nodiscard]] static std::uint64_t bit(std::size_t number) {
    return std::uint64_t{1} << (number % 64);
  }
  [[nodiscard]] static std::size_t first_zero(const std::vector<std::uint64_t>& bits,
                                              std::size_t from) noexcept {
    auto within = ~std::uint64_t{0} << (from % 64);
    for (auto word = from / 64; word < bits.size(); ++word, within = ~std::uint64_t{0}) {
      const auto zeros = ~bits[word] & within;
      if (zeros != 0) return word * 64 + static_cast<std::size_t>(std::countr_zero(zeros));
    }
    return bits.size() * 64;
  }

  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> full_;  // words of which all bits are set
};

// A chunk that has nothing to reload is looked at once, and again only when that may have changed.
// So the cost of a call does not grow with the number of such chunks.
class open_chunks {
 public:
  // Makes room, so that later calls need no memory for `chunks` chunks of a step.
  void make_room(std::size_t chunks) {
    if (chunks <= by_ordinal_.capacity()) return;
    const auto more = std::max(chunks, 2 * by_ordinal_.capacity());
    settled_.make_room(more);
    passed_.make_room(ranks(more));
    by_ordinal_.reserve(more);
  }

  // Adds a chunk whose ordinal is the number of chunks before it.
  void add(chunk_state& fresh) noexcept { by_ordinal_.push_back(&fresh); }
  void remove(const chunk_state& gone) noexcept { by_ordinal_[gone.ordinal] = nullptr; }
  // Lets the next chunk take the place of the latest, which has been removed.
  void reuse_latest(const chunk_state& gone) noexcept {
    by_ordinal_.pop_back();
    look_again(gone);
  }
  // Forgets the step, of which no chunk is open.
  void step_ended() noexcept {
    by_ordinal_.clear();
    backward_begun_ = 0;
  }

  // The chunks in the order of their forward passes; null where a chunk is over.
  [[nodiscard]] std::span<chunk_state* const> all() const { return by_ordinal_; }
  // The first open chunk; null when there is none.
  [[nodiscard]] const chunk_state* first() const {
    const auto found =
        std::ranges::find_if(by_ordinal_, [](auto* each) { return each != nullptr; });
    return found == by_ordinal_.end() ? nullptr : *found;
  }

  // Expects backward passes in the order of `step`; no chunk may be open.
  void expect_order(const plan::profile& step) {
    std::vector<std::size_t> rank(step.chunks.size(), step.chunks.size());
    std::vector<std::size_t> order;
    order.reserve(step.chunks.size());
    for (const auto& pass : step.passes) {
      if (!pass.backward) continue;
      rank[pass.chunk] = order.size();
      order.push_back(pass.chunk);
    }
    if (order.size() < step.chunks.size()) order.resize(step.chunks.size(), none);
    passed_.make_room(std::max(by_ordinal_.capacity(), order.size()) + 1);
    backward_rank_.swap(rank);
    backward_order_.swap(order);
  }

  void backward_begins(const chunk_state& chunk) noexcept {
    ++backward_begun_;
    look_again(chunk);
  }
  // Looks at a chunk again, because one of its groups may have to be reloaded.
  void look_again(const chunk_state& chunk) noexcept {
    const auto ordinal = chunk.ordinal;
    settled_.erase(ordinal);
    passed_.erase(ordinal < backward_rank_.size() ? backward_rank_[ordinal] : ordinal);
  }

  // The chunk to reload from: one whose backward pass is under way, else the next one in order, as
  // long as forward passes are over. Null when there is none.
  [[nodiscard]] chunk_state* next_to_reload() {
    for (;;) {
      const auto ordinal = settled_.first_missing(0);
      if (ordinal >= by_ordinal_.size()) break;
      auto* chunk = by_ordinal_[ordinal];
      if (chunk != nullptr && chunk->backward_begun && chunk->next_to_reload() != no_group) {
        return chunk;
      }
      settled_.insert(ordinal);
    }
    for (;;) {
      const auto rank = passed_.first_missing(backward_begun_);
      auto* chunk = at_rank(rank);
      if (chunk == nullptr || chunk->backward_begun || !chunk->forward_done) return nullptr;
      if (chunk->next_to_reload() != no_group) return chunk;
      passed_.insert(rank);
    }
  }

 private:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  // A number above every rank of `chunks` chunks.
  [[nodiscard]] std::size_t ranks(std::size_t chunks) const {
    return std::max(chunks, backward_order_.size()) + 1;
  }
  // The chunk at a rank of the warm-up step's order; in forward order where that is not known.
  [[nodiscard]] chunk_state* at_rank(std::size_t rank) const {
    const auto ordinal = rank < backward_order_.size() ? backward_order_[rank] : rank;
    return ordinal < by_ordinal_.size() ? by_ordinal_[ordinal] : nullptr;
  }

  std::vector<chunk_state*> by_ordinal_;
  std::vector<std::size_t> backward_rank_;   // ranks by ordinal, from the warm-up step
  std::vector<std::size_t> backward_order_;  // ordinals by rank, from the warm-up step
  // `settled_` has ordinals of chunks that have not begun backward or have nothing to reload;
  // `passed_` has ranks of chunks that ended forward and have nothing to reload. Each entry holds
  // until `look_again`, so that no rank of a chunk that is over is left.
  number_set settled_;
  number_set passed_;
  std::size_t backward_begun_ = 0;  // backward passes that have begun
};

}  // namespace tidepool::detail
