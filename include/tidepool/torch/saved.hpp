/// A storage that autograd saved, and the tensors in it, which come back with their old sizes,
/// strides and values.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/DimVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tidepool/buffer.hpp"
#include "tidepool/core/block.hpp"
#include "tidepool/torch/version.hpp"
#include "tidepool/torch/watch.hpp"

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

// True if the tensor is fully described by its layout and its bytes in memory, so that a copy of
// the bytes suffices.
[[nodiscard]] inline bool is_plain(const at::Tensor& tensor, const c10::Device& device) {
  return tensor.layout() == c10::kStrided && tensor.device() == device && tensor.numel() > 0 &&
         tensor.has_storage() && !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor.has_names() && !tensor._is_zerotensor() && bytes_of(tensor.storage()) != nullptr;
}

// A storage, or the part of it that tensors of one module were saved from. The part is copied once
// for all of them.
template <device Device>
struct torch_saved {
  using stream_ref = typename Device::stream_ref;

  // A use by another stream than the one that restored the storage.
  struct other_use {
    buffer<Device> handle;
    stream_ref stream;
  };

  c10::Storage storage;                                // until its module's scope ends
  c10::weak_intrusive_ptr<c10::StorageImpl> identity;  // keeps its address from being reused
  std::shared_ptr<torch_watch> watch;                  // set when the scope ends
  tensor_version version;
  std::size_t first = std::numeric_limits<std::size_t>::max();
  std::size_t last = 0;
  std::size_t width = 1;  // bytes of the smallest element type saved from it
  bool bfloat16 = false;  // a tensor of BF16 numbers was saved from it
  buffer<Device> handle;
  std::vector<other_use> others;
  std::uint32_t group = 0;
  std::uint32_t references = 0;  // saved tensors, and tensors in use again
  bool told = false;             // a device that checks orders was told that the memory was taken

  torch_saved(const at::Tensor& of, std::uint32_t in_group)
      : storage(of.storage()),
        identity(of.storage().getWeakStorageImpl()),
        version(of),
        width(of.element_size()),
        group(in_group) {}

  [[nodiscard]] bool covers(const torch_layout& part) const {
    return part.first >= first && part.last <= last;
  }
  void widen(const torch_layout& part) {
    first = std::min(first, part.first / block_alignment * block_alignment);
    last = std::max(last, part.last);
    width = std::min(width, part.width());
    bfloat16 = bfloat16 || part.bfloat16();
  }
  [[nodiscard]] std::size_t bytes() const { return last - first; }
  // True if the storage still has all bytes that were saved; the module may have resized it.
  [[nodiscard]] bool is_whole() const { return is_as_long(storage, last); }
  // The original storage, if backward must read it instead of the reloaded copy, as it would
  // without offload. Backward must read the original if others still hold the storage, because they
  // may have changed its contents, or if its memory was taken before the copy had read it. Empty
  // otherwise.
  [[nodiscard]] c10::Storage live() const {
    auto now = identity.lock();
    if (!now) return {};
    const std::size_t ours = 1U + (watch && watch->holds() ? 1U : 0U);
    const bool shared = now.use_count() > ours;
    return shared || (watch && watch->taken()) ? c10::Storage(std::move(now)) : c10::Storage();
  }
  [[nodiscard]] std::byte* begin() const {  // where the whole storage would begin
    return handle.template as<std::byte>() - first;
  }
  void let_go(stream_ref stream) {
    for (auto& each : others) each.handle.reset(each.stream);
    others.clear();
    handle.reset(stream);
  }
};

}  // namespace tidepool::detail
