/// Where a memory source takes its pages from: one allocator of a device, without the device.
#pragma once

#include <cstddef>

namespace tidepool::inline v0_2_0 {

/// What pools, arenas and slots ask for large pieces of memory; `device_allocator` and
/// `host_allocator` are those of a device. It outlives the sources that use it. Thread safety:
/// none.
class page_allocator {
 public:
  page_allocator() = default;
  page_allocator(const page_allocator&) = delete;
  page_allocator& operator=(const page_allocator&) = delete;
  virtual ~page_allocator() = default;

  /// Null when there is no more; throws `device_error` on any other failure.
  [[nodiscard]] virtual void* try_allocate(std::size_t bytes) = 0;
  /// Waits until nothing on the device uses the memory.
  virtual void deallocate(void* pages) noexcept = 0;
  /// Bytes that are free now, for messages.
  [[nodiscard]] virtual std::size_t free_bytes() const = 0;
};

}  // namespace tidepool
