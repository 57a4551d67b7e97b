/// The allocator that a memory source takes its pages from, without the type of the device.
#pragma once

#include <cstddef>

namespace tidepool::inline v0_3_0 {

/// Gives large pieces of memory to pools, arenas and slots; `device_allocator` and `host_allocator`
/// are those of a device. It must outlive the sources that use it. Thread safety: none.
class page_allocator {
 public:
  page_allocator() = default;
  page_allocator(const page_allocator&) = delete;
  page_allocator& operator=(const page_allocator&) = delete;
  virtual ~page_allocator() = default;

  /// Takes `bytes` of memory. Returns null when there is no more; throws `device_error` on any
  /// other failure.
  [[nodiscard]] virtual void* try_allocate(std::size_t bytes) = 0;
  /// Gives memory back, after a wait until nothing on the device uses it.
  virtual void deallocate(void* pages) noexcept = 0;
  /// Bytes that are free now, for messages.
  [[nodiscard]] virtual std::size_t free_bytes() const = 0;
};

}  // namespace tidepool
