/// A pass that is open: its eager part, and its parts inside of captures.
#pragma once

#include <torch/csrc/autograd/graph_task.h>

#include <memory>
#include <utility>
#include <vector>

#include "tidepool/torch/captures.hpp"
#include "tidepool/torch/core.hpp"
#include "tidepool/torch/tensor_hooks.hpp"

namespace tidepool::inline v0_3_0::detail {

// Shared by a pass and the threads that use it.
template <device Device>
class torch_open_pass {
 public:
  using core_type = torch_core<Device>;

  torch_open_pass(std::shared_ptr<core_type> core, const chunk_info& info)
      : core_(std::move(core)), info_(info) {
    if (capturing()) {
      captured_.push_back(core_->captures->begin(info));
    } else {
      eager_ = std::make_shared<torch_pass_state<Device>>(core_, info);
    }
  }

  [[nodiscard]] core_type& core() { return *core_; }

  // Null if no tensor of the module leaves.
  [[nodiscard]] std::unique_ptr<torch_saver> saver(module_id module, int layer) {
    if (!core_->off->enabled(module)) return nullptr;
    if (capturing()) return saver_in_capture(module, layer);
    if (eager_ != nullptr) return saver_in<Device>(eager_, module, layer);
    throw misuse_error("module " + core_->name_of(module) + " of layer " + std::to_string(layer) +
                       ": its pass was begun inside a capture, and the stream is not being"
                       " captured any more; begin a pass for what runs outside");
  }
  void end_forward() {
    if (eager_ != nullptr) eager_->end_forward();
    if (capturing() && !captured_.empty()) captured_.back()->end_forward();
  }
  void finish() {
    if (eager_ != nullptr) eager_->finish();
    for (const auto& each : captured_) each->finish();
    if (capturing()) core_->captures->join();
  }
  void give_up() noexcept {
    if (eager_ != nullptr) eager_->give_up();
    captured_.clear();
  }

 private:
  [[nodiscard]] bool capturing() const {
    return core_->captures != nullptr && core_->captures->under_way();
  }
  // Captures of single layers follow each other until one of them reads. Nothing is saved inside a
  // backward pass, because a checkpoint reads at once.
  [[nodiscard]] std::unique_ptr<torch_saver> saver_in_capture(module_id module, int layer) {
    if (::torch::autograd::get_current_graph_task_nodes_in_graph() != nullptr) return nullptr;
    const bool over = captured_.empty() || !captured_.back()->in_forward();
    if (over && eager_ != nullptr) captured_.push_back(core_->captures->begin(info_));
    return captured_.back()->saver(module, layer);
  }

  std::shared_ptr<core_type> core_;
  chunk_info info_;
  std::shared_ptr<torch_pass_state<Device>> eager_;  // null if the pass began inside a capture
  std::vector<std::unique_ptr<torch_captured_pass>> captured_;
};

}  // namespace tidepool::detail
