// A set of small numbers that knows the first one it lacks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidepool::inline v0_2_0::detail {

// One bit for each number, and above them one for each word that is full: 4096 numbers are passed
// over in one step.
class number_set {
 public:
  // Numbers below `count` may be inserted and erased from now on, without memory.
  void make_room(std::size_t count) {
    const auto words = (count + 63) / 64;
    if (words <= words_.size()) return;
    full_.resize((words + 63) / 64);  // first, since `words_` says for how many there is room
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

}  // namespace tidepool::detail
