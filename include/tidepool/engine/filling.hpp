// Fills memory between its users: with the poison of a device, with the poison of `--poison`, or
// with zeros.
#pragma once

#include <optional>
#include <string>

#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/lanes.hpp"

namespace tidepool::inline v0_3_0::detail {

class filling {
 public:
  filling(hardware& dev, lanes& order, bool poison) : dev_(&dev), order_(&order), poison_(poison) {}

  // Tells a device that checks the order of accesses that this memory must not be touched any more.
  void gave_back(const block& memory, lane_id on) noexcept {
    try {
      if (dev_->can().checks_order) dev_->gave_back(memory.data, memory.bytes, on);
    } catch (...) {  // without memory for the device's log a wrong use is not found
    }
  }
  // Like `handed_out` of a storage, for memory that holds a packed tensor on its way.
  void handed_out(const block& memory, lane_id on) {
    if (dev_->can().poisons) dev_->poison(memory.data, memory.bytes, on);
  }
  // True if released memory is filled as well.
  [[nodiscard]] bool poisons() const { return poison_; }

  // Poisons memory that was handed out, so that a missing join shows in the data. A device with a
  // `poison` of its own fills the memory itself.
  void handed_out(storage& store, lane_id on) {
    store.is.filled = false;
    if (store.bytes == 0) return;
    if (dev_->can().poisons) {
      store.is.filled = dev_->poison(store.here.memory.data, store.here.memory.bytes, on);
    }
    if (!poison_ || store.is.filled || !dev_->can().fills) return;
    dev_->fill_bytes(store.here.memory.data, poison_byte, store.here.memory.bytes, on);
    store.is.filled = true;
  }

  // Fills released memory behind its last users, and returns the fence behind which it is free. If
  // the fill fails, the memory stays unfilled. If the memory was filled and no event could be
  // recorded, the result is empty.
  [[nodiscard, gnu::cold]] std::optional<fence> given_back(storage& store, const fence& after,
                                                           lane_id on) noexcept {
    const auto behind = fill_given_back(store, after, on);
    gave_back(store.here.memory, on);
    return behind;
  }

  // Fills memory with zeros for new contents, behind the joins that `waiter` made for the memory.
  void zero(storage& store, lane_id waiter) {
    if (store.bytes == 0) return;
    if (!dev_->can().fills) {
      throw misuse_error("allocate: fill::zero asks the device for fill_bytes, which " +
                         std::string(dev_->name()) + " does not have; zero the memory by a kernel");
    }
    dev_->fill_bytes(store.here.memory.data, 0, store.bytes, waiter);
    store.is.filled = true;
  }

  // Records a position behind the fill of memory that was not used since. The fill comes after all
  // records of its lane, but another lane may release the memory and needs a position to wait for.
  void note(const storage& store) {
    if (!store.is.filled || order_->next(store.handed.to) > store.handed.at) return;
    if (outside_capture(store.handed.to)) return;
    static_cast<void>(order_->record(store.handed.to));
  }

 private:
  std::optional<fence> fill_given_back(storage& store, const fence& after, lane_id on) noexcept {
    bool filled = false;
    try {
      if (!dev_->can().fills || outside_capture(on)) return after;
      order_->join(on, after, join_site::device_reuse);
      dev_->fill_bytes(store.here.memory.data, poison_byte, store.here.memory.bytes, on);
      filled = true;
      return order_->record(on);
    } catch (const error&) {
      if (filled) return std::nullopt;
    }
    return after;
  }

  // True if a capture is under way and `lane` takes no part in it. Work on that lane comes before
  // each launch.
  [[nodiscard]] bool outside_capture(lane_id lane) const {
    return order_->capturing() && !dev_->capturing(lane);
  }

  static constexpr unsigned char poison_byte = 0xFF;  // floats full of it are not numbers

  hardware* dev_;
  lanes* order_;
  bool poison_;
};

}  // namespace tidepool::detail
