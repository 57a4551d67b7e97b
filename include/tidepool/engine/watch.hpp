// What the engine tells a device that checks the order of accesses. Any other device is told
// nothing, and nothing of it is compiled.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "tidepool/device/device.hpp"
#include "tidepool/memory/memory_owner.hpp"

namespace tidepool::detail {

// What follows is about a group, as long as the result lives.
template <device Device>
[[nodiscard]] auto about([[maybe_unused]] Device& dev, [[maybe_unused]] const std::string& module,
                         [[maybe_unused]] int layer, [[maybe_unused]] int microbatch) {
  if constexpr (order_checking_device<Device>) {
    return dev.at(module, layer, microbatch);
  } else {
    struct nothing {
      ~nothing() {}  // NOLINT(modernize-use-equals-default): so that it counts as used
    };
    return nothing{};
  }
}

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
