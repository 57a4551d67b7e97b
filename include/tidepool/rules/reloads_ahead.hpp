// What was reloaded ahead of its use: how much of it there may be, and what of it is evicted first.
#pragma once

#include <cstddef>
#include <limits>
#include <utility>

#include "tidepool/core/slot_list.hpp"

namespace tidepool::inline v0_3_0::detail {

// Groups that are on the device again, or on their way, and not restored; in the order of their
// use.
template <class Group>
class reloads_ahead {
 public:
  using slot = typename slot_list<Group>::slot;
  static constexpr slot none = slot_list<Group>::none;
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  [[nodiscard]] bool empty() const { return groups_.empty(); }
  // One more may come, within these limits.
  [[nodiscard]] bool may_grow(std::size_t groups, std::size_t bytes) const {
    return groups_.size() < groups && bytes_ < bytes;
  }
  [[nodiscard]] slot add(const Group& group, std::size_t bytes) {
    bytes_ += bytes;
    return groups_.push_back({group, bytes});
  }
  // Nothing where it is not there.
  void forget(slot& at) noexcept {
    const auto gone = std::exchange(at, none);
    if (gone == none) return;
    bytes_ -= groups_[gone].bytes;
    groups_.erase(gone);
  }
  // Needed last, and so evicted first.
  [[nodiscard]] const Group& latest() const { return groups_[groups_.last()].group; }

 private:
  struct entry {
    Group group{};
    std::size_t bytes = 0;
  };

  slot_list<entry> groups_;
  std::size_t bytes_ = 0;
};

}  // namespace tidepool::detail
