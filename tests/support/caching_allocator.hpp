/// A trainer's own allocator, as frameworks have them: it knows one stream and no fences.
#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <vector>

#include "tidepool/device/virtual.hpp"

namespace tidepool::test {

/// Hands out memory that `home` may use at once, the block that came back last first. What comes
/// back is overwritten by work on `home`, so that whoever still uses it reads or leaves rubbish.
template <class Device>
class caching_allocator {
 public:
  caching_allocator(Device& dev, typename Device::stream_ref home) : dev_(&dev), home_(home) {}
  caching_allocator(const caching_allocator&) = delete;
  caching_allocator& operator=(const caching_allocator&) = delete;
  ~caching_allocator() {
    dev_->synchronize();
    for (auto* each : all_) dev_->deallocate(each);
  }

  /// Null beyond `most` bytes in use.
  [[nodiscard]] void* take(std::size_t bytes) {
    if (in_use_ + bytes > most) return nullptr;
    auto& free = free_[bytes];
    if (free.empty()) {
      free.push_back(dev_->allocate(bytes));
      all_.push_back(free.back());
      sizes_[free.back()] = bytes;
    }
    auto* const data = free.back();
    free.pop_back();
    in_use_ += bytes;
    if (in_use_ > peak_) peak_ = in_use_;
    return data;
  }
  void give(void* data) {
    const auto bytes = sizes_.at(data);
    if (overwrites) {
      dev_->launch(home_, 700, [=] { std::memset(data, 0x5A, bytes); }, "reused",
                   {{data, bytes, true}});
    }
    in_use_ -= bytes;
    free_[bytes].push_back(data);
    ++given_;
  }

  bool overwrites = true;  ///< what comes back
  std::size_t most = static_cast<std::size_t>(-1);
  [[nodiscard]] std::size_t in_use() const { return in_use_; }
  [[nodiscard]] std::size_t peak() const { return peak_; }
  [[nodiscard]] std::size_t given() const { return given_; }  ///< times

 private:
  Device* dev_;
  typename Device::stream_ref home_;
  std::map<std::size_t, std::vector<void*>> free_;
  std::map<void*, std::size_t> sizes_;
  std::vector<void*> all_;
  std::size_t in_use_ = 0;
  std::size_t peak_ = 0;
  std::size_t given_ = 0;
};

}  // namespace tidepool::test
