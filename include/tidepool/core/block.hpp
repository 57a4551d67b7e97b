/// A piece of memory that carries its own fence, and what hands such pieces out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "tidepool/core/clocks.hpp"
#include "tidepool/core/placement.hpp"

namespace tidepool::inline v0_2_0 {

/// Every block starts at a multiple of this and is as long as one; kernels and copy engines want
/// it.
inline constexpr std::size_t block_alignment = 256;

/// `bytes` rounded up to whole multiples of `block_alignment`.
[[nodiscard]] constexpr std::size_t aligned(std::size_t bytes) {
  constexpr auto most = std::numeric_limits<std::size_t>::max() / block_alignment * block_alignment;
  if (bytes > most) return most;  // that nobody has
  return (bytes + block_alignment - 1) / block_alignment * block_alignment;
}

/// A piece of memory.
struct block {
  void* data = nullptr;     ///< its first byte; null: no block
  std::size_t bytes = 0;    ///< as taken from its source
  std::uint32_t index = 0;  ///< for the source that handed it out

  explicit operator bool() const { return data != nullptr; }  ///< True when there is a block.
};

namespace detail {

// Where a tensor of no bytes lies. No source hands it out or takes it back, and nobody is told.
[[nodiscard]] inline block no_bytes() {
  static char here{};
  return {&here, 0, 0};
}

}  // namespace detail

/// A block and the fence after which it may be touched; an empty fence when the asking lane has
/// joined it already.
struct grant {
  block memory;  ///< what was granted; none: nothing fits
  fence ready;   ///< to be joined before the memory is touched

  /// True when something was granted.
  explicit operator bool() const { return static_cast<bool>(memory); }
};

/// How close blocks are placed where the streams that get them have to wait for it.
enum class fit_policy : std::uint8_t {
  ready_first,    ///< nobody waits for it
  spare_largest,  ///< where the largest block would otherwise find no room any more
  compact,        ///< always, once memory is short
};

class borrowed_memory;

/// One way to hand out blocks: pool, arena, slots, or a trainer's own.
///
/// `take` never waits: it hands out a block together with the fence to join, or says that nothing
/// fits that is not in use. `release` takes the fence after which the block is free;
/// it may be in the future. Neither blocks the host. A source serves one offloader. Thread safety:
/// none.
class block_source {
 public:
  block_source() = default;
  block_source(const block_source&) = delete;
  block_source& operator=(const block_source&) = delete;
  virtual ~block_source() = default;

  /// The offloader begins: its clocks, and its book of memory that goes back to other allocators.
  /// For a source that waits itself; both live as long as the source is used.
  virtual void attach(clocks& /*order*/, borrowed_memory& /*borrowed*/) {}
  /// Its memory goes back to an allocator that hands it to others, so that no graph may know it.
  [[nodiscard]] virtual bool gives_back() const { return false; }

  /// A block of `bytes` (more than 0) that `waiter` will touch first. `ready` comes in empty.
  /// False, and nothing written, when there is none.
  [[nodiscard]] virtual bool take(std::size_t bytes, lane_id waiter, block& into, fence& ready) = 0;
  /// The same as a value.
  [[nodiscard]] grant acquire(std::size_t bytes, lane_id waiter) {
    grant result;
    static_cast<void>(take(bytes, waiter, result.memory, result.ready));
    return result;
  }
  /// The same for the memory that begins `offset` bytes behind the begin of a source that is one
  /// piece. Others have no such place.
  [[nodiscard]] virtual bool take_at(std::size_t /*offset*/, std::size_t /*bytes*/,
                                     lane_id /*waiter*/, block& /*into*/, fence& /*ready*/) {
    return false;
  }
  /// Takes a block back, which is free behind `after`. Does not block the host.
  virtual void release(const block& done, const fence& after) noexcept = 0;

  /// Bytes taken from the device now, and the most ever.
  [[nodiscard]] virtual std::size_t reserved() const = 0;
  /// The most bytes ever taken from the device.
  [[nodiscard]] virtual std::size_t peak() const = 0;
  /// Most bytes it may ever take, for messages; 0 when it has no limit of its own.
  [[nodiscard]] virtual std::size_t budget() const = 0;
  /// Largest block that could be had now, for messages.
  [[nodiscard]] virtual std::size_t largest_free() const = 0;
  /// Calls to the device's allocator so far.
  [[nodiscard]] virtual std::uint64_t allocations() const = 0;
  /// Tells a source that grows how many bytes it should let be in flight before it reuses the
  /// oldest with a join. Others ignore it.
  virtual void allow_in_flight(std::size_t /*bytes*/) {}
  /// What keeps memory from going to pieces from now on. A source that is one piece does so; others
  /// ignore it.
  virtual void set_fit(fit_policy /*how*/) noexcept {}
  /// The step is over. What is free in pieces may be put together. Does not throw.
  virtual void coalesce() noexcept {}
  /// The last resort where a request found no room: what is not in use goes back to the device, if
  /// that may make room for it in one piece. False where nothing went. May block the host.
  virtual bool give_back_unused() noexcept { return false; }

  /// False where it has served another offloader, also one that is gone: fences are positions on
  /// the streams of one. `whose` is the offloader's for as long as it has handles.
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
