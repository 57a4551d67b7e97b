/// Differences between the versions of libtorch that the adapter supports, and their undocumented
/// parts that it reads.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <torch/version.h>

#include <cstddef>
#include <cstdint>

// Since 1.13 an autograd engine may supply the hooks for saved tensors without Python.
#if TORCH_VERSION_MAJOR < 1 || (TORCH_VERSION_MAJOR == 1 && TORCH_VERSION_MINOR < 13)
#error "tidepool/torch.hpp needs libtorch 1.13 or later"
#endif

namespace tidepool::inline v0_3_0::detail {

// `Storage::data` is `void*` in 1.13 and `const void*` later.
[[nodiscard]] inline std::byte* bytes_of(const c10::Storage& storage) {
  const void* data = storage.data();
  return static_cast<std::byte*>(const_cast<void*>(data));
}

// Tells if a tensor was written to in place since; tensors that share its counter count as it.
class tensor_version {
 public:
  tensor_version() = default;
  explicit tensor_version(const at::Tensor& of)
      : counter_(of.unsafeGetTensorImpl()->version_counter()), at_(now()) {}

  [[nodiscard]] bool changed() const { return now() != at_; }
  [[nodiscard]] std::uint32_t then() const { return at_; }
  [[nodiscard]] std::uint32_t now() const {
    return counter_.enabled() ? static_cast<std::uint32_t>(counter_.current_version()) : 0;
  }

 private:
  c10::VariableVersion counter_;
  std::uint32_t at_ = 0;
};

}  // namespace tidepool::detail
