// Captures and launches, and the gate between them and eager calls.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/linkage.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/capture_gate.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/memory_layout.hpp"

namespace tidepool::inline v0_3_0::detail {

using shared_layout = std::shared_ptr<const memory_layout>;

// A graph, and the memory layouts that it needs and leaves.
struct recorded_graph {
  std::unique_ptr<captured_graph> content;
  shared_layout before;
  shared_layout after{};
  std::uint64_t latest = 0;  // number of the latest storage at the end of the capture
  bool to_lender = false;    // the graph offloads to a lender
  shared_rows rows{};        // null: the offloader counted no rows then
};

// A graph has addresses, not handles. Three rules follow:
//
// - a launch needs every storage, by its number, at the place where it was when the capture began.
//   The place now is where the graph launched before left the storage, or else where its handles
//   say;
// - an eager call that takes or reads memory needs each tensor where its handle says. It forgets
//   contents without a handle;
// - a handle, a chunk or a state can always be given up, so that there is always a way out.
class graph_gate final : public capture_gate {
 public:
  explicit graph_gate(engine& owner) : of_(owner) {}
  // The gate of `owner`; the first call makes it.
  [[nodiscard]] static graph_gate& of(engine& owner) {
    auto& gate = owner.gate();
    if (gate == nullptr) gate = std::make_unique<graph_gate>(owner);
    return static_cast<graph_gate&>(*gate);
  }

  void pass() override {
    if (replayed_) meet_after_launch();
    if (truth_ != nullptr) expect_truth();
  }
  void meet() override {
    if (replayed_) meet_after_launch();
  }
  [[nodiscard]] bool keep_orphan(storage& store) noexcept override;
  [[nodiscard]] bool replayed() const override { return replayed_; }
  void forget_launch() noexcept override { replayed_ = false; }

  void begin(lane_id origin);
  [[nodiscard]] recorded_graph end(lane_id origin);
  void abandon(lane_id origin) noexcept;
  void launch(const recorded_graph& graph, lane_id lane);

 private:
  // The layout of all storages. With `reloads` it includes the device memory of tensors that were
  // reloaded ahead of their use.
  [[nodiscard]] memory_layout layout(bool reloads = true) const;
  void expect_capturable() const;
  void expect_layout(const shared_layout& before);
  void expect_truth();
  void meet_after_launch();
  void forget_reloads() noexcept;
  void drop_orphans(bool nothing_ran) noexcept;
  void leave() noexcept;

  engine& of_;
  bool replayed_ = false;
  lane_id replayed_on_{};
  shared_layout before_;                   // the layout before the latest capture
  shared_layout truth_;                    // the places of contents; null: handles are right
  std::uint64_t destroyed_at_launch_ = 0;  // storages destroyed before the latest launch
  std::uint64_t to_lender_before_ = 0;     // bytes offloaded to a lender before the latest capture
  std::vector<storage*> orphans_;          // storages whose handles went in a broken capture
};

}  // namespace tidepool::detail
