// A trainer whose kernels alone know how many rows of each tensor are valid.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "rig.hpp"
#include "tidepool/rows.hpp"

namespace tidepool::test {

/// Each layer's count is chosen by the host for a step, and read by kernels when they run.
class counted_trainer {
 public:
  using offloader = rig::offloader<modules<"expert_fc1">>;

  static constexpr std::size_t capacity = 16;
  static constexpr std::size_t row_bytes = 64;
  static constexpr int layers = 4;
  /// An arena with room for three tensors.
  [[nodiscard]] static options roomy() { return arena_options(3 * capacity * row_bytes); }

  counted_trainer(rig& on, offloader& by) : desk_(&on), off_(&by) {}
  counted_trainer(const counted_trainer&) = delete;
  counted_trainer& operator=(const counted_trainer&) = delete;
  // Kernels that are still queued refer to this.
  ~counted_trainer() { desk_->dev.synchronize(); }

  std::size_t planned = capacity;
  bool counts = true;
  bool one_count = false;  // all layers write their counts to one place
  int microbatch = 0;
  std::uint32_t round = 0;
  std::size_t wrong = 0;
  std::uint64_t loss = 0;
  std::size_t smallest_block = std::numeric_limits<std::size_t>::max();

  /// Sets the count of each layer, from the next step on.
  template <class Rows>
  void choose(const Rows& rows) {
    desk_->dev.synchronize();
    for (int l = 0; l < layers; ++l) chosen_[at(l)] = static_cast<std::uint32_t>(rows(l));
  }

  void forward() {
    chunk_.emplace(off_->begin({.microbatch = microbatch}));
    for (int l = 0; l < layers; ++l) {
      auto& x = saved_[at(l)];
      x = off_->allocate(capacity * row_bytes, desk_->stream());
      auto* const count = &counts_[one_count ? 0 : at(l)];
      kernel([this, l, count, to = x.template as<std::uint32_t>()] {
        *count = chosen_[at(l)];
        for (std::size_t i = 0; i < *count * words; ++i) to[i] = rig::word(tag(l), i);
      });
      if (counts) x.counts_rows({.count = count, .row_bytes = row_bytes, .planned_rows = planned});
      chunk_->commit<"expert_fc1">(l, desk_->stream(), x);
    }
    chunk_->end_forward();
  }
  void backward() {
    for (int l = layers; l-- > 0;) {
      auto& x = saved_[at(l)];
      chunk_->restore<"expert_fc1">(l, desk_->stream(), x);
      smallest_block = std::min(smallest_block, x.size());
      kernel([this, l, from = x.template as<std::uint32_t>()] {
        for (std::size_t i = 0; i < chosen_[at(l)] * words; ++i) {
          wrong += from[i] != rig::word(tag(l), i) ? 1 : 0;
          loss += from[i] * (i + 1);
        }
      });
      x.reset(desk_->stream());
    }
    kernel([this] { ++round; });
    chunk_->finish();
    chunk_.reset();
  }
  void step() {
    forward();
    backward();
    off_->end_step();
  }
  /// Drops the pass under way.
  void give_up() {
    chunk_.reset();
    for (auto& each : saved_) each.reset(desk_->stream());
    off_->end_step();
  }

  [[nodiscard]] std::size_t all_wrong() {
    desk_->dev.synchronize();
    return wrong;
  }
  /// The part that the latest step has in `loss`.
  [[nodiscard]] std::uint64_t expected_loss() {
    desk_->dev.synchronize();
    --round;
    std::uint64_t sum = 0;
    for (int l = 0; l < layers; ++l) {
      for (std::size_t i = 0; i < chosen_[at(l)] * words; ++i) {
        sum += rig::word(tag(l), i) * (i + 1);
      }
    }
    ++round;
    return sum;
  }

 private:
  static constexpr std::size_t words = row_bytes / sizeof(std::uint32_t);

  [[nodiscard]] static std::size_t at(int layer) { return static_cast<std::size_t>(layer); }
  [[nodiscard]] std::uint32_t tag(int layer) const {
    return (round * layers + static_cast<std::uint32_t>(layer)) * 2 + 1 +
           static_cast<std::uint32_t>(microbatch);
  }
  template <class Run>
  void kernel(Run run) {
    desk_->dev.launch(desk_->stream(), 1000, std::move(run));
  }

  rig* desk_;
  offloader* off_;
  std::array<std::uint32_t, layers> chosen_{};
  std::array<std::uint32_t, layers> counts_{};
  std::array<offloader::buffer, layers> saved_;
  std::optional<offloader::chunk> chunk_;
};

}  // namespace tidepool::test
