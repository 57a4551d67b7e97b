// A map from keys of others to numbers of ours.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace tidepool::inline v0_3_0::detail {

// A hash table with open addressing, at most half full; an erased key leaves no trace. Once the
// table has been as large as it gets, it allocates nothing.
class key_map {
 public:
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

  [[nodiscard]] std::uint32_t find(std::uint64_t key) const {
    if (slots_.empty()) return none;
    const auto at = place_of(key);
    return slots_[at].value;
  }
  // Adds a key that is not there. Cannot fail after `make_room`.
  void insert(std::uint64_t key, std::uint32_t value) {
    make_room();
    slots_[place_of(key)] = {key, value};
    ++count_;
  }
  void make_room() {
    if (2 * (count_ + 1) <= slots_.size()) return;
    std::vector<slot> larger(std::bit_ceil(4 * (count_ + 4)));
    slots_.swap(larger);
    for (const auto& each : larger) {
      if (each.value != none) slots_[place_of(each.key)] = each;
    }
  }
  // Erases a key that is there. Keys behind it that would not be found any more move up.
  void erase(std::uint64_t key) noexcept {
    auto hole = place_of(key);
    --count_;
    for (auto at = next(hole); slots_[at].value != none; at = next(at)) {
      const auto wanted = home_of(slots_[at].key);
      const bool stays = hole < at ? hole < wanted && wanted <= at : hole < wanted || wanted <= at;
      if (stays) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole].value = none;
  }
  void clear() noexcept {
    for (auto& each : slots_) each.value = none;
    count_ = 0;
  }
  [[nodiscard]] std::size_t size() const { return count_; }
  // Slots that a search for this key passes over.
  [[nodiscard]] std::size_t passed_over(std::uint64_t key) const {
    return (place_of(key) - home_of(key)) & (slots_.size() - 1);
  }

 private:
  struct slot {
    std::uint64_t key = 0;
    std::uint32_t value = none;
  };

  // Every bit of the key has to count, because keys may be addresses, counters, or numbers packed
  // side by side. A product alone spreads upwards only, so this is the finaliser of splitmix64.
  [[nodiscard]] std::size_t home_of(std::uint64_t key) const {
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9U;
    key = (key ^ key >> 27) * 0x94D049BB133111EBU;
    return static_cast<std::size_t>(key ^ key >> 31) & (slots_.size() - 1);
  }
  [[nodiscard]] std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }
  // The slot where the key is, or would go.
  [[nodiscard]] std::size_t place_of(std::uint64_t key) const {
    auto at = home_of(key);
    while (slots_[at].value != none && slots_[at].key != key) at = next(at);
    return at;
  }

  std::vector<slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace tidepool::detail
