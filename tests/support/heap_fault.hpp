/// One heap allocation that fails: the k-th of those made while somebody watches.
#pragma once

#include <cstdint>
#include <utility>

namespace tidepool::test {

/// What the operators new of the test program look at (engine/heap_counter_test.cpp).
struct heap_plan {
  bool watched = false;
  std::uint64_t seen = 0;   ///< allocations while watched
  std::uint64_t fails = 0;  ///< the one that fails, counted from 1; 0: none
};
inline thread_local heap_plan heap_now;

/// True for the allocation that is to fail.
[[nodiscard]] inline bool heap_fails() noexcept {
  return heap_now.watched && ++heap_now.seen == heap_now.fails;
}

/// While it lives, allocations of this thread count, or do not.
class heap_watch {
 public:
  explicit heap_watch(bool on) noexcept : before_(std::exchange(heap_now.watched, on)) {}
  heap_watch(const heap_watch&) = delete;
  heap_watch& operator=(const heap_watch&) = delete;
  ~heap_watch() { heap_now.watched = before_; }

 private:
  bool before_;
};

}  // namespace tidepool::test
