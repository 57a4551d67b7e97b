/// How autograd asks for the innermost module scope whenever it saves a tensor, without Python.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <utility>

#include "tidepool/error.hpp"

namespace tidepool::inline v0_2_0 {

namespace detail {

// A module scope that is open on this thread.
class torch_scope {
 public:
  torch_scope(const torch_scope&) = delete;
  torch_scope& operator=(const torch_scope&) = delete;
  [[nodiscard]] virtual std::unique_ptr<::torch::autograd::SavedVariableHooks> hooks() = 0;

  [[nodiscard]] static torch_scope* innermost() { return top(); }

 protected:
  torch_scope() : outer_(top()) { top() = this; }
  ~torch_scope() { top() = outer_; }

 private:
  static torch_scope*& top() {
    static thread_local torch_scope* scope = nullptr;
    return scope;
  }
  torch_scope* outer_;
};

}  // namespace detail

/// Hooks for one tensor that is saved in the innermost module scope of this thread, or null outside
/// of any: what the engine below gives to autograd. For programs in which another engine runs, such
/// as Python's, whose own hooks can call these. Does not block the host.
[[nodiscard]] inline std::unique_ptr<::torch::autograd::SavedVariableHooks> torch_saving_hooks() {
  auto* const scope = detail::torch_scope::innermost();
  return scope == nullptr ? nullptr : scope->hooks();
}

namespace detail {

// Names the hooks; torch's own engine runs every pass. Of several engines libtorch 2 starts the
// threads of its devices only for the one that ran first, and that may have been torch's own: this
// one could then run nothing on a GPU. (`initialize_device_threads_pool` in torch's engine.cpp.)
class torch_saving_engine final : public ::torch::autograd::Engine {
 public:
  using edges = ::torch::autograd::edge_list;
  using variables = ::torch::autograd::variable_list;

  static Engine& get() {
    static auto* const one = new torch_saving_engine;  // threads of it outlive `main`
    return *one;
  }
  // Refuses where an engine that is not torch's own is there.
  static void install() {
    auto& now = Engine::get_default_engine();
    if (&now == &get()) return;
    if (&now != &Engine::get_base_engine()) {
      throw misuse_error(
          "torch_offloader: autograd runs on an engine that is neither torch's own nor this one"
          " (Python's?); make it with {.install_hooks = false}, and call torch_saving_hooks() from"
          " the hooks that are there");
    }
    ::torch::autograd::set_default_engine_stub(&get);
  }

  std::unique_ptr<::torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks()
      override {
    return torch_saving_hooks();
  }

  variables execute(const edges& roots, const variables& inputs, bool keep_graph, bool create_graph,
                    bool accumulate_grad, const edges& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad,
                                     outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<::torch::autograd::GraphTask>& task,
      std::shared_ptr<::torch::autograd::Node> root,
      ::torch::autograd::InputBuffer&& buffer) override {
    return get_base_engine().execute_with_graph_task(task, std::move(root), std::move(buffer));
  }

 private:
  torch_saving_engine() = default;
};

}  // namespace detail

}  // namespace tidepool
