/// How autograd asks for the innermost module scope whenever it saves a tensor, without Python.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

#include "tidepool/error.hpp"

namespace tidepool {

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

// Torch's own engine in everything else. There is one in a process, as torch has it.
class torch_saving_engine final : public ::torch::autograd::Engine {
 public:
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

 private:
  torch_saving_engine() = default;
};

}  // namespace detail

}  // namespace tidepool
