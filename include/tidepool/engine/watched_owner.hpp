// The owner of borrowed memory, as a device that checks the order of accesses sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "tidepool/device/hardware.hpp"
#include "tidepool/memory/borrowed.hpp"
#include "tidepool/memory/memory_owner.hpp"

namespace tidepool::inline v0_3_0::detail {

// Tells of borrowed memory when it comes and when it goes back.
class watched_owner {
 public:
  watched_owner(hardware& dev, const void* data, std::size_t bytes, lane_id home)
      : content_(std::make_unique<content>(content{&dev, data, bytes, home, {}})) {
    dev.borrows(data, bytes);
  }

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
    hardware* dev;
    const void* data;
    std::size_t bytes;
    lane_id home;
    memory_owner owner;
  };
  std::unique_ptr<content> content_;
};

// Puts `owner` among those of borrowed memory, watched on a device that checks. Where it throws,
// `owner` is as before.
[[nodiscard]] inline std::uint32_t hold_borrowed(hardware& dev, borrowed_memory& in,
                                                 memory_owner& owner, void* data, std::size_t bytes,
                                                 lane_id home) {
  if (!dev.can().checks_order) return in.hold(owner, home, bytes);
  watched_owner watched(dev, data, bytes, home);
  auto& inner = watched.owner();
  inner = std::move(owner);
  memory_owner outer(std::move(watched));
  try {
    return in.hold(outer, home, bytes);
  } catch (...) {
    owner = std::move(inner);
    throw;
  }
}

}  // namespace tidepool::detail
