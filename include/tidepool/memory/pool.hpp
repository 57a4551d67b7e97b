/// Memory that grows with demand and is reused in stream order.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tidepool/core/page_allocator.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/ranges.hpp"

namespace tidepool::inline v0_3_0 {

/// How a pool rounds requests up.
enum class rounding : std::uint8_t {
  sixteenth,  ///< by at most a sixteenth, so that shapes that change a little fit each other's
              ///< memory
  none        ///< to whole blocks only
};

/// How a pool takes memory from its device, and how much.
struct pool_limits {
  std::size_t step = 0;    ///< bytes by which the pool grows, at least
  std::size_t budget = 0;  ///< bytes that the pool may take in all; 0: as much as the device gives
  rounding round = rounding::sixteenth;  ///< how requests are rounded up
};

/// Regions taken from an allocator in large steps.
///
/// A request takes free memory that its stream need not wait for. Without such memory, the pool
/// grows as long as less than `allow_in_flight` bytes are free but still in flight; beyond that,
/// and when it cannot grow, the stream waits for the oldest free range. So growth depends on the
/// order of calls, never on timing. Memory goes back to the allocator in the destructor, and in
/// `give_back_unused`, which an offloader calls before it throws `out_of_budget`.
class pool final : public block_source {
 public:
  /// A pool of memory from `pages`, in the order of `order`; both must outlive it. Takes no memory
  /// yet.
  pool(page_allocator& pages, const clocks& order, pool_limits limits)
      : pages_(&pages), order_(&order), limits_(limits) {}
  ~pool() override {
    for (auto* region : regions_) pages_->deallocate(region);
  }

  /// Bytes that a request for `bytes` takes.
  [[nodiscard]] static std::size_t rounded(std::size_t bytes, rounding how) {
    const auto units = aligned(bytes) / block_alignment;
    const auto step = how == rounding::none ? 0 : std::bit_floor(units) / 16;
    constexpr auto most = std::numeric_limits<std::size_t>::max() / block_alignment;
    if (step == 0 || units > most - step) return units * block_alignment;
    return (units + step - 1) / step * step * block_alignment;
  }

  [[nodiscard]] bool take(std::size_t bytes, lane_id waiter, block& into, fence& ready) override {
    const auto joined = order_->joined_by(waiter);
    const auto need = rounded(bytes, limits_.round);
    constexpr auto never = std::numeric_limits<std::size_t>::max();
    const auto in_flight = flying_ == 0 ? never : flying_;
    if (book_.take_any(need, joined, in_flight, into, ready)) return true;
    if (order_->capturing() && book_.take_any(need, joined, 0, into, ready)) return true;
    return book_.take_any(need, joined, grow(need) ? never : 0, into, ready);
  }
  /// A pool with a budget does not grow for such a block, whose region would leave less of the
  /// budget in one piece.
  [[nodiscard]] bool take_spare(std::size_t bytes, lane_id waiter, block& into,
                                fence& ready) override {
    if (limits_.budget == 0) return take(bytes, waiter, into, ready);
    const auto joined = order_->joined_by(waiter);
    return book_.take_any(rounded(bytes, limits_.round), joined, 0, into, ready);
  }
  /// Releases a block, which is free behind `after`.
  void release(const block& done, const fence& after) noexcept override {
    book_.release(done.index, after);
  }

  /// Like the `release` of a fence, behind one position of one lane.
  void release(const block& done, const ticket& after) noexcept {
    book_.release(done.index, after);
  }

  [[nodiscard]] std::size_t reserved() const override { return reserved_; }
  /// The most bytes ever taken.
  [[nodiscard]] std::size_t peak() const override { return peak_; }
  [[nodiscard]] std::size_t budget() const override { return limits_.budget; }
  [[nodiscard]] std::size_t largest_free() const override { return book_.largest_free(); }
  [[nodiscard]] std::uint64_t allocations() const override { return allocations_; }
  void allow_in_flight(std::size_t bytes) override { flying_ = bytes; }
  /// If no memory of a pool with a budget is in use, merges each region into one range, so that
  /// every step finds the same regions. A pool without a budget keeps the ranges apart: it may
  /// grow, rather than wait for all work of a region.
  void coalesce() noexcept override {
    if (limits_.budget != 0) book_.join_if_unused();
  }
  /// Gives regions back that are not in use. A pool that grew in small steps may then take one
  /// large region for a large block. The allocator waits until the device is done with the regions.
  bool give_back_unused() noexcept override {
    const auto before = reserved_;
    book_.drop_unused_regions([&](std::byte* base, std::size_t bytes) {
      std::erase(regions_, base);
      reserved_ -= bytes;
      pages_->deallocate(base);
    });
    return reserved_ < before;
  }

  /// Bytes in use, rounded as `rounded` says.
  [[nodiscard]] std::size_t used() const { return book_.used_bytes(); }

 private:
  bool grow(std::size_t need) {
    auto bytes = std::max(need, aligned(limits_.step));
    if (limits_.budget != 0) {
      const auto left = (limits_.budget - reserved_) / block_alignment * block_alignment;
      if (left < need) return false;
      bytes = std::min(bytes, left);
    }
    if (order_->capturing()) {
      // When the step ran without capture, the device refused such a request, too, and the pool did
      // not grow.
      if (need >= refused_) return false;
      throw misuse_error("capture: " + std::to_string(need) +
                         " bytes more would have to be allocated, which a graph cannot do; run"
                         " steps without capture until counters().device_allocations stays equal");
    }
    regions_.reserve(regions_.size() + 1);
    auto* region = pages_->try_allocate(bytes);
    if (region == nullptr && bytes > need) {
      bytes = need;
      region = pages_->try_allocate(bytes);
    }
    if (region == nullptr) {
      refused_ = std::min(refused_, need);
      return false;
    }
    regions_.push_back(region);
    ++allocations_;
    reserved_ += bytes;
    peak_ = std::max(peak_, reserved_);
    book_.add_region(static_cast<std::byte*>(region), bytes);
    return true;
  }

  page_allocator* pages_;
  const clocks* order_;
  pool_limits limits_;
  std::vector<void*> regions_;
  std::size_t reserved_ = 0;
  std::size_t peak_ = 0;
  std::uint64_t allocations_ = 0;
  std::size_t flying_ = 0;
  // The least request that the device has refused.
  std::size_t refused_ = std::numeric_limits<std::size_t>::max();
  ranges book_;
};

}  // namespace tidepool
