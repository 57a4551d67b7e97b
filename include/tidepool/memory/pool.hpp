/// Memory that grows with demand and is reused in stream order.
#pragma once

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "tidepool/memory/ranges.hpp"

namespace tidepool {

/// How a pool takes memory from its device, and how much.
struct pool_limits {
  std::size_t step = 0;    ///< bytes by which it grows, at least
  std::size_t budget = 0;  ///< bytes it may take in all; 0: as much as the device gives
};

/// Regions taken from the device in large steps; `Kind` says from which of its allocators.
///
/// Sizes are rounded up by at most a sixteenth, so that shapes that change a little from step to
/// step still fit each other's memory (pinned memory keeps them exact). A request takes free memory
/// that its stream need not wait for. Failing that, the pool grows as long as less than
/// `allow_in_flight` bytes are free but still in flight; beyond that, and when it cannot grow, the
/// stream waits for the oldest free range. So how much it grows follows from the order of calls,
/// never from timing. Memory goes back to the device in the destructor.
template <device Device, class Kind>
class pool final : public block_source<Device> {
 public:
  pool(Device& dev, const lanes<Device>& order, pool_limits limits, Kind kind = {})
      : dev_(&dev), order_(&order), limits_(limits), kind_(kind) {}
  ~pool() override {
    for (auto* region : regions_) kind_.deallocate(*dev_, region);
  }

  [[nodiscard]] bool take(std::size_t bytes, lane_id waiter, block& into, fence& ready) override {
    const auto joined = [&](const fence& until) { return order_->joined(waiter, until); };
    const auto need = Kind::rounded(bytes);
    ranges::place found;
    if (book_.free_bytes() >= need) {
      const bool may_wait =
          order_->capturing() || (book_.free_bytes() - need >= flying_ && flying_ != 0);
      found = book_.find(need, joined, may_wait);
    }
    if (!found) {
      const bool grown = grow(need);
      found = book_.find(need, joined, !grown);
    }
    if (found) book_.take(found, need, into, ready);
    return static_cast<bool>(found);
  }
  void release(const block& done, const fence& after) noexcept override {
    book_.release(done.index, after);
  }

  void release(const block& done, const ticket& after) noexcept {
    book_.release(done.index, after);
  }

  [[nodiscard]] std::size_t reserved() const override { return reserved_; }
  [[nodiscard]] std::size_t peak() const override { return reserved_; }
  [[nodiscard]] std::size_t budget() const override { return limits_.budget; }
  [[nodiscard]] std::size_t largest_free() const override { return book_.largest_free(); }
  [[nodiscard]] std::uint64_t allocations() const override { return regions_.size(); }
  void allow_in_flight(std::size_t bytes) override { flying_ = bytes; }
  /// What has a budget and is not in use at all is put together, so that every step finds the same
  /// regions. Without one it may grow, rather than wait for all that lay in a region.
  void coalesce() noexcept override {
    if (limits_.budget != 0) book_.join_if_unused();
  }

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
      if (need >= refused_) return false;  // nor did it grow when the step was run without capture
      throw misuse_error("capture: " + std::to_string(need) +
                         " bytes more would have to be allocated, which a graph cannot do; run the"
                         " same step once without capture first");
    }
    regions_.reserve(regions_.size() + 1);
    auto* region = kind_.try_allocate(*dev_, bytes);
    if (region == nullptr && bytes > need) {
      bytes = need;
      region = kind_.try_allocate(*dev_, bytes);
    }
    if (region == nullptr) {
      refused_ = std::min(refused_, need);
      return false;
    }
    regions_.push_back(region);
    reserved_ += bytes;
    book_.add_region(static_cast<std::byte*>(region), bytes);
    return true;
  }

  Device* dev_;
  const lanes<Device>* order_;
  pool_limits limits_;
  [[no_unique_address]] Kind kind_;
  std::vector<void*> regions_;
  std::size_t reserved_ = 0;
  std::size_t flying_ = 0;
  std::size_t refused_ = std::numeric_limits<std::size_t>::max();  // the least by the device
  ranges book_;
};

/// A pool's memory comes from the device.
struct on_device {
  static std::size_t rounded(std::size_t bytes) {
    const auto units = aligned(bytes) / block_alignment;
    const auto step = std::bit_floor(units) / 16;
    constexpr auto most = std::numeric_limits<std::size_t>::max() / block_alignment;
    if (step == 0 || units > most - step) return units * block_alignment;
    return (units + step - 1) / step * step * block_alignment;
  }
  template <device Device>
  static void* try_allocate(Device& dev, std::size_t bytes) {
    return dev.try_allocate(bytes);
  }
  template <device Device>
  static void deallocate(Device& dev, void* region) noexcept {
    dev.deallocate(region);
  }
};

template <device Device>
using device_pool = pool<Device, on_device>;

}  // namespace tidepool
