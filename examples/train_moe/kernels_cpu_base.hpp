/// What the CPU kernels share: how to enqueue one on the virtual device, and its modelled duration.
#pragma once

#include <algorithm>
#include <tidepool/device/virtual.hpp>
#include <utility>

#include "kernels.hpp"

namespace moe {

/// Base of the CPU kernels, which come in three layers: this, `cpu_dense` and `cpu_kernels`.
class cpu_launcher {
 public:
  using device = tidepool::virtual_device;
  using stream_ref = device::stream_ref;

  cpu_launcher(device& dev, stream_ref stream, const accelerator& speed)
      : device_(dev), stream_(stream), speed_(speed) {}

 protected:
  /// Enqueues `fn` for as long as its arithmetic or its floats moved take, whichever is more.
  template <class Function>
  void launch(const char* name, index flops, index floats, Function fn) {
    const double compute = static_cast<double>(flops) / speed_.flops;
    const double memory = static_cast<double>(floats) * sizeof(float) / speed_.bandwidth;
    const double ns = 1e9 * std::max(compute, memory);
    device_.launch(stream_, std::max(ns, speed_.launch_ns), std::move(fn), name);
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
