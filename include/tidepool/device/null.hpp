/// A device that does nothing: what remains is the engine's own cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tidepool/device/device.hpp"

namespace tidepool {

/// Copies move no byte, joins wait for nothing, time stands still; memory is real host memory that
/// nobody touches. Thread safety: none, one per thread.
class null_device {
 public:
  static constexpr std::string_view name = "null";

  class stream_ref {
   public:
    constexpr stream_ref() = default;
    constexpr explicit stream_ref(std::uint64_t key) : key_(key) {}
    [[nodiscard]] constexpr std::uint64_t key() const { return key_; }

   private:
    std::uint64_t key_ = 0;
  };

  class stream {
   public:
    explicit stream(std::uint64_t key) : ref_(key) {}
    stream(stream&&) noexcept = default;
    stream& operator=(stream&&) noexcept = default;
    [[nodiscard]] stream_ref ref() const { return ref_; }

   private:
    stream_ref ref_;
  };

  class event {
   public:
    event() = default;
    event(event&&) noexcept = default;
    event& operator=(event&&) noexcept = default;
  };

  [[nodiscard]] stream make_stream() { return stream{++streams_}; }
  [[nodiscard]] event make_event(bool /*timing*/ = false) { return {}; }
  void record(event& /*target*/, stream_ref /*on*/) {}
  void wait(stream_ref /*waiter*/, const event& /*until*/) {}
  void synchronize(stream_ref /*which*/) {}
  void synchronize() {}
  [[nodiscard]] double elapsed_us(const event& /*from*/, const event& /*to*/) const { return 0; }
  void copy(void* /*target*/, const void* /*source*/, const copy_shape& /*shape*/,
            copy_direction /*direction*/, stream_ref /*on*/) {}
  void fill_bytes(void* /*pointer*/, unsigned char /*byte*/, std::size_t /*bytes*/,
                  stream_ref /*on*/) {}

  [[nodiscard]] void* try_allocate(std::size_t bytes) { return std::malloc(bytes); }
  [[nodiscard]] void* try_allocate_host(std::size_t bytes) { return std::malloc(bytes); }
  void deallocate(void* pointer) noexcept { std::free(pointer); }
  void deallocate_host(void* pointer) noexcept { std::free(pointer); }
  [[nodiscard]] memory_info memory() const { return {}; }

 private:
  std::uint64_t streams_ = 0;
};

static_assert(filling_device<null_device>);

}  // namespace tidepool
