/// Gives autograd the hooks of the innermost module scope when it saves a tensor, without Python.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// An object that is the innermost of its kind on this thread, until it is destroyed.
template <class Kind>
class innermost_of_thread {
 public:
  innermost_of_thread(const innermost_of_thread&) = delete;
  innermost_of_thread& operator=(const innermost_of_thread&) = delete;
  virtual ~innermost_of_thread() { top() = outer_; }

  // Null if there is none.
  [[nodiscard]] static Kind* innermost() { return top(); }

 protected:
  innermost_of_thread() : outer_(top()) { top() = static_cast<Kind*>(this); }

 private:
  static Kind*& top() {
    static thread_local Kind* object = nullptr;
    return object;
  }
  Kind* outer_;
};

// The tensors that one module saves in one layer of a pass.
class torch_saver {
 public:
  torch_saver() = default;
  torch_saver(const torch_saver&) = delete;
  torch_saver& operator=(const torch_saver&) = delete;
  virtual ~torch_saver() = default;
  [[nodiscard]] virtual std::unique_ptr<::torch::autograd::SavedVariableHooks> hooks() = 0;
  // The module's forward is over: its saved tensors leave.
  virtual void leave() = 0;
};

// A module scope that is open on this thread.
class torch_scope final : public innermost_of_thread<torch_scope> {
 public:
  explicit torch_scope(std::unique_ptr<torch_saver> to) : saver_(std::move(to)) {}
  [[nodiscard]] std::unique_ptr<::torch::autograd::SavedVariableHooks> hooks() {
    return saver_->hooks();
  }
  void leave() { saver_->leave(); }

 private:
  std::unique_ptr<torch_saver> saver_;
};

// Runs `body` and then leaves `scope`, which is open around it; a null `scope` is ignored.
template <class Body>
decltype(auto) run_in(torch_scope* scope, Body&& body) {
  if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
    std::forward<Body>(body)();
    if (scope != nullptr) scope->leave();
  } else {
    decltype(auto) result = std::forward<Body>(body)();
    if (scope != nullptr) scope->leave();
    return static_cast<std::invoke_result_t<Body>>(result);
  }
}

}  // namespace detail

/// Hooks for one tensor that is saved in the innermost module scope of this thread; null outside of
/// any scope. The engine below gives the hooks to autograd. Programs with another engine, such as
/// Python's, call this function from their own hooks. Does not block the host.
[[nodiscard]] inline std::unique_ptr<::torch::autograd::SavedVariableHooks> torch_saving_hooks() {
  auto* const scope = detail::torch_scope::innermost();
  return scope == nullptr ? nullptr : scope->hooks();
}

namespace detail {

// Gives autograd the hooks, and passes every backward on to torch's own engine. This engine cannot
// run it: libtorch 2 starts the threads of its devices only for the engine that ran first, which
// may have been torch's own. (`initialize_device_threads_pool` in torch's engine.cpp.)
class torch_saving_engine final : public ::torch::autograd::Engine {
 public:
  using edges = ::torch::autograd::edge_list;
  using variables = ::torch::autograd::variable_list;

  static Engine& get() {
    static auto* const one = new torch_saving_engine;  // its threads outlive `main`
    return *one;
  }
  // Throws if autograd has an engine that is neither torch's own nor this one.
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
