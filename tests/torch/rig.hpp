/// What the tests over libtorch share: an offloader over a device with orders of its own.
#pragma once

#include "strict_allocator.hpp"
// Torch has macros of these names, and doctest's must be the last.
#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tidepool/device/virtual.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/torch.hpp"

namespace tidepool::test {

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
