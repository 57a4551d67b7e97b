/// Saved tensors that stay with torch: parameters, and tensors made of a parameter alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidepool::inline v0_3_0::detail {

// Excludes by storage, because autograd saves views of parameters (`weight.t()`), and by questions
// that are asked at each save. A storage is known only while it lives, because another may get its
// address.
class torch_exclusions {
 public:
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto& storage = tensor.storage();
    storages_.insert_or_assign(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
  }
  void add(std::function<bool(const at::Tensor&)> question) {
    questions_.push_back(std::move(question));
  }

  [[nodiscard]] bool covers(const at::Tensor& saved) const {
    if (has_storage_of(saved) || made_of_one(saved)) return true;
    for (const auto& question : questions_) {
      if (question(saved)) return true;
    }
    return false;
  }

 private:
  // Steps from a tensor back to its parameter. Autocast casts a weight once for many uses, and
  // keeps the copy, so that offloading the cast would free no memory.
  static constexpr int most_steps = 4;

  [[nodiscard]] bool has_storage_of(const at::Tensor& tensor) const {
    const auto known = storages_.find(tensor.storage().unsafeGetStorageImpl());
    return known != storages_.end() && !known->second.expired();
  }
  // True for a cast, a transposition or the like of one excluded tensor and of nothing else.
  [[nodiscard]] bool made_of_one(const at::Tensor& tensor) const {
    if (storages_.empty() || !tensor.requires_grad()) return false;
    auto node = tensor.grad_fn();
    for (int step = 0; node != nullptr && step < most_steps; ++step) {
      if (const auto* leaf = dynamic_cast<::torch::autograd::AccumulateGrad*>(node.get())) {
        const auto& origin = leaf->variable;
        return origin.numel() == tensor.numel() && origin.has_storage() && has_storage_of(origin);
      }
      if (node->num_outputs() != 1) return false;
      node = node->next_edge(0).function;
    }
    return false;
  }

  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
  std::vector<std::function<bool(const at::Tensor&)>> questions_;
};

}  // namespace tidepool::detail
