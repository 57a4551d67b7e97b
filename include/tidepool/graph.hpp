/// Offloads and reloads inside CUDA graphs: captured once, launched with no work of ours.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/lenders.hpp"
#include "tidepool/memory/lane_of.hpp"

namespace tidepool::inline v0_2_0 {

/// What `offloader::capture` made of a piece of a step.
///
/// It stands for work, not for a moment of the offloader: a launch repeats the same copies between
/// the same addresses, and counts nothing. So every launch must find each tensor that was alive at
/// the capture at its place, and no other. A graph of a whole step leaves memory so, when
/// everything allocated inside was reset inside. Graphs of parts of a step run in the order of
/// their capture, all of them before any eager call that takes or reads memory; a step that was
/// left in the middle begins anew with its first graph.
///
/// Move-only. It keeps the offloader's memory alive, and must be gone before the device is. Thread
/// safety: that of the offloader.
///
///     train_step();                                        // eagerly, until the warm-up is over
///     auto step = off.capture(stream, [&] { train_step(); });
///     for (int i = 0; i < steps; ++i) step.launch(stream);
template <capturing_device Device>
class [[nodiscard]] graph {
 public:
  /// The other is empty afterwards.
  graph(graph&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)),
        content_(std::move(other.content_)),
        before_(std::move(other.before_)),
        after_(std::move(other.after_)),
        to_neighbour_(other.to_neighbour_) {}
  /// The other gets what this one had.
  graph& operator=(graph&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(content_, other.content_);
    std::swap(before_, other.before_);
    std::swap(after_, other.after_);
    std::swap(to_neighbour_, other.to_neighbour_);
    return *this;
  }
  // A compiler that refuses a copy shows these lines.
  graph(const graph&) = delete;             // move-only; launch one graph many times
  graph& operator=(const graph&) = delete;  // move-only; launch one graph many times
  ~graph() {
    if (engine_ != nullptr) detail::engine::release(engine_);
  }

  /// Runs it on `stream`, after what the stream and all others of the offloader have been given.
  /// Eager work that follows waits for it. Does not block the host.
  ///
  /// Throws `misuse_error`, and changes nothing, when the memory is laid out otherwise or a capture
  /// is under way; `lender_error` where the graph begins a step and copies to memory whose lender
  /// is gone; `device_error`.
  void launch(typename Device::stream_ref stream) {
    if (to_neighbour_) detail::expect_lender(engine_->memory(), *before_);
    engine_->replay(*content_, before_, after_,
                    detail::lane_in<Device>(engine_->memory().order(), stream));
  }

 private:
  template <device, class>
  friend class offloader;

  using layout = std::shared_ptr<const detail::memory_layout>;

  graph(detail::engine& owner, std::unique_ptr<detail::captured_graph> content, layout before,
        layout after, bool to_neighbour)
      : engine_(&owner),
        content_(std::move(content)),
        before_(std::move(before)),
        after_(std::move(after)),
        to_neighbour_(to_neighbour) {
    owner.retain();
  }

  detail::engine* engine_;
  std::unique_ptr<detail::captured_graph> content_;
  layout before_;
  layout after_;
  bool to_neighbour_ = false;  // it offloads there
};

}  // namespace tidepool
