/// A storage that autograd saved tensors from. They come back with their old sizes,
/// strides and values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tidepool/buffer.hpp"
#include "tidepool/core/block.hpp"
#include "tidepool/torch/layout.hpp"
#include "tidepool/torch/thin_views.hpp"
#include "tidepool/torch/version.hpp"
#include "tidepool/torch/watch.hpp"

namespace tidepool::inline v0_3_0::detail {

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
  thin_views views;
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
    if (views.gathered()) return views.find(part) != nullptr;
    return part.first >= first && part.last <= last;
  }
  void widen(const torch_layout& part) {
    views.add(part, storage);
    first = std::min(first, part.first / block_alignment * block_alignment);
    last = std::max(last, part.last);
    width = std::min(width, part.width());
    bfloat16 = bfloat16 || part.bfloat16();
  }
  // Replaces the storage by dense copies, if the views in it are thin. The original is watched only
  // for a refill, because nothing reads it any more behind the work of torch's current stream.
  void gather_if_thin() {
    if (!views.worth_gathering(bytes())) return;
    auto copies = views.gather(storage);
    watch = std::make_shared<torch_watch>(std::exchange(storage, std::move(copies)));
    watch->end();
    first = 0;
    last = views.end();
  }
  // The place of a saved tensor in `storage`, or in what came back.
  [[nodiscard]] const torch_layout& place_of(const torch_layout& part) const {
    return views.gathered() ? *views.find(part) : part;
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
