// The device budget of borrowed memory. It is soft, because another allocator cannot be held to it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "tidepool/memory/borrowed.hpp"

namespace tidepool::inline v0_3_0::detail {

// A request that can be left for later must not pass the budget. A request that is needed now may
// pass it after `exceed` returned true, until `keep` is called.
class soft_budget {
 public:
  // 0 bytes: no budget.
  explicit soft_budget(std::size_t bytes) : bytes_(bytes) {}

  [[nodiscard]] bool limits() const { return bytes_ > 0; }
  void keep() { exceeds_ = over_ = false; }
  // If the budget refused the latest request, lets later requests pass it, and returns true.
  [[nodiscard]] bool exceed() {
    if (!std::exchange(over_, false) || exceeds_) return false;
    ++exceeded_;
    return exceeds_ = true;
  }
  // True where the budget refused the latest request.
  [[nodiscard]] bool refused() const { return over_; }
  [[nodiscard]] std::uint64_t exceeded() const { return exceeded_; }

  // Gives back waiting memory that would not fit beside `live` bytes and `bytes` more.
  void make_room(borrowed_memory& borrowed, std::size_t bytes, std::size_t live) const {
    const auto left = left_beside(live + bytes);
    if (borrowed.waiting() > left) borrowed.give_back(left);
  }
  // True if `bytes` more fit beside `live` bytes.
  [[nodiscard]] bool fits(std::size_t bytes, std::size_t live) const {
    return bytes_ == 0 || (bytes <= bytes_ && live <= bytes_ - bytes);
  }
  [[nodiscard, gnu::cold]] bool refuses(borrowed_memory& borrowed, std::size_t bytes,
                                        std::size_t live) {
    if (bytes_ == 0) return false;
    over_ = !exceeds_ && !fits(bytes, live);
    if (!over_) make_room(borrowed, bytes, live);  // a refused request needs no join
    return over_;
  }

 private:
  [[nodiscard]] std::size_t left_beside(std::size_t bytes) const {
    if (bytes_ == 0) return std::numeric_limits<std::size_t>::max();
    return bytes_ - std::min(bytes_, bytes);
  }

  std::size_t bytes_;
  bool over_ = false;     // the latest request did not fit the budget
  bool exceeds_ = false;  // requests may pass the budget
  std::uint64_t exceeded_ = 0;
};

}  // namespace tidepool::detail
