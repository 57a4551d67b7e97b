// The owner of borrowed memory, as a device that checks the order of accesses sees it.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "tidepool/device/device.hpp"
#include "tidepool/memory/memory_owner.hpp"

namespace tidepool::detail {

// Tells of borrowed memory when it goes back.
template <order_checking_device Device>
class watched_owner {
 public:
  watched_owner(Device& dev, const void* data, std::size_t bytes, typename Device::stream_ref home)
      : content_(std::make_unique<content>(content{&dev, data, bytes, home, {}})) {}

  void operator()() const noexcept {
    try {
      content_->dev->returned(content_->data, content_->bytes, content_->home);
    } catch (...) {  // no memory for the log: it is given back all the same
    }
    content_->owner.give_back();
  }
  [[nodiscard]] memory_owner& owner() { return content_->owner; }

 private:
  struct content {
    Device* dev;
    const void* data;
    std::size_t bytes;
    typename Device::stream_ref home;
    memory_owner owner;
  };
  std::unique_ptr<content> content_;
};

}  // namespace tidepool::detail
