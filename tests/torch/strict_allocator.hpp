/// Memory for torch's tensors that forgives nothing.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "tidepool/torch.hpp"

namespace tidepool::test {

/// Torch's memory on the CPU. What is freed is overwritten, so that whoever reads it too late, or
/// writes to it, shows in the bits. Like a caching allocator it asks for memory back before it
/// grows, with its lock held.
class strict_allocator final : public c10::Allocator {
 public:
  [[nodiscard]] static strict_allocator& get() {
    static auto* const one = [] {
      auto* const made = new strict_allocator;
      c10::SetAllocator(c10::kCPU, made, 255);
      at::set_num_threads(1);
      return made;
    }();
    return *one;
  }

#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override { return make(bytes); }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
#else
  c10::DataPtr allocate(std::size_t bytes) const override { return make(bytes); }
#endif
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }

  std::size_t now = 0;
  std::size_t peak = 0;
  std::size_t most = 0;   ///< bytes beyond which it would grow; 0: never asks
  std::size_t asked = 0;  ///< times that it asked
  std::size_t given = 0;  ///< times that it was given something

 private:
  static constexpr std::size_t front = 256;
  std::recursive_mutex lock_;  // as that of torch's allocator for GPUs
  // Never returned to the heap: a copy that comes too late must hit nothing else. By powers of two,
  // so that sizes that change all the time do not each keep memory of their own.
  std::map<std::size_t, std::vector<std::byte*>> spare_;

  static std::size_t room_for(std::size_t bytes) { return std::bit_ceil(std::max(bytes, front)); }

  static c10::DataPtr make(std::size_t bytes) {
    auto& all = get();
    const std::lock_guard guard(all.lock_);
    if (all.most > 0 && all.now + bytes > all.most) {
      ++all.asked;
      if (detail::memory_lender::give_back_all()) ++all.given;
    }
    auto& spare = all.spare_[room_for(bytes)];
    if (spare.empty()) {
      spare.push_back(static_cast<std::byte*>(std::aligned_alloc(front, front + room_for(bytes))));
    }
    auto* const block = spare.back();
    spare.pop_back();
    std::memcpy(block, &bytes, sizeof bytes);
    all.now += bytes;
    all.peak = std::max(all.peak, all.now);
    auto* const data = block + front;
    std::memset(data, 0xFF, bytes);
    return {data, data, &drop, c10::Device(c10::kCPU)};
  }
  static void drop(void* data) {
    if (data == nullptr) return;
    auto* const block = static_cast<std::byte*>(data) - front;
    std::size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof bytes);
    auto& all = get();
    const std::lock_guard guard(all.lock_);
    all.now -= bytes;
    std::memset(data, 0xFF, bytes);
    all.spare_[room_for(bytes)].push_back(block);
  }
};

}  // namespace tidepool::test
