/// A device that does nothing, so that measurements show the engine's own cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tidepool/device/device.hpp"

namespace tidepool::inline v0_3_0 {

/// Copies move no bytes, joins do not wait, and time stands still. Memory is real host memory that
/// no call touches. Thread safety: none; use an object in one thread.
class null_device {
 public:
  static constexpr std::string_view name = "null";  ///< for messages and pictures
  static constexpr bool simulates_time = true;      ///< work takes the same time in every step

  /// A copyable name of a stream.
  class stream_ref {
   public:
    constexpr stream_ref() = default;
    /// Names the stream with that key.
    constexpr explicit stream_ref(std::uint64_t key) : key_(key) {}
    /// Tells streams apart.
    [[nodiscard]] constexpr std::uint64_t key() const { return key_; }

   private:
    std::uint64_t key_ = 0;
  };

  /// Owns a stream, on which nothing runs.
  class stream {
   public:
    explicit stream(std::uint64_t key) : ref_(key) {}  ///< A stream with that key.
    stream(stream&&) noexcept = default;               ///< Takes over the stream.
    stream& operator=(stream&&) noexcept = default;    ///< Takes over the stream.
    /// The stream's name, for an offloader.
    [[nodiscard]] stream_ref ref() const { return ref_; }

   private:
    stream_ref ref_;
  };

  /// An event that stands for nothing.
  class event {
   public:
    event() = default;
    event(event&&) noexcept = default;             ///< A new event.
    event& operator=(event&&) noexcept = default;  ///< A new event.
  };

  /// A stream with a key of its own.
  [[nodiscard]] stream make_stream() { return stream{++streams_}; }
  [[nodiscard]] event make_event(bool /*timing*/ = false) { return {}; }  ///< An event.
  void record(event& /*target*/, stream_ref /*on*/) {}                    ///< Does nothing.
  void wait(stream_ref /*waiter*/, const event& /*until*/) {}             ///< Does nothing.
  void synchronize(stream_ref /*which*/) {}                               ///< Does nothing.
  void synchronize() {}                                                   ///< Does nothing.
  /// Always 0.
  [[nodiscard]] double elapsed_us(const event& /*from*/, const event& /*to*/) const { return 0; }
  /// Copies nothing.
  void copy(void* /*target*/, const void* /*source*/, const copy_shape& /*shape*/,
            copy_direction /*direction*/, stream_ref /*on*/) {}
  /// Fills nothing.
  void fill_bytes(void* /*pointer*/, unsigned char /*byte*/, std::size_t /*bytes*/,
                  stream_ref /*on*/) {}

  /// Memory by `malloc`; null when there is none.
  [[nodiscard]] void* try_allocate(std::size_t bytes) { return std::malloc(bytes); }
  /// Memory by `malloc`; null when there is none.
  [[nodiscard]] void* try_allocate_host(std::size_t bytes) { return std::malloc(bytes); }
  [[nodiscard]] std::size_t packs_from() const { return 1; }  ///< Packs all tensors, in no time.
  /// Does nothing.
  void pack(std::byte* /*packed*/, std::byte* /*spill*/, const std::byte* /*tensor*/,
            std::size_t /*bytes*/, stream_ref /*on*/) {}
  /// Does nothing.
  void unpack(std::byte* /*tensor*/, const std::byte* /*packed*/, const std::byte* /*spill*/,
              std::size_t /*bytes*/, stream_ref /*on*/) {}
  /// Gives memory of `try_allocate` back.
  void deallocate(void* pointer) noexcept { std::free(pointer); }
  /// Gives memory of `try_allocate_host` back.
  void deallocate_host(void* pointer) noexcept { std::free(pointer); }
  [[nodiscard]] bool moves_bytes() const { return false; }  ///< No memory has contents.
  [[nodiscard]] memory_info memory() const { return {}; }   ///< Both 0: no bytes are counted.

 private:
  std::uint64_t streams_ = 0;
};

static_assert(filling_device<null_device> && packing_device<null_device>);

}  // namespace tidepool
