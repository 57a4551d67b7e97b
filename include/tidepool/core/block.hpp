/// Blocks of memory, and the sources that hand them out together with a fence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/placement.hpp"

namespace tidepool::inline v0_3_0 {

/// The alignment of blocks in bytes: every block starts at a multiple of it and is a multiple of it
/// long, because kernels and copy engines want that.
inline constexpr std::size_t block_alignment = 256;

/// `bytes` rounded up to whole multiples of `block_alignment`.
[[nodiscard]] constexpr std::size_t aligned(std::size_t bytes) {
  constexpr auto most = std::numeric_limits<std::size_t>::max() / block_alignment * block_alignment;
  if (bytes > most) return most;  // more than any machine has
  return (bytes + block_alignment - 1) / block_alignment * block_alignment;
}

/// A piece of memory.
struct block {
  void* data = nullptr;     ///< its first byte; null: no block
  std::size_t bytes = 0;    ///< bytes taken from the source
  std::uint32_t index = 0;  ///< the source's own number of the block

  explicit operator bool() const { return data != nullptr; }  ///< True when there is a block.
};

namespace detail {

// The block of a tensor of 0 bytes. Sources do not know it: none hands it out or takes it back.
[[nodiscard]] inline block no_bytes() {
  static char here{};
  return {&here, 0, 0};
}

}  // namespace detail

/// A block and the fence after which it may be touched. The fence is empty if the asking lane has
/// joined it already.
struct grant {
  block memory;  ///< the granted block; none: nothing fits
  fence ready;   ///< fence to join before the memory is touched

  /// True when something was granted.
  explicit operator bool() const { return static_cast<bool>(memory); }
};

/// How far a stream waits so that its block lies close to others.
enum class fit_policy : std::uint8_t {
  ready_first,    ///< a stream never waits for close placement
  spare_largest,  ///< a stream waits if the largest block would otherwise find no room any more
  compact,        ///< a stream always waits, once memory is short
};

class borrowed_memory;

/// A way to hand out blocks: pool, arena, slots, or a trainer's own.
///
/// `take` never waits: it hands out a block together with the fence to join, or returns false if no
/// free memory fits. `release` takes the fence after which the block is free; the work before that
/// fence may still run. `take` blocks the host only while the source grows, `release` never. A
/// source serves one offloader. Thread safety: none.
class block_source {
 public:
  block_source() = default;
  block_source(const block_source&) = delete;
  block_source& operator=(const block_source&) = delete;
  virtual ~block_source() = default;

  /// Gives the source the offloader's clocks, and its book of memory that goes back to other
  /// allocators, for sources that make joins themselves. The offloader's constructor calls it; both
  /// arguments live as long as the source is used.
  virtual void attach(clocks& /*order*/, borrowed_memory& /*borrowed*/) {}
  /// True if the memory goes back to an allocator that hands it to others; then no graph may know
  /// its addresses.
  [[nodiscard]] virtual bool gives_back() const { return false; }

  /// Takes a block of `bytes` (more than 0) that `waiter` will touch first. `ready` comes in empty.
  /// Returns false, and writes nothing, when there is none.
  [[nodiscard]] virtual bool take(std::size_t bytes, lane_id waiter, block& into, fence& ready) = 0;
  /// Like `take`, for a block that is of use but not needed: a source with a budget does not grow
  /// for it.
  [[nodiscard]] virtual bool take_spare(std::size_t bytes, lane_id waiter, block& into,
                                        fence& ready) {
    return take(bytes, waiter, into, ready);
  }
  /// Like `take`, but returns the block and its fence.
  [[nodiscard]] grant acquire(std::size_t bytes, lane_id waiter) {
    grant result;
    static_cast<void>(take(bytes, waiter, result.memory, result.ready));
    return result;
  }
  /// Like `take`, for the memory that begins `offset` bytes behind the begin of a source that is
  /// one piece. Other sources return false.
  [[nodiscard]] virtual bool take_at(std::size_t /*offset*/, std::size_t /*bytes*/,
                                     lane_id /*waiter*/, block& /*into*/, fence& /*ready*/) {
    return false;
  }
  /// Releases a block, which is free behind `after`. Does not block the host.
  virtual void release(const block& done, const fence& after) noexcept = 0;

  /// Bytes taken from the device now.
  [[nodiscard]] virtual std::size_t reserved() const = 0;
  /// The most bytes ever taken from the device.
  [[nodiscard]] virtual std::size_t peak() const = 0;
  /// Most bytes that the source may ever take, for messages; 0 when it has no limit of its own.
  [[nodiscard]] virtual std::size_t budget() const = 0;
  /// Bytes of the largest block that could be taken now, for messages.
  [[nodiscard]] virtual std::size_t largest_free() const = 0;
  /// Calls to the device's allocator so far.
  [[nodiscard]] virtual std::uint64_t allocations() const = 0;
  /// Tells a source that grows how many bytes may be in flight before it reuses the oldest block,
  /// with a join, instead of growing. Other sources ignore it.
  virtual void allow_in_flight(std::size_t /*bytes*/) {}
  /// Sets how blocks are placed from now on, so that free memory stays in large pieces. A source
  /// that is one piece obeys; other sources ignore it.
  virtual void set_fit(fit_policy /*how*/) noexcept {}
  /// Lets the source merge free pieces, at the end of a step. Does not throw.
  virtual void coalesce() noexcept {}
  /// Returns unused memory to the device, so that a request that found no room may find room in one
  /// piece. Returns false if no memory was returned. May block the host.
  virtual bool give_back_unused() noexcept { return false; }

  /// Returns false if the source has served another offloader, even if that offloader is gone,
  /// because fences are positions on the streams of one offloader. `whose` identifies an offloader
  /// for as long as it has handles.
  [[nodiscard]] bool serves(const std::shared_ptr<const void>& whose) noexcept {
    if (!bound_) {
      whose_ = whose;
      bound_ = true;
    }
    return !whose_.owner_before(whose) && !whose.owner_before(whose_);
  }

 private:
  std::weak_ptr<const void> whose_;  // weak: a new offloader at the same address is another one
  bool bound_ = false;
};

}  // namespace tidepool
