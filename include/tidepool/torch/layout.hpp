/// The place of a tensor in its storage: sizes, strides, and the range of its bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/DimVector.h>

#include <cstddef>
#include <cstdint>

#include "tidepool/torch/version.hpp"

namespace tidepool::inline v0_3_0::detail {

[[nodiscard]] inline bool is_as_long(const c10::Storage& storage, std::size_t bytes) {
  return bytes_of(storage) != nullptr && bytes <= storage.nbytes();
}

// The sizes and strides of a tensor, and its byte range in its storage.
struct torch_layout {
  c10::DimVector sizes;
  c10::DimVector strides;
  std::size_t first = 0;  // its first byte in the storage
  std::size_t last = 0;   // end of its byte range
  c10::TensorOptions options;

  explicit torch_layout(const at::Tensor& of)
      : sizes(of.sizes().begin(), of.sizes().end()),
        strides(of.strides().begin(), of.strides().end()),
        options(of.options().requires_grad(false)) {
    const auto width = of.element_size();
    std::int64_t reach = 1;
    for (std::size_t d = 0; d < sizes.size(); ++d) reach += (sizes[d] - 1) * strides[d];
    first = static_cast<std::size_t>(of.storage_offset()) * width;
    last = first + static_cast<std::size_t>(reach) * width;
  }

  [[nodiscard]] bool same_as(const torch_layout& other) const {
    return first == other.first && sizes == other.sizes && strides == other.strides &&
           options.dtype() == other.options.dtype();
  }
  [[nodiscard]] std::size_t width() const { return options.dtype().itemsize(); }
  [[nodiscard]] bool bfloat16() const { return options.dtype() == c10::kBFloat16; }

  // True if the storage holds the whole tensor. `in` would silently enlarge a shorter one, without
  // contents.
  [[nodiscard]] bool lies_in(const c10::Storage& storage) const {
    return is_as_long(storage, last);
  }
  // The tensor, in a storage that torch still owns.
  [[nodiscard]] at::Tensor in(const c10::Storage& storage) const {
    return at::empty({0}, options)
        .set_(storage, static_cast<std::int64_t>(first / width()), sizes, strides);
  }
  // The tensor, in a storage that begins at `begin`; `done(context)` is called when it is freed.
  [[nodiscard]] at::Tensor at_address(std::byte* begin, void* context,
                                      c10::DeleterFnPtr done) const {
    return at::for_blob(begin + first, sizes)
        .strides(strides)
        .context(context, done)
        .options(options)
        .target_device(options.device())
        .make_tensor();
  }
};

}  // namespace tidepool::detail
