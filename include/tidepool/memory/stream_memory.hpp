/// A trainer's own allocator as the memory of an offloader.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "tidepool/core/block.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/borrowed.hpp"
#include "tidepool/memory/lane_of.hpp"
#include "tidepool/memory/lanes.hpp"

namespace tidepool::inline v0_3_0 {

/// A `block_source` over an allocator that works in the order of one stream, as a caching allocator
/// does: what it hands out may be used by that stream at once, and what comes back it may hand out
/// to that stream again at once. See `memory_on`.
template <device Device, class Allocate, class Deallocate>
class stream_memory final : public block_source {
 public:
  /// `allocate` returns null when it has none; both are called in the order of `home`.
  stream_memory(typename Device::stream_ref home, Allocate allocate, Deallocate deallocate)
      : stream_(home), allocate_(std::move(allocate)), deallocate_(std::move(deallocate)) {}

  void attach(clocks& order, borrowed_memory& borrowed) override {
    order_ = &order;
    borrowed_ = &borrowed;
    home_ = lane_of<Device>(order, stream_);
  }
  [[nodiscard]] bool gives_back() const override { return true; }

  [[nodiscard]] bool take(std::size_t bytes, lane_id waiter, block& into, fence& ready) override {
    const auto need = aligned(bytes);
    if constexpr (capturing_device<Device>) {  // its event would be of a graph of somebody else's
      if (device_of_order().capturing(stream_)) {
        throw misuse_error(
            "memory_on: the stream of this memory is being captured, and nothing else may wait for"
            " it then; restore and allocate before the capture, or behind it");
      }
    }
    void* const data = allocate_(need);
    if (data == nullptr) return false;
    held_ += need;
    peak_ = std::max(peak_, held_);
    ++allocations_;
    memory_owner owner([this, data, need] { give(data, need); });
    const auto number = borrowed_->hold(owner, home_, need);
    try {  // behind what the allocator itself has given to its stream
      if (waiter != home_) ready = order_->record(home_);
    } catch (...) {
      borrowed_->release(number, {});
      throw;
    }
    into = {data, need, number};
    return true;
  }
  /// The memory goes back once `home` has joined `after`.
  void release(const block& done, const fence& after) noexcept override {
    borrowed_->release(done.index, after);
  }

  [[nodiscard]] std::size_t reserved() const override { return held_; }
  /// The most bytes ever held.
  [[nodiscard]] std::size_t peak() const override { return peak_; }
  [[nodiscard]] std::size_t budget() const override { return 0; }
  /// Not known: the allocator has to be asked.
  [[nodiscard]] std::size_t largest_free() const override {
    return std::numeric_limits<std::size_t>::max();
  }
  [[nodiscard]] std::uint64_t allocations() const override { return allocations_; }

 private:
  void give(void* data, std::size_t bytes) {
    held_ -= bytes;
    if constexpr (order_checking_device<Device>) {
      device_of_order().returned(data, bytes, stream_);
    }
    if constexpr (std::invocable<Deallocate&, void*, std::size_t>) {
      deallocate_(data, bytes);
    } else {
      deallocate_(data);
    }
  }

  [[nodiscard]] Device& device_of_order() const {
    return detail::hardware_in<Device>(static_cast<lanes&>(*order_)).device();
  }

  typename Device::stream_ref stream_;
  Allocate allocate_;
  Deallocate deallocate_;
  clocks* order_ = nullptr;
  borrowed_memory* borrowed_ = nullptr;
  lane_id home_{};
  std::size_t held_ = 0;
  std::size_t peak_ = 0;
  std::uint64_t allocations_ = 0;
};

/// Memory from a trainer's allocator that works in the order of `home`, for `parts::memory`:
/// `allocate(bytes)` returns null where there is none, `deallocate(pointer)`, or
/// `deallocate(pointer, bytes)`, must not throw. Both must outlive the offloader and its handles,
/// and neither may block the host if commits and restores are not to.
///
/// Other streams wait for what `home` was given before they use what was allocated, and memory is
/// deallocated once `home` has joined every use of it. Stream captures are refused.
///
///     tp::offloader<device> off(dev, opts,
///                               {.memory = tp::memory_on<device>(stream, allocate, deallocate)});
template <device Device, class Allocate, class Deallocate>
[[nodiscard]] std::unique_ptr<block_source> memory_on(typename Device::stream_ref home,
                                                      Allocate allocate, Deallocate deallocate) {
  return std::make_unique<stream_memory<Device, Allocate, Deallocate>>(home, std::move(allocate),
                                                                       std::move(deallocate));
}

}  // namespace tidepool
