/// Counts the heap allocations of a thread. The operators new and delete that do it stand in
/// `engine/heap_counter_test.cpp` and serve the whole test program.
#pragma once

#include <cstdint>

namespace tidepool::test {

/// Allocations of this thread so far.
[[nodiscard]] std::uint64_t heap_allocations() noexcept;

}  // namespace tidepool::test
