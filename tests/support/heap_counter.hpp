/// Counts the heap allocations of a thread, and refuses them. The operators new and delete that do
/// it stand in `engine/heap_counter_test.cpp` and serve the whole test program.
#pragma once

#include <cstdint>

namespace tidepool::test {

/// Allocations of this thread so far.
[[nodiscard]] std::uint64_t heap_allocations() noexcept;

/// While it lives, every allocation of this thread fails.
class no_heap {
 public:
  no_heap() noexcept;
  no_heap(const no_heap&) = delete;
  no_heap& operator=(const no_heap&) = delete;
  ~no_heap();
};

}  // namespace tidepool::test
