// An index of the parts of storages that were offloaded, by the storage and the rectangle of it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tidepool::inline v0_3_0::detail {

// A hash table, chained through the storages themselves.
template <class Storage>
class part_index {
 public:
  // The latest copy of the rectangle `part` of the storage with the number `origin`, or null.
  template <class Rectangle>
  [[nodiscard]] Storage* find(std::uint64_t origin, const Rectangle& part) const {
    if (buckets_.empty()) return nullptr;
    auto* found = buckets_[bucket_of(origin, part)];
    while (found != nullptr && !(found->part.of == origin && found->part.what == part)) {
      found = found->part.next;
    }
    return found;
  }

  // Makes room, so that one more `insert` needs no memory.
  void make_room() {
    if (count_ < buckets_.size()) return;
    auto fewer = std::exchange(
        buckets_, std::vector<Storage*>(std::max<std::size_t>(16, 2 * buckets_.size())));
    count_ = 0;
    for (auto* each : fewer) {
      while (each != nullptr) insert(*std::exchange(each, each->part.next));
    }
  }

  void insert(Storage& part) noexcept {
    auto** link = &buckets_[bucket_of(part.part.of, part.part.what)];
    while (*link != nullptr && (*link)->number > part.number) link = &(*link)->part.next;
    part.part.next = std::exchange(*link, &part);
    ++count_;
  }
  void erase(Storage& part) noexcept {
    auto** link = &buckets_[bucket_of(part.part.of, part.part.what)];
    while (*link != &part) link = &(*link)->part.next;
    *link = part.part.next;
    --count_;
  }

 private:
  template <class Rectangle>
  [[nodiscard]] std::size_t bucket_of(std::uint64_t origin, const Rectangle& part) const {
    // An array with a name: nvcc writes a loop over a braced list wrongly.
    const std::array<std::uint64_t, 4> numbers{part.offset, part.width, part.rows, part.pitch};
    std::uint64_t hash = origin;
    for (const auto each : numbers) hash = (std::rotl(hash, 23) ^ each) * 0x9E3779B97F4A7C15U;
    return static_cast<std::size_t>(hash >> 32) & (buckets_.size() - 1);
  }

  std::vector<Storage*> buckets_;  // a power of two of them
  std::size_t count_ = 0;
};

}  // namespace tidepool::detail
