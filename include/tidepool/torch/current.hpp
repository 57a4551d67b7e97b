/// The pass that a thread's modules save into, for models that are handed none.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "tidepool/torch/hooks.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// A pass in use on this thread, whatever its device.
class torch_current : public innermost_of_thread<torch_current> {
 public:
  // Null if no tensor of the module leaves.
  [[nodiscard]] virtual std::unique_ptr<torch_scope> open(std::string_view name, int layer) = 0;
};

}  // namespace detail

/// Calls `body` and returns its result. If this thread uses a pass (`torch_offloader::use`), the
/// call is `torch_pass::module` of that pass, with its stream, waits and errors. If the thread uses
/// none, the call is `body()` alone: in validation, and in backward where a checkpoint runs a part
/// of forward again.
///
///     torch::Tensor forward(torch::Tensor x) {
///       return tidepool::module("fc1", layer, [&] { return fc1->forward(x); });
///     }
template <class Body>
decltype(auto) module(std::string_view name, int layer, Body&& body) {
  auto* const current = detail::torch_current::innermost();
  const auto scope = current == nullptr ? nullptr : current->open(name, layer);
  return detail::run_in(scope.get(), std::forward<Body>(body));
}

}  // namespace tidepool
