// Where the plan that is followed wants the memory of each storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tidepool/plan/placement.hpp"

namespace tidepool::detail {

// Storages are known by the number of their allocation in the step. A step that allocates otherwise
// than the one that was planned has its memory elsewhere, and nothing worse.
class places {
 public:
  static constexpr std::uint32_t unknown = 0xFFFFFFFF;

  void adopt(plan::placement planned) {
    planned_ = std::move(planned);
    next_ = before_evaluation_ = 0;
  }
  void step_ended() { next_ = 0; }
  // What is allocated between the two is no part of the step, nor what was for its first chunk.
  void evaluation_begins(bool between_steps) { before_evaluation_ = between_steps ? 0 : next_; }
  void evaluation_ended() { next_ = before_evaluation_; }

  // The number of the allocation that comes now.
  [[nodiscard]] std::uint32_t allocated(std::size_t bytes) {
    if (planned_.empty()) return unknown;
    const auto now = next_++;
    return now < planned_.size() && planned_[now].bytes == bytes ? now : unknown;
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
  plan::placement planned_;
  std::uint32_t next_ = 0;
  std::uint32_t before_evaluation_ = 0;
};

}  // namespace tidepool::detail
