// The places that the followed plan gives to the memory of each storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tidepool/core/placement.hpp"

namespace tidepool::inline v0_3_0::detail {

// Storages are known by the number of their allocation in the step. Where a step allocates
// otherwise than the planned one, the nearest planned storage of as many bytes is taken for the
// meant one.
class followed_placement {
 public:
  static constexpr std::uint32_t unknown = 0xFFFFFFFF;

  void adopt(plan::placement planned) {
    used_in_ = std::vector<std::uint64_t>(planned.storages.size(), step_);
    planned_ = std::move(planned);
    step_ended();
  }
  void step_ended() {
    next_ = 0;
    ++step_;
    strayed_ = false;
  }
  // True where there are places, and the step has allocated as planned so far.
  [[nodiscard]] bool hold() const { return !planned_.empty() && !strayed_; }
  // True where a group that comes back ahead of its use would bring memory in use to `live` bytes,
  // and so come before its turn.
  [[nodiscard]] bool passes(std::size_t live) const { return hold() && live > planned_.within; }
  // Notes an evaluation: allocations between steps are no part of a step.
  void evaluation_begins(bool between_steps) { between_steps_ = between_steps; }
  void evaluation_ended() {
    if (between_steps_) step_ended();
  }

  // Returns the plan's number of the allocation that comes now; `unknown` where it has none.
  [[nodiscard]] std::uint32_t allocated(std::size_t bytes) {
    constexpr std::uint32_t near = 8;
    for (std::uint32_t off = 0; off < near; ++off) {
      if (next_ + off < planned_.storages.size() && is_meant(next_ + off, bytes)) {
        next_ += off + 1;
        return next_ - 1;
      }
      if (off < next_ && is_meant(next_ - 1 - off, bytes)) return next_ - 1 - off;
    }
    strayed_ = true;
    return unknown;
  }
  [[nodiscard]] std::size_t first(std::uint32_t storage) const {
    return storage == unknown ? anywhere : planned_.storages[storage].first;
  }
  // Compares `bytes`, because an earlier plan may have numbered the storage.
  [[nodiscard]] std::size_t again(std::uint32_t storage, std::size_t bytes) const {
    const bool known =
        storage < planned_.storages.size() && planned_.storages[storage].bytes == bytes;
    return known ? planned_.storages[storage].again : anywhere;
  }

 private:
  [[nodiscard]] bool is_meant(std::uint32_t i, std::size_t bytes) {
    return planned_.storages[i].bytes == bytes && std::exchange(used_in_[i], step_) != step_;
  }

  plan::placement planned_;
  std::vector<std::uint64_t> used_in_;  // the step that each number was last used in
  std::uint64_t step_ = 0;
  std::uint32_t next_ = 0;
  bool strayed_ = false;        // this step has allocated otherwise than planned
  bool between_steps_ = false;  // the evaluation under way is between steps
};

}  // namespace tidepool::detail
