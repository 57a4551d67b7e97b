/// What the tests over libtorch share: an allocator that forgives nothing, and a small training.
#pragma once

#include <torch/torch.h>
// Torch has macros of these names, and doctest's must be the last.
#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "tidepool/device/virtual.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/plan.hpp"
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
  // Never returned to the heap: a copy that comes too late must hit nothing else.
  std::map<std::size_t, std::vector<std::byte*>> spare_;

  static c10::DataPtr make(std::size_t bytes) {
    auto& all = get();
    const std::lock_guard guard(all.lock_);
    if (all.most > 0 && all.now + bytes > all.most) {
      ++all.asked;
      if (detail::memory_lender::give_back_all()) ++all.given;
    }
    auto& spare = all.spare_[(bytes + front - 1) / front];
    if (spare.empty()) {
      spare.push_back(static_cast<std::byte*>(
          std::aligned_alloc(front, front + (bytes + front - 1) / front * front)));
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
    all.spare_[(bytes + front - 1) / front].push_back(block);
  }
};

/// A hash of bits.
class bit_sum {
 public:
  void add(const at::Tensor& tensor) {
    const auto dense = tensor.detach().contiguous();
    const auto* const bytes = static_cast<const unsigned char*>(dense.data_ptr());
    for (std::size_t i = 0; i < dense.nbytes(); ++i) value_ = (value_ ^ bytes[i]) * 1099511628211U;
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037U;
};

inline options small_torch_options(std::string_view more = {}) {
  auto opts = parse_options(
      "--offload-modules=all --own-modules=fc1,act,fc2 --no-margin"
      " --min-tensor-elements=1 --host-step=1MiB");
  return parse_options(more, opts);
}

/// A device whose operations come in an order of their own, an offloader over it, and a pass.
struct torch_desk {
  using device = virtual_device;
  using offloader = torch_offloader<device>;
  using pass = offloader::pass;

  explicit torch_desk(std::uint64_t seed = 0, const options& opts = small_torch_options(),
                      std::optional<join_site> without = {})
      : dev(machine{.poison = true, .order_seed = seed}) {
    static_cast<void>(strict_allocator::get());
    if (without) dev.leave_out(*without);
    off.emplace(dev, opts, torch_parts{.planner = planner()});
    off->engine().on_report([](std::string_view) {});
  }

  /// Bytes that have left so far.
  [[nodiscard]] std::size_t bytes_out() const {
    std::size_t sum = 0;
    for (const auto& each : off->counters().modules) sum += each.bytes_offloaded;
    return sum;
  }
  [[nodiscard]] std::size_t bytes_in() const {
    std::size_t sum = 0;
    for (const auto& each : off->counters().modules) sum += each.bytes_reloaded;
    return sum;
  }

  device dev;
  std::optional<offloader> off;
};

}  // namespace tidepool::test
