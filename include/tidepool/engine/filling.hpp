// What memory holds between its users: the poison of a device that checks, `--poison`, zeros.
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>

#include "tidepool/engine/storage.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/lanes.hpp"

namespace tidepool::inline v0_2_0::detail {

template <device Device>
class filling {
 public:
  using stream_ref = typename Device::stream_ref;

  // A device that checks fills what it hands out, so that a missing join shows in the data.
  static constexpr bool fills = requires(Device & dev, void* data, stream_ref on) {
    { dev.poison(data, std::size_t{}, on) } -> std::same_as<bool>;
  };

  filling(Device& dev, lanes<Device>& order, bool poison)
      : dev_(&dev), order_(&order), poison_(poison) {}

  // Tells a device that checks the order of accesses that nobody is to touch this any more.
  void gave_back(const storage& store, lane_id on) noexcept {
    try {
      dev_->gave_back(store.on_device.data, store.on_device.bytes, order_->stream(on));
    } catch (...) {  // no memory for its log: a use of it is not found
    }
  }
  // Whether what is given back is filled as well.
  [[nodiscard]] bool poisons() const { return poison_; }

  // Memory that was handed out.
  void handed_out(storage& store, lane_id on) {
    store.filled = false;
    if (store.bytes == 0) return;
    if constexpr (fills) {
      store.filled = dev_->poison(store.on_device.data, store.on_device.bytes, order_->stream(on));
    }
    if constexpr (filling_device<Device>) {
      if (!poison_ || store.filled) return;
      dev_->fill_bytes(store.on_device.data, poison_byte, store.on_device.bytes,
                       order_->stream(on));
      store.filled = true;
    }
  }

  // Fills memory that is given back, behind its last users, and says behind what it is free. Where
  // that fails it goes unfilled; where it was filled and nothing can tell when, there is no such
  // fence.
  [[nodiscard, gnu::cold]] std::optional<fence> given_back(storage& store, const fence& after,
                                                           lane_id on) noexcept {
    const auto behind = fill_given_back(store, after, on);
    if constexpr (order_checking_device<Device>) gave_back(store, on);
    return behind;
  }

  // Zeros for new contents, behind what `waiter` was made to wait for when it got the memory.
  void zero(storage& store, lane_id waiter) {
    if (store.bytes == 0) return;
    if constexpr (filling_device<Device>) {
      dev_->fill_bytes(store.on_device.data, 0, store.bytes, order_->stream(waiter));
      store.filled = true;
    } else {
      throw misuse_error("allocate: fill::zero asks the device for fill_bytes, which " +
                         std::string(Device::name) + " does not have; zero the memory by a kernel");
    }
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
    if constexpr (filling_device<Device>) {
      bool filled = false;
      try {
        if (outside_capture(on)) return after;
        order_->join(on, after, join_site::device_reuse);
        dev_->fill_bytes(store.on_device.data, poison_byte, store.on_device.bytes,
                         order_->stream(on));
        filled = true;
        return order_->record(on);
      } catch (const error&) {
        if (filled) return std::nullopt;
      }
    }
    return after;
  }

  // What is given to a lane that has no part in a capture comes before each launch of it.
  [[nodiscard]] bool outside_capture(lane_id lane) const {
    if constexpr (capturing_device<Device>) {
      return order_->capturing() && !dev_->capturing(order_->stream(lane));
    } else {
      return false;
    }
  }

  static constexpr unsigned char poison_byte = 0xFF;  // floats full of it are not numbers

  Device* dev_;
  lanes<Device>* order_;
  bool poison_;
};

}  // namespace tidepool::detail
