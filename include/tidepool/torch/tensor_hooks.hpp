/// The hooks of one tensor that autograd saves, and the tensors of one module scope.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tidepool/torch/hooks.hpp"
#include "tidepool/torch/pass_state.hpp"

namespace tidepool::inline v0_3_0::detail {

// Saves one tensor of a node of the graph, and brings it back.
template <device Device>
class torch_tensor_hooks final : public ::torch::autograd::SavedVariableHooks {
 public:
  using state = torch_pass_state<Device>;

  torch_tensor_hooks(std::shared_ptr<state> pass, std::uint32_t group)
      : pass_(std::move(pass)), group_(group) {}
  torch_tensor_hooks(const torch_tensor_hooks&) = delete;
  torch_tensor_hooks& operator=(const torch_tensor_hooks&) = delete;
  ~torch_tensor_hooks() override {
    if (saved_ != nullptr) pass_->drop_reference(*saved_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    auto& core = pass_->core();
    version_ = tensor_version(tensor);
    const bool elsewhere = tensor.device() != core.streams.device();
    const bool taken =
        !elsewhere && is_plain(tensor, core.streams.device()) && !is_reloaded(tensor);
    const bool excluded = taken && core.excluded.covers(tensor);
    if (elsewhere || excluded) pass_->note_elsewhere(group_, excluded);
    if (!taken || excluded) {
      // The tensor is detached, because it must not keep its graph alive. A leaf stays itself,
      // because a user may replace its `data`.
      stays_ = tensor.is_leaf() ? tensor : tensor.detach();
      return;
    }
    layout_.emplace(tensor);
    if (tensor.is_leaf()) leaf_ = weak_tensor(tensor.getIntrusivePtr());
    saved_ = &pass_->save(tensor, *layout_, group_);
  }
  at::Tensor call_unpack_hook() override {
    if (saved_ == nullptr) {
      if (version_.changed()) pass_->expect_unchanged(version_, group_, torch_layout(stays_));
      return stays_;
    }
    if (const auto leaf = leaf_.lock()) pass_->expect_same_storage(*leaf, *saved_, *layout_);
    auto held = std::make_unique<reference>(pass_, *saved_);
    const auto at = pass_->load(*saved_, *layout_, version_);
    auto back = at.live ? at.as->in(at.live) : at.as->at_address(at.begin, held.release(), &done);
    return at.as == &*layout_ ? back : with_gaps(*layout_, back);
  }

 private:
  struct reference {
    std::shared_ptr<state> pass;
    torch_saved<Device>* to;

    reference(std::shared_ptr<state> of, torch_saved<Device>& what)
        : pass(std::move(of)), to(&what) {
      pass->add_reference(*to);
    }
    reference(const reference&) = delete;
    reference& operator=(const reference&) = delete;
    ~reference() { pass->drop_reference(*to); }
  };
  static void done(void* context) { delete static_cast<reference*>(context); }
  // True for a tensor that came back and is saved again, by a checkpoint that runs forward in
  // backward.
  [[nodiscard]] static bool is_reloaded(const at::Tensor& tensor) {
    return tensor.storage().data_ptr().get_deleter() == &done;
  }

  std::shared_ptr<state> pass_;
  std::uint32_t group_;
  torch_saved<Device>* saved_ = nullptr;
  std::optional<torch_layout> layout_;
  tensor_version version_;
  using weak_tensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  weak_tensor leaf_{at::Tensor().getIntrusivePtr()};
  at::Tensor stays_;
};

// The tensors of one scope of a pass.
template <device Device>
class torch_scope_saver final : public torch_saver {
 public:
  torch_scope_saver(std::shared_ptr<torch_pass_state<Device>> pass, module_id module, int layer)
      : pass_(std::move(pass)), group_(pass_->enter(module, layer)) {}
  [[nodiscard]] std::unique_ptr<::torch::autograd::SavedVariableHooks> hooks() override {
    return std::make_unique<torch_tensor_hooks<Device>>(pass_, group_);
  }
  void leave() override { pass_->leave(group_); }

 private:
  std::shared_ptr<torch_pass_state<Device>> pass_;
  std::uint32_t group_;
};

// Null if no tensor of the module leaves.
template <device Device>
[[nodiscard]] std::unique_ptr<torch_saver> saver_in(
    const std::shared_ptr<torch_pass_state<Device>>& pass, module_id module, int layer) {
  if (!pass->saves(module)) return nullptr;
  return std::make_unique<torch_scope_saver<Device>>(pass, module, layer);
}

}  // namespace tidepool::detail
