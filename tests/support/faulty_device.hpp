/// A device of which one call fails: the k-th of its kind, once or from then on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "disk.hpp"
#include "heap_fault.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/error.hpp"

namespace tidepool::test {

/// Every call that a driver may refuse.
enum class call_kind : std::uint8_t {
  make_stream,
  make_event,
  record,
  wait,
  synchronize,
  elapsed,
  copy,
  try_allocate,
  try_allocate_host,
  try_allocate_peer,
  begin_capture,
  capturing,
  end_capture,
  replay,
  fill_bytes,
  pack,
  unpack,
  count
};
inline constexpr auto call_kinds = static_cast<std::size_t>(call_kind::count);

[[nodiscard]] constexpr std::string_view name_of(call_kind kind) {
  constexpr std::string_view names[]{"make_stream",
                                     "make_event",
                                     "record",
                                     "wait",
                                     "synchronize",
                                     "elapsed",
                                     "copy",
                                     "try_allocate",
                                     "try_allocate_host",
                                     "try_allocate_peer",
                                     "begin_capture",
                                     "capturing",
                                     "end_capture",
                                     "replay",
                                     "fill_bytes",
                                     "pack",
                                     "unpack"};
  static_assert(std::size(names) == call_kinds);
  return names[static_cast<std::size_t>(kind)];
}

/// What becomes of the call that fails, and of those after it.
enum class manner : std::uint8_t {
  once,        ///< it throws; the next works again
  sticky,      ///< it throws, and so does every later call, as after a CUDA kernel went astray
  refused,     ///< an allocation finds no memory; the next does
  refused_on,  ///< nor does any later one of its kind
};

struct fault {
  call_kind kind{};
  std::uint64_t index = 1;  ///< counted from 1
  manner how = manner::once;
};

/// `Base` with a fault; its own use of the heap is not watched (heap_fault.hpp). Streams, events
/// and graphs are those of `Base`, counted as long as they live, and so is memory.
template <class Base>
class faulty_device : public Base {
  // Counts what carries it: one more while it lives and was not moved from.
  class token {
   public:
    explicit token(std::size_t& count) : count_(&count) { ++count; }
    token(token&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    token& operator=(token&& other) noexcept {
      std::swap(count_, other.count_);
      return *this;
    }
    ~token() {
      if (count_ != nullptr) --*count_;
    }

   private:
    std::size_t* count_;
  };

  template <class Counted>
  class counted : public Counted {
   private:
    friend class faulty_device;
    counted(Counted&& made, std::size_t& count) : Counted(std::move(made)), token_(count) {}
    token token_;
  };

 public:
  using Base::Base;
  using stream_ref = typename Base::stream_ref;
  using stream = counted<typename Base::stream>;
  using event = counted<typename Base::event>;
  using graph = counted<typename Base::graph>;

  /// The code of every `device_error` that a fault throws; no driver has it.
  static constexpr int code = 987654;

  /// Streams, events, graphs and memory that were not given back.
  struct holdings {
    std::size_t streams = 0;
    std::size_t events = 0;
    std::size_t graphs = 0;
    std::size_t device_blocks = 0;
    std::size_t host_blocks = 0;
    std::size_t peer_blocks = 0;
    friend bool operator==(const holdings&, const holdings&) = default;
  };

  void arm(const fault& next) {
    fault_ = next;
    forget();
  }
  void disarm() {
    fault_.reset();
    forget();
  }
  /// From now on every call fails, as with `manner::sticky`.
  void lose() {
    disarm();
    broken_ = true;
  }
  /// True once the call has failed.
  [[nodiscard]] bool tripped() const { return tripped_; }
  /// Calls since it was armed or disarmed.
  [[nodiscard]] std::uint64_t calls(call_kind kind) const { return calls_[index_of(kind)]; }
  [[nodiscard]] const holdings& held() const { return held_; }
  /// True while every call fails.
  [[nodiscard]] bool broken() const { return broken_; }
  /// Copies and graphs on their way, where that can be known.
  [[nodiscard]] std::size_t flying() const { return *flying_; }
  /// Freed memory that a copy or a graph on its way could still have touched.
  [[nodiscard]] std::size_t freed_in_use() const { return freed_in_use_; }

  /// Files are in memory, and never fail.
  [[nodiscard]] std::unique_ptr<backing_file> open_file(const std::string& /*path*/) {
    const heap_watch device(false);
    return std::make_unique<disk_file>(on_disk_);
  }
  [[nodiscard]] stream make_stream() {
    const heap_watch device(false);
    pass(call_kind::make_stream);
    return {Base::make_stream(), held_.streams};
  }
  [[nodiscard]] event make_event(bool timing = false) {
    const heap_watch device(false);
    pass(call_kind::make_event);
    return {Base::make_event(timing), held_.events};
  }
  void record(typename Base::event& target, stream_ref on) {
    const heap_watch device(false);
    pass(call_kind::record);
    Base::record(target, on);
  }
  void wait(stream_ref waiter, const typename Base::event& until) {
    const heap_watch device(false);
    pass(call_kind::wait);
    Base::wait(waiter, until);
  }
  void synchronize(stream_ref which) {
    const heap_watch device(false);
    pass(call_kind::synchronize);
    Base::synchronize(which);
  }
  void synchronize() {
    const heap_watch device(false);
    pass(call_kind::synchronize);
    Base::synchronize();
  }
  [[nodiscard]] double elapsed_us(const typename Base::event& from,
                                  const typename Base::event& to) const {
    const heap_watch device(false);
    pass(call_kind::elapsed);
    return Base::elapsed_us(from, to);
  }
  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            stream_ref on) {
    const heap_watch device(false);
    pass(call_kind::copy);
    Base::copy(target, source, shape, direction, on);
    note_flight(on);
  }
  [[nodiscard]] bool copy_batch(std::span<const copy_item> items, copy_direction direction,
                                stream_ref on) requires requires(Base& base) {
    base.copy_batch(items, direction, on);
  }
  {
    const heap_watch device(false);
    pass(call_kind::copy);
    return Base::copy_batch(items, direction, on);
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes) {
    const heap_watch device(false);
    if (!pass(call_kind::try_allocate)) return nullptr;
    auto* const pointer = Base::try_allocate(bytes);
    held_.device_blocks += pointer == nullptr ? 0 : 1;
    return pointer;
  }
  [[nodiscard]] void* try_allocate_host(std::size_t bytes) {
    const heap_watch device(false);
    if (!pass(call_kind::try_allocate_host)) return nullptr;
    auto* const pointer = Base::try_allocate_host(bytes);
    held_.host_blocks += pointer == nullptr ? 0 : 1;
    return pointer;
  }
  [[nodiscard]] void* try_allocate_peer(int peer, std::size_t bytes) requires peer_device<Base> {
    if (!pass(call_kind::try_allocate_peer)) return nullptr;
    auto* const pointer = Base::try_allocate_peer(peer, bytes);
    held_.peer_blocks += pointer == nullptr ? 0 : 1;
    return pointer;
  }
  void deallocate_peer(int peer, void* pointer) noexcept requires peer_device<Base> {
    note_free(pointer, held_.peer_blocks);
    Base::deallocate_peer(peer, pointer);
  }
  void deallocate(void* pointer) noexcept {
    const heap_watch device(false);
    note_free(pointer, held_.device_blocks);
    Base::deallocate(pointer);
  }
  void deallocate_host(void* pointer) noexcept {
    const heap_watch device(false);
    note_free(pointer, held_.host_blocks);
    Base::deallocate_host(pointer);
  }

  void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, stream_ref on) {
    const heap_watch device(false);
    pass(call_kind::fill_bytes);
    Base::fill_bytes(pointer, byte, bytes, on);
  }
  void pack(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
            stream_ref on) requires packing_device<Base> {
    const heap_watch device(false);
    pass(call_kind::pack);
    Base::pack(packed, spill, tensor, bytes, on);
    note_flight(on);
  }
  void unpack(std::byte* tensor, const std::byte* packed, const std::byte* spill, std::size_t bytes,
              stream_ref on) requires packing_device<Base> {
    const heap_watch device(false);
    pass(call_kind::unpack);
    Base::unpack(tensor, packed, spill, bytes, on);
    note_flight(on);
  }
  bool poison(void* pointer, std::size_t bytes, stream_ref on) requires requires(Base& base) {
    base.poison(pointer, bytes, on);
  }
  {
    const heap_watch device(false);
    return Base::poison(pointer, bytes, on);
  }

  void begin_capture(stream_ref on) {
    const heap_watch device(false);
    pass(call_kind::begin_capture);
    Base::begin_capture(on);
  }
  [[nodiscard]] bool capturing(stream_ref which) const {
    const heap_watch device(false);
    pass(call_kind::capturing);
    return Base::capturing(which);
  }
  /// The capture ends even when this fails, as the concept has it.
  [[nodiscard]] graph end_capture(stream_ref on) {
    const heap_watch device(false);
    graph made(Base::end_capture(on), held_.graphs);
    pass(call_kind::end_capture);
    return made;
  }
  void replay(typename Base::graph& which, stream_ref on) {
    const heap_watch device(false);
    pass(call_kind::replay);
    Base::replay(which, on);
    note_flight(on);
  }

 private:
  static constexpr std::size_t index_of(call_kind kind) { return static_cast<std::size_t>(kind); }

  void forget() {
    calls_ = {};
    freed_in_use_ = 0;
    tripped_ = broken_ = false;
  }

  // Counts a call. Throws when it is to fail; false when it is to find no memory.
  bool pass(call_kind kind) const {
    const auto number = ++calls_[index_of(kind)];
    if (broken_) fail(kind, number);
    if (!fault_ || fault_->kind != kind) return true;
    const bool goes_on = fault_->how == manner::refused_on && number > fault_->index;
    if (number != fault_->index && !goes_on) return true;
    tripped_ = true;
    if (fault_->how == manner::refused || fault_->how == manner::refused_on) return false;
    broken_ = fault_->how == manner::sticky;
    fail(kind, number);
  }
  [[noreturn]] static void fail(call_kind kind, std::uint64_t number) {
    throw device_error("faulty device: " + std::string(name_of(kind)) + " number " +
                           std::to_string(number) + " failed",
                       code);
  }

  // Behind a copy or a graph, in its stream; gone once that has run, or was dropped.
  struct flight {
    explicit flight(std::shared_ptr<std::size_t> all) : count(std::move(all)) { ++*count; }
    flight(const flight&) = delete;
    flight& operator=(const flight&) = delete;
    ~flight() { --*count; }
    std::shared_ptr<std::size_t> count;
  };

  // Where work runs only when somebody synchronizes, what was queued and has not run is known.
  static constexpr bool knows_flight = requires(Base & base, stream_ref on) {
    base.launch(on, 0.0, [] {});
  };
  void note_flight(stream_ref on) {
    if constexpr (knows_flight) {
      if (Base::capturing(on)) return;
      Base::launch(on, 0, [over = std::make_shared<flight>(flying_)] {});
    }
  }
  void note_free(const void* pointer, std::size_t& held) noexcept {
    if (pointer == nullptr) return;
    --held;
    freed_in_use_ += *flying_ > 0 ? 1 : 0;
  }

  std::shared_ptr<disk> on_disk_ = std::make_shared<disk>();
  std::optional<fault> fault_;
  mutable std::array<std::uint64_t, call_kinds> calls_{};
  mutable bool tripped_ = false;
  mutable bool broken_ = false;
  holdings held_;
  std::shared_ptr<std::size_t> flying_ = std::make_shared<std::size_t>(0);
  std::size_t freed_in_use_ = 0;
};

}  // namespace tidepool::test
