/// A device's two allocators, as memory sources ask for them.
#pragma once

#include <cstddef>
#include <limits>

#include "tidepool/core/page_allocator.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0 {

/// Memory of the device itself.
template <device Device>
class device_allocator final : public page_allocator {
 public:
  /// Memory of `dev`, which must outlive this object.
  explicit device_allocator(Device& dev) : dev_(&dev) {}

  [[nodiscard]] void* try_allocate(std::size_t bytes) override { return dev_->try_allocate(bytes); }
  void deallocate(void* pages) noexcept override { dev_->deallocate(pages); }
  [[nodiscard]] std::size_t free_bytes() const override { return dev_->memory().free; }

 private:
  Device* dev_;
};

/// Host memory that its copy engines reach, in the kind asked for where it has several.
template <device Device>
class host_allocator final : public page_allocator {
 public:
  /// Host memory of the kind `how`, for `dev`, which must outlive this object.
  explicit host_allocator(Device& dev, const host_memory& how = {}) : dev_(&dev), how_(how) {}

  [[nodiscard]] void* try_allocate(std::size_t bytes) override {
    if constexpr (requires { dev_->try_allocate_host(bytes, how_); }) {
      return dev_->try_allocate_host(bytes, how_);
    } else {
      return dev_->try_allocate_host(bytes);
    }
  }
  void deallocate(void* pages) noexcept override { dev_->deallocate_host(pages); }
  /// Nobody asks: what the host has is limited by a budget.
  [[nodiscard]] std::size_t free_bytes() const override { return 0; }

 private:
  Device* dev_;
  host_memory how_;
};

/// Memory of a neighbour. What it refused once is not asked for again, since asking takes long.
template <peer_device Device>
class peer_allocator final : public page_allocator {
 public:
  /// Memory of the neighbour `peer` of `dev`, which must outlive this object.
  peer_allocator(Device& dev, int peer) : dev_(&dev), peer_(peer) {}

  [[nodiscard]] void* try_allocate(std::size_t bytes) override {
    if (bytes >= refused_) return nullptr;
    auto* const pages = dev_->try_allocate_peer(peer_, bytes);
    if (pages == nullptr) refused_ = bytes;
    return pages;
  }
  void deallocate(void* pages) noexcept override { dev_->deallocate_peer(peer_, pages); }
  /// Nobody asks: what is taken of a neighbour is limited by a budget.
  [[nodiscard]] std::size_t free_bytes() const override { return 0; }

 private:
  Device* dev_;
  int peer_;
  std::size_t refused_ = std::numeric_limits<std::size_t>::max();  // the least
};

}  // namespace tidepool
