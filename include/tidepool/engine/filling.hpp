// What memory holds between its users: the poison of a device that checks, `--poison`, zeros.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/lanes.hpp"

namespace tidepool::inline v0_2_0::detail {

class filling {
 public:
  filling(hardware& dev, lanes& order, bool poison) : dev_(&dev), order_(&order), poison_(poison) {}

  // Tells a device that checks the order of accesses that nobody is to touch this any more.
  void gave_back(const storage& store, lane_id on) noexcept {
    try {
      dev_->gave_back(store.on_device.data, store.on_device.bytes, on);
    } catch (...) {  // no memory for its log: a use of it is not found
    }
  }
  // Whether what is given back is filled as well.
  [[nodiscard]] bool poisons() const { return poison_; }

  // Memory that was handed out. A device that checks fills it in its own way, so that a missing
  // join shows in the data.
  void handed_out(storage& store, lane_id on) {
    store.filled = false;
    if (store.bytes == 0) return;
    if (dev_->can().poisons) {
      store.filled = dev_->poison(store.on_device.data, store.on_device.bytes, on);
    }
    if (!poison_ || store.filled || !dev_->can().fills) return;
    dev_->fill_bytes(store.on_device.data, poison_byte, store.on_device.bytes, on);
    store.filled = true;
  }

  // Fills memory that is given back, behind its last users, and says behind what it is free. Where
  // that fails it goes unfilled; where it was filled and nothing can tell when, there is no such
  // fence.
  [[nodiscard, gnu::cold]] std::optional<fence> given_back(storage& store, const fence& after,
                                                           lane_id on) noexcept {
    const auto behind = fill_given_back(store, after, on);
    if (dev_->can().checks_order) gave_back(store, on);
    return behind;
  }

  // Zeros for new contents, behind what `waiter` was made to wait for when it got the memory.
  void zero(storage& store, lane_id waiter) {
    if (store.bytes == 0) return;
    if (!dev_->can().fills) {
      throw misuse_error("allocate: fill::zero asks the device for fill_bytes, which " +
                         std::string(dev_->name()) + " does not have; zero the memory by a kernel");
    }
    dev_->fill_bytes(store.on_device.data, 0, store.bytes, waiter);
    store.filled = true;
  }

  // Memory that nobody touched is filled all the same, behind all that its lane has recorded: a
  // position there stands for it, where another lane gives the memory back.
  void note(const storage& store) {
    if (!store.filled || order_->next(store.handed_to) > store.handed_at) return;
    if (outside_capture(store.handed_to)) return;
    static_cast<void>(order_->record(store.handed_to));
  }

 private:
  std::optional<fence> fill_given_back(storage& store, const fence& after, lane_id on) noexcept {
    bool filled = false;
    try {
      if (!dev_->can().fills || outside_capture(on)) return after;
      order_->join(on, after, join_site::device_reuse);
      dev_->fill_bytes(store.on_device.data, poison_byte, store.on_device.bytes, on);
      filled = true;
      return order_->record(on);
    } catch (const error&) {
      if (filled) return std::nullopt;
    }
    return after;
  }

  // What is given to a lane that has no part in a capture comes before each launch of it.
  [[nodiscard]] bool outside_capture(lane_id lane) const {
    return order_->capturing() && !dev_->capturing(lane);
  }

  static constexpr unsigned char poison_byte = 0xFF;  // floats full of it are not numbers

  hardware* dev_;
  lanes* order_;
  bool poison_;
};

}  // namespace tidepool::detail
