/// What the CPU kernels share: how to enqueue one on the virtual device, and its modelled duration.
#pragma once

#include <algorithm>
#include <cstddef>
#include <tidepool/device/virtual.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "../kernels.hpp"

namespace moe {

/// Base of the CPU kernels, which come in layers: this, `cpu_numbers`, `cpu_dense`, `cpu_routing`
/// and `cpu_kernels`.
class cpu_launcher {
 public:
  using device = tidepool::virtual_device;
  using stream_ref = device::stream_ref;

  cpu_launcher(device& dev, stream_ref stream, const accelerator& speed)
      : device_(dev), stream_(stream), speed_(speed) {}

 protected:
  [[nodiscard]] stream_ref stream() const { return stream_; }
  /// Enqueues `fn` for as long as its arithmetic or its floats moved take, whichever is more.
  template <class Function>
  void launch(const char* name, index flops, index floats, Function fn) {
    const double compute = static_cast<double>(flops) / speed_.flops;
    const double memory = static_cast<double>(floats) * sizeof(float) / speed_.bandwidth;
    const double ns = 1e9 * std::max(compute, memory);
    device_.launch(stream_, std::max(ns, speed_.launch_ns), std::move(fn), name);
  }

  /// In the unit of `launch`.
  static index floats_in(const_operand x, index count) { return count * bytes_of(x.type) / 4; }

  static float* reserve(std::vector<float>& memory, index count) {
    if (memory.size() < static_cast<std::size_t>(count)) {
      memory.resize(static_cast<std::size_t>(count));
    }
    return memory.data();
  }
  /// What the loops of an operation read: the numbers themselves, or in `memory` as floats.
  static const float* floats_of(const_operand x, index count, std::vector<float>& memory) {
    if (x.type == number_type::fp32) return x.as<float>();
    const auto floats = reserve(memory, count);
    with_elements(x, [&](const auto* from) {
      for (index i = 0; i < count; ++i) floats[i] = static_cast<float>(from[i]);
    });
    return floats;
  }
  /// What they write, before `store`.
  static float* floats_for(operand y, index count, std::vector<float>& memory) {
    return y.type == number_type::fp32 ? y.as<float>() : reserve(memory, count);
  }
  static void store(operand y, const float* floats, index count) {
    with_elements(y, [&]<class T>(T* to) {
      if constexpr (!std::is_same_v<T, float>) {
        for (index i = 0; i < count; ++i) to[i] = T(floats[i]);
      }
    });
  }

  static void accumulate(float* sum, const float* x, index count) {
    for (index i = 0; i < count; ++i) sum[i] += x[i];
  }
  static float dot(const float* a, const float* b, index count) {
    float sum = 0;
    for (index i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
  }

 private:
  device& device_;
  stream_ref stream_;
  accelerator speed_;
};

}  // namespace moe
