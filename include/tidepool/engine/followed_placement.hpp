// Where the plan that is followed wants the memory of each storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tidepool/core/placement.hpp"

namespace tidepool::inline v0_2_0::detail {

// Storages are known by the number of their allocation in the step. Where a step allocates
// otherwise than the one that was planned, the nearest of as many bytes is taken for the one that
// was meant.
class followed_placement {
 public:
  static constexpr std::uint32_t unknown = 0xFFFFFFFF;

  void adopt(plan::placement planned) {
    used_in_ = std::vector<std::uint64_t>(planned.size(), step_);
    planned_ = std::move(planned);
    step_ended();
  }
  void step_ended() {
    next_ = 0;
    ++step_;
    strayed_ = false;
  }
  // There are any, and the step has allocated as planned so far.
  [[nodiscard]] bool hold() const { return !planned_.empty() && !strayed_; }
  // What is allocated between steps is no part of one.
  void evaluation_begins(bool between_steps) { between_steps_ = between_steps; }
  void evaluation_ended() {
    if (between_steps_) step_ended();
  }

  // The number of the allocation that comes now.
  [[nodiscard]] std::uint32_t allocated(std::size_t bytes) {
    constexpr std::uint32_t near = 8;
    for (std::uint32_t off = 0; off < near; ++off) {
      if (next_ + off < planned_.size() && is_meant(next_ + off, bytes)) {
        next_ += off + 1;
        return next_ - 1;
      }
      if (off < next_ && is_meant(next_ - 1 - off, bytes)) return next_ - 1 - off;
    }
    strayed_ = true;
    return unknown;
  }
  [[nodiscard]] std::size_t first(std::uint32_t storage) const {
    return storage == unknown ? anywhere : planned_[storage].first;
  }
  // Asked of storages that an earlier plan may have numbered.
  [[nodiscard]] std::size_t again(std::uint32_t storage, std::size_t bytes) const {
    const bool known = storage < planned_.size() && planned_[storage].bytes == bytes;
    return known ? planned_[storage].again : anywhere;
  }

 private:
  [[nodiscard]] bool is_meant(std::uint32_t i, std::size_t bytes) {
    return planned_[i].bytes == bytes && std::exchange(used_in_[i], step_) != step_;
  }

  plan::placement planned_;
  std::vector<std::uint64_t> used_in_;  // the step that each was last used in
  std::uint64_t step_ = 0;
  std::uint32_t next_ = 0;
  bool strayed_ = false;        // in this step
  bool between_steps_ = false;  // the evaluation that is under way
};

}  // namespace tidepool::detail
