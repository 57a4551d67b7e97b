/// Views that use little of the memory between their first and last byte. Such views leave as
/// dense copies, and get their strides back when backward reads them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <c10/util/DimVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tidepool/core/block.hpp"
#include "tidepool/torch/layout.hpp"

namespace tidepool::inline v0_3_0::detail {

// The dimensions of a layout, smallest stride first. Expanded dimensions, of stride 0, come first.
[[nodiscard]] inline c10::DimVector by_stride(const torch_layout& of) {
  c10::DimVector order(of.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return of.strides[static_cast<std::size_t>(a)] < of.strides[static_cast<std::size_t>(b)];
  });
  return order;
}

// A tensor's layout without gaps, from byte `first` on. The order of its strides stays, and an
// expanded dimension stays expanded. Has no bytes if two elements share memory in another way.
[[nodiscard]] inline torch_layout without_gaps(const torch_layout& of, std::size_t first) {
  auto dense = of;
  std::int64_t elements = 1;
  std::int64_t reach = 1;
  dense.first = dense.last = first;
  for (const auto each : by_stride(of)) {
    const auto d = static_cast<std::size_t>(each);
    if (of.strides[d] == 0) continue;
    if (of.sizes[d] > 1 && of.strides[d] < reach) return dense;
    reach += (of.sizes[d] - 1) * of.strides[d];
    dense.strides[d] = elements;
    elements *= of.sizes[d];
  }
  dense.last += static_cast<std::size_t>(elements) * of.width();
  return dense;
}

// Copies each element once on torch's current stream, although dimensions may be expanded.
inline void copy_elements(at::Tensor to, at::Tensor from) {
  for (std::int64_t d = 0; d < to.dim(); ++d) {
    if (to.stride(d) != 0) continue;
    to = to.narrow(d, 0, 1);
    from = from.narrow(d, 0, 1);
  }
  to.copy_(from);
}

// A tensor with the strides and the alignment of `was`, because the bits of a matrix product depend
// on both. The gaps are not written.
[[nodiscard]] inline at::Tensor with_gaps(torch_layout was, const at::Tensor& dense) {
  const auto first = was.first % block_alignment;
  was.last -= was.first - first;
  was.first = first;
  const auto bytes = at::TensorOptions(at::kByte).device(dense.device());
  auto result = was.in(at::empty({static_cast<std::int64_t>(was.last)}, bytes).storage());
  copy_elements(result, dense);
  return result;
}

// The parts of a storage that one module saves, as long as they are a small share.
class thin_views {
 public:
  // Adds a saved tensor. Gives up if half of the storage is used, or too many copies were needed.
  void add(const torch_layout& part, const c10::Storage& of) {
    if (dense_ || find(part) != nullptr) return;
    const auto compact =
        without_gaps(part, (end_ + block_alignment - 1) / block_alignment * block_alignment);
    const auto bytes = compact.last - compact.first;
    used_ += bytes;
    if (bytes == 0 || used_ * 2 >= of.nbytes() || list_.size() == most_views) {
      dense_ = true;
      list_ = {};
      return;
    }
    end_ = compact.last;
    list_.push_back({part, compact});
  }

  // True if dense copies spare half of the `range` bytes that the views lie in, and `least_spared`.
  [[nodiscard]] bool worth_gathering(std::size_t range) const {
    return !dense_ && !gathered_ && used_ * 2 < range && end_ + least_spared <= range;
  }
  // Copies the views on the current stream of torch. Their storage may be freed afterwards.
  [[nodiscard]] c10::Storage gather(const c10::Storage& from) {
    const auto bytes = c10::TensorOptions(at::kByte).device(from.device());
    const auto copies = at::empty({static_cast<std::int64_t>(end_)}, bytes).storage();
    for (const auto& each : list_) copy_elements(each.compact.in(copies), each.was.in(from));
    gathered_ = true;
    return copies;
  }
  [[nodiscard]] bool gathered() const { return gathered_; }
  [[nodiscard]] std::size_t end() const { return end_; }  // bytes of the dense copies

  // The place of the dense copy of `part`; null if there is none.
  [[nodiscard]] const torch_layout* find(const torch_layout& part) const {
    for (const auto& each : list_) {
      if (each.was.same_as(part)) return &each.compact;
    }
    return nullptr;
  }

 private:
  struct view {
    torch_layout was;
    torch_layout compact;
  };
  // Each copy is a launch of its own.
  static constexpr std::size_t most_views = 16;
  // Fewer bytes take no longer on their way to the host than the launch of a dense copy.
  static constexpr std::size_t least_spared = std::size_t{256} << 10;

  std::vector<view> list_;
  std::size_t used_ = 0;
  std::size_t end_ = 0;
  bool dense_ = false;  // the views use so much that their storage leaves as it is
  bool gathered_ = false;
};

}  // namespace tidepool::detail
