/// Offloads and reloads inside CUDA graphs: captured once, and repeated by each launch.
#pragma once

#include <type_traits>
#include <utility>

#include "tidepool/buffer.hpp"
#include "tidepool/core/linkage.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/graph_gate.hpp"
#include "tidepool/memory/lane_of.hpp"

namespace tidepool::inline v0_3_0 {

template <capturing_device Device>
class graph;

namespace detail {

// `offloader::capture` finds this function by its namespace.
template <capturing_device Device, class Body>
[[nodiscard]] graph<Device> capture_in(std::type_identity<Device>, engine& of,
                                       const typename Device::stream_ref& stream, Body&& body);

}  // namespace detail

/// A captured piece of a step, made by `offloader::capture`.
///
/// A launch repeats the copies of the capture between the same addresses, and counts nothing. So
/// each tensor that was alive at the capture must lie at the same address at every launch, and no
/// other tensor may be alive. A graph of a whole step leaves memory in that state if everything
/// allocated inside was reset inside. Launch graphs of parts of a step in the order of their
/// capture, all of them before any eager call that takes or reads memory. If a step was left in the
/// middle, begin anew with its first graph.
///
/// Move-only. A graph keeps the offloader's memory alive, and must be destroyed before the device.
/// Thread safety: that of the offloader.
///
///     train_step();                                        // eagerly, until the warm-up is over
///     auto step = off.capture(stream, [&] { train_step(); });
///     for (int i = 0; i < steps; ++i) step.launch(stream);
template <capturing_device Device>
class [[nodiscard]] graph {
 public:
  /// Leaves `other` empty.
  graph(graph&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)), content_(std::move(other.content_)) {}
  /// Swaps the two graphs.
  graph& operator=(graph&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(content_, other.content_);
    return *this;
  }
  // A compiler that refuses a copy shows these lines.
  graph(const graph&) = delete;             // move-only; launch one graph many times
  graph& operator=(const graph&) = delete;  // move-only; launch one graph many times
  ~graph() {
    if (engine_ != nullptr) detail::engine::release(engine_);
  }

  /// Runs the graph on `stream`, after the work that the offloader's streams have been given so
  /// far. Eager work that follows waits for the graph. Does not block the host.
  ///
  /// Throws `misuse_error`, and changes nothing, when tensors lie elsewhere than at the capture, or
  /// while a capture is under way; `lender_error` if the graph begins a step and copies to memory
  /// whose lender is gone; `device_error`.
  void launch(typename Device::stream_ref stream) {
    detail::graph_gate::of(*engine_).launch(
        content_, detail::lane_in<Device>(engine_->memory().order(), stream));
  }

 private:
  template <capturing_device Any, class Body>
  friend graph<Any> detail::capture_in(std::type_identity<Any>, detail::engine& of,
                                       const typename Any::stream_ref& stream, Body&& body);

  graph(detail::engine& owner, detail::recorded_graph content)
      : engine_(&owner), content_(std::move(content)) {
    owner.retain();
  }

  detail::engine* engine_;
  detail::recorded_graph content_;
};

template <capturing_device Device, class Body>
graph<Device> detail::capture_in(std::type_identity<Device> /*device*/, engine& of,
                                 const typename Device::stream_ref& stream, Body&& body) {
  const auto origin = lane_to_release<Device>(of, stream);
  auto& gate = graph_gate::of(of);
  gate.begin(origin);
  try {
    std::forward<Body>(body)();
  } catch (...) {
    gate.abandon(origin);
    throw;
  }
  return graph<Device>(of, gate.end(origin));
}

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/engine/capture.hpp"
#endif
