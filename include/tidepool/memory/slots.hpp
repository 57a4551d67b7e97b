/// Rings of fixed slots, for trainers whose shapes never change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tidepool/core/block.hpp"
#include "tidepool/core/page_allocator.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/error.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0 {

/// Every ring is one allocation of equal slots; a request takes the free slot whose fence is oldest
/// from the ring with the smallest slots that fit. Addresses repeat from step to step as long as
/// the order of calls does. The host never blocks. An empty grant means that no slot is free.
class slots final : public block_source {
 public:
  /// Throws `option_error` without rings and `out_of_budget` when the device cannot hold them.
  slots(page_allocator& pages, const std::vector<slot_ring>& shapes) : pages_(&pages) {
    if (shapes.empty()) {
      throw option_error(
          "tidepool: slots: no ring is given; set options::slots, or --slots=BYTESxCOUNT");
    }
    if (shapes.size() > most_rings) {
      throw option_error("tidepool: slots: " + std::to_string(shapes.size()) +
                         " rings are more than the " + std::to_string(most_rings) +
                         " there may be; give several one size");
    }
    for (const auto& shape : shapes) check(shape);
    try {
      for (const auto& shape : shapes) add(shape);
    } catch (...) {
      give_back();
      throw;
    }
    std::sort(rings_.begin(), rings_.end(),
              [](const slot_queue& a, const slot_queue& b) { return a.bytes < b.bytes; });
  }
  ~slots() override { give_back(); }

  [[nodiscard]] bool take(std::size_t bytes, lane_id /*waiter*/, block& into,
                          fence& ready) override {
    auto own = rings_.size();  // the ring of the smallest slots that fit
    for (std::size_t r = 0; r < rings_.size(); ++r) {
      auto& ring = rings_[r];
      if (ring.bytes < bytes) continue;
      if (own == rings_.size()) own = want(r);
      if (ring.head == ring.tail) continue;
      const auto& slot = ring.free[ring.head++ % ring.free.size()];
      ring.tenants[slot.number] = static_cast<std::uint8_t>(own);
      ++rings_[own].wanted;
      into = {static_cast<std::byte*>(ring.base) + slot.number * ring.bytes, ring.bytes,
              static_cast<std::uint32_t>(r << ring_shift | slot.number)};
      ready = slot.ready;
      return true;
    }
    return false;
  }
  /// Releases a slot, which is free behind `after`.
  void release(const block& done, const fence& after) noexcept override {
    auto& ring = rings_[done.index >> ring_shift];
    free_slot freed;
    freed.number = done.index & ((std::uint32_t{1} << ring_shift) - 1);
    freed.ready = after;
    --rings_[ring.tenants[freed.number]].wanted;
    // Slots are released almost in the order of their fences; a slot with an older fence moves
    // forward.
    auto at = ring.tail++;
    for (; at > ring.head && ring.entry(at - 1).ready.order() > after.order(); --at) {
      ring.entry(at) = ring.entry(at - 1);
    }
    ring.entry(at) = freed;
  }

  [[nodiscard]] std::size_t reserved() const override { return reserved_; }
  /// Bytes of all rings, which are taken at once.
  [[nodiscard]] std::size_t peak() const override { return reserved_; }
  [[nodiscard]] std::size_t budget() const override { return reserved_; }
  [[nodiscard]] std::size_t largest_free() const override {
    std::size_t best = 0;
    for (const auto& ring : rings_) {
      if (ring.head != ring.tail) best = ring.bytes;
    }
    return best;
  }
  [[nodiscard]] std::uint64_t allocations() const override { return rings_.size(); }

  /// Rings, smallest slots first, in which every request so far would have found a slot of its own
  /// size. A request that takes a larger slot leaves the larger ones short.
  [[nodiscard]] std::vector<slot_ring> wanted() const {
    std::vector<slot_ring> result;
    for (const auto& ring : rings_) {
      result.push_back({ring.bytes, std::max(ring.free.size(), ring.most_wanted)});
    }
    return result;
  }

 private:
  // A block's index holds the number of its slot, and above it that of its ring.
  static constexpr unsigned ring_shift = 24;
  static constexpr std::size_t most_slots = std::size_t{1} << ring_shift;
  static constexpr std::size_t most_rings = std::size_t{1} << (32 - ring_shift);

  struct free_slot {
    std::uint32_t number = 0;
    fence ready;
  };

  struct slot_queue {
    std::size_t bytes = 0;
    void* base = nullptr;
    std::vector<free_slot> free;  // a queue: [head, tail) modulo its size
    std::size_t head = 0;
    std::size_t tail = 0;
    std::vector<std::uint8_t> tenants;  // for each slot, the ring that its request fits best
    std::size_t wanted = 0;             // requests of this ring's size that have a slot of any ring
    std::size_t most_wanted = 0;

    free_slot& entry(std::size_t at) { return free[at % free.size()]; }
  };

  static void check(const slot_ring& shape) {
    if (shape.bytes == 0 || shape.count == 0) {
      throw option_error("tidepool: slots: a ring of " + std::to_string(shape.count) +
                         " slots of " + std::to_string(shape.bytes) +
                         " bytes holds nothing; both numbers must be at least 1");
    }
    if (shape.count > most_slots) {
      throw option_error("tidepool: slots: a ring of " + std::to_string(shape.count) +
                         " slots is too long, there may be " + std::to_string(most_slots) +
                         "; declare fewer and larger slots");
    }
  }

  std::size_t want(std::size_t ring) {
    rings_[ring].most_wanted = std::max(rings_[ring].most_wanted, rings_[ring].wanted + 1);
    return ring;
  }

  void give_back() noexcept {
    for (auto& ring : rings_) pages_->deallocate(ring.base);
    rings_.clear();
  }

  void add(const slot_ring& shape) {
    const auto bytes = aligned(shape.bytes);
    rings_.reserve(rings_.size() + 1);
    // The bytes of all slots, rounded up, may not fit 64 bits.
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    const bool fits = shape.bytes <= most / shape.count - block_alignment;
    const auto total = fits ? bytes * shape.count : most;
    void* const base = fits ? pages_->try_allocate(total) : nullptr;
    if (base == nullptr) {
      throw out_of_budget("slots: the device cannot hold a ring of " + std::to_string(shape.count) +
                              " slots of " + detail::text::size_text(bytes) + " (" +
                              detail::text::size_text(pages_->free_bytes()) +
                              " are free); declare fewer or smaller slots",
                          total, pages_->free_bytes());
    }
    // The device is asked first, because it refuses rings whose lists would be too long for the
    // host.
    rings_.push_back({bytes, base, {}, 0, shape.count, {}});
    auto& free = rings_.back().free;
    free.resize(shape.count);
    rings_.back().tenants.resize(shape.count);
    for (std::uint32_t i = 0; i < shape.count; ++i) free[i].number = i;
    reserved_ += total;
  }

  page_allocator* pages_;
  std::vector<slot_queue> rings_;
  std::size_t reserved_ = 0;
};

}  // namespace tidepool
