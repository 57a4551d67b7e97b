/// Memory that the trainer itself keeps from start to end: weights, workspaces, staging.
#pragma once

#include <cstddef>
#include <string>
#include <tidepool/error.hpp>
#include <utility>

#include "config.hpp"

namespace moe {

/// Which side of the link an array lies on.
enum class side { device, host };

/// A fixed array on the device or in pinned host memory.
template <class Device, class T, side Side = side::device>
class device_array {
 public:
  /// `what` names the array in the message when the memory is exhausted.
  device_array(Device& dev, index count, const std::string& what) : dev_(&dev), count_(count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    void* memory = Side == side::device ? dev.try_allocate(bytes) : dev.try_allocate_host(bytes);
    if (memory == nullptr) {
      throw tidepool::out_of_budget(what + ": " + tidepool::detail::text::size_text(bytes) +
                                        " do not fit the " +
                                        (Side == side::device ? "device" : "host") +
                                        "; choose a smaller --preset, --layers or --hidden",
                                    bytes, dev.memory().free);
    }
    data_ = static_cast<T*>(memory);
  }
  device_array(device_array&& other) noexcept
      : dev_(other.dev_), data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  device_array& operator=(device_array&&) = delete;
  ~device_array() {
    if (data_ == nullptr) return;
    if constexpr (Side == side::device) {
      dev_->deallocate(data_);
    } else {
      dev_->deallocate_host(data_);
    }
  }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] index size() const { return count_; }

 private:
  Device* dev_;
  T* data_ = nullptr;
  index count_;
};

}  // namespace moe
