/// Autocast to bfloat16 while it is open, by either name that libtorch has had for it.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/version.h>

namespace gpt {

class autocast {
 public:
  explicit autocast(bool gpu) : gpu_(gpu) { set(true); }
  autocast(const autocast&) = delete;
  autocast& operator=(const autocast&) = delete;
  ~autocast() {
    at::autocast::clear_cache();  // its copies of weights
    set(false);
  }

 private:
  void set(bool on) const {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
    const auto type = gpu_ ? at::kCUDA : at::kCPU;
    at::autocast::set_autocast_dtype(type, at::kBFloat16);
    at::autocast::set_autocast_enabled(type, on);
#else
    if (gpu_) {
      at::autocast::set_autocast_gpu_dtype(at::kBFloat16);
      at::autocast::set_enabled(on);
    } else {
      at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
      at::autocast::set_cpu_enabled(on);
    }
#endif
  }
  bool gpu_;
};

}  // namespace gpt
