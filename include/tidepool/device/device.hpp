/// The calls that the engine makes to a device: streams, events, copies, memory. No other part
/// depends on the kind of device.
#pragma once

#if !defined(__cpp_concepts)
#error "tidepool needs C++20: compile with -std=c++20"
#endif

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tidepool/core/join_site.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0 {

/// The direction of a copy.
enum class copy_direction : std::uint8_t {
  device_to_host,  ///< an offload
  host_to_device,  ///< a reload
  device_to_peer,  ///< an offload to a neighbour
  peer_to_device   ///< a reload from a neighbour
};

/// True if a copy is an offload.
[[nodiscard]] constexpr bool is_offload(copy_direction which) {
  return which == copy_direction::device_to_host || which == copy_direction::device_to_peer;
}

/// A dense or pitched copy. A dense one has one row; widths and pitches are bytes.
struct copy_shape {
  std::size_t width = 0;         ///< bytes of one row
  std::size_t rows = 1;          ///< number of rows
  std::size_t source_pitch = 0;  ///< bytes from row to row of the source
  std::size_t target_pitch = 0;  ///< bytes from row to row of the target

  /// Bytes that are copied.
  [[nodiscard]] constexpr std::size_t bytes() const { return width * rows; }
};

/// A dense copy, which is a part of a batch.
struct copy_item {
  void* target = nullptr;        ///< first byte that it writes
  const void* source = nullptr;  ///< first byte that it reads
  std::size_t bytes = 0;         ///< number of bytes
};

/// Contents of memory when it is handed out.
enum class fill : std::uint8_t {
  none,  ///< old bytes
  zero   ///< zeros, written on the stream of the call
};

/// Bytes as the driver counts them.
struct memory_info {
  std::size_t free = 0;   ///< bytes that no program has allocated
  std::size_t total = 0;  ///< bytes that the device has
};

/// Streams, events, copies and memory of one device.
///
/// - `stream_ref` is a cheap copyable name of a stream; `key()` tells streams apart for the life of
///   the process. `stream` and `event` own theirs and are move-only.
/// - `record`, `wait` and `copy` never block the host. Device and host pointers come from the
///   device's own allocation functions; `try_…` return null when the memory is exhausted and throw
///   `device_error` on any other failure.
/// - A device may have `copy_batch(items, direction, stream)`, which copies many small items at
///   less cost. If it returns false, the copies are made one by one.
/// - A device whose work runs in the process may have `drop(stream)`, which forgets the work that
///   is queued there. An offloader that an exception destroys calls it for every stream that it
///   served. `issued()` counts the work that was queued, and `drop(stream, issued)` leaves the
///   first `issued` alone: with both, work from before the offloader was made stays.
/// - A device may have `passed(event)`: true if all work before the event's latest record is over.
///   The call never waits.
/// - A device may take the number of bytes that a stream's work saves (see
///   `host_executing_device`).
/// - A device may have `fill_bytes`, which `fill::zero` and `options::poison` need (see
///   `filling_device`), and graphs (see `capturing_device`).
/// - Functions that free are `noexcept` and wait until nothing on the device uses the memory.
template <class Device>
concept device = requires(Device& dev, typename Device::stream& stream,
                          typename Device::stream_ref ref, typename Device::event& event,
                          void* pointer, const void* source, std::size_t bytes,
                          const copy_shape& shape, copy_direction direction, bool timing) {
  requires std::semiregular<typename Device::stream_ref>;
  requires std::movable<typename Device::stream> && !std::copyable<typename Device::stream>;
  requires std::movable<typename Device::event> && !std::copyable<typename Device::event>;
  { Device::name } -> std::convertible_to<std::string_view>;
  { ref.key() } -> std::convertible_to<std::uint64_t>;
  { dev.make_stream() } -> std::same_as<typename Device::stream>;
  { stream.ref() } -> std::same_as<typename Device::stream_ref>;
  { dev.make_event(timing) } -> std::same_as<typename Device::event>;
  dev.record(event, ref);
  dev.wait(ref, event);
  dev.synchronize(ref);
  dev.synchronize();
  { dev.elapsed_us(event, event) } -> std::convertible_to<double>;
  dev.copy(pointer, source, shape, direction, ref);
  { dev.try_allocate(bytes) } -> std::same_as<void*>;
  { dev.try_allocate_host(bytes) } -> std::same_as<void*>;
  { dev.deallocate(pointer) }
  noexcept;
  { dev.deallocate_host(pointer) }
  noexcept;
  { dev.memory() } -> std::same_as<memory_info>;
};

/// A device that fills memory: `fill_bytes(pointer, byte, bytes, stream)` queues it on the stream,
/// as `cudaMemsetAsync` does, and never blocks the host.
template <class Device>
concept filling_device = device<Device> &&
    requires(Device& dev, void* pointer, unsigned char byte, std::size_t bytes,
             typename Device::stream_ref ref) {
  dev.fill_bytes(pointer, byte, bytes, ref);
};

/// A device that packs BF16 tensors in the form of codec/pack_form.hpp, so that their copies are
/// shorter.
///
/// Both calls are queued on the stream and never block the host. `packed` lies in device memory, or
/// in host memory where device memory is short; `spill` lies in host memory that kernels reach.
/// Tensors of fewer bytes than `packs_from` are not packed; 0: the device does not pack. It may
/// have `pack_piece()`: the most bytes of a call of `unpack`, a multiple of 16 KiB, else 16 MiB;
/// and `pack_rate()` and `unpack_rate()`: the tensor bytes that `pack` reads and `unpack` writes,
/// in GB/s, for plans.
template <class Device>
concept packing_device = device<Device> &&
    requires(Device& dev, std::byte* to, const std::byte* from, std::size_t bytes,
             typename Device::stream_ref ref) {
  { dev.packs_from() } -> std::convertible_to<std::size_t>;
  dev.pack(to, to, from, bytes, ref);
  dev.unpack(to, from, from, bytes, ref);
};

/// A device whose streams can be captured into graphs.
///
/// Between `begin_capture` and `end_capture` work for the stream, and for every stream that waits
/// for an event recorded there, is kept instead of run. Waits for a captured event are allowed only
/// inside its capture, waits for other events only outside, and all streams must be joined back
/// before the end. `end_capture` ends the capture even when it throws.
template <class Device>
concept capturing_device = device<Device> &&
    requires(Device& dev, typename Device::graph& graph, typename Device::stream_ref ref) {
  requires std::movable<typename Device::graph> && !std::copyable<typename Device::graph>;
  dev.begin_capture(ref);
  { dev.capturing(ref) } -> std::same_as<bool>;
  { dev.end_capture(ref) } -> std::same_as<typename Device::graph>;
  dev.replay(graph, ref);
};

/// A device that can use memory of its neighbours: other devices of the host, known by a number.
///
/// Copies to and from a neighbour run on streams of this device. `why_no_peer` says in words why a
/// neighbour's memory cannot be had, or returns an empty text. `try_allocate_peer` returns null
/// when the neighbour has no memory left, and throws `device_error` on any other failure.
template <class Device>
concept peer_device = device<Device> &&
    requires(Device& dev, int peer, void* pointer, std::size_t bytes) {
  { dev.why_no_peer(peer) } -> std::convertible_to<std::string>;
  { dev.try_allocate_peer(peer, bytes) } -> std::same_as<void*>;
  { dev.deallocate_peer(peer, pointer) }
  noexcept;
};

/// Memory of a device that other processes of the host may map.
struct exported_memory {
  int descriptor = -1;    ///< a file descriptor; its receiver closes it
  std::uint64_t id = 0;   ///< an id for `drop_export`
  std::size_t bytes = 0;  ///< at most the bytes that were asked for
};

/// A device whose memory other processes can use, and that can use their memory; see `lend`.
///
/// `try_export` takes whole pages of the device's own memory, as many as fit the bytes; it returns
/// nothing when the device has no more. `import_memory` maps memory that another process has
/// exported, for copies of this device. Imported memory outlives its exporter. Both throw
/// `device_error` on any other failure. `drop_import` waits for nothing: no copy may use the memory
/// any more.
template <class Device>
concept lending_device = device<Device> &&
    requires(Device& dev, std::size_t bytes, int descriptor, std::uint64_t id, void* pointer) {
  { dev.try_export(bytes) } -> std::same_as<std::optional<exported_memory>>;
  { dev.drop_export(id) }
  noexcept;
  { dev.import_memory(descriptor, bytes) } -> std::same_as<void*>;
  { dev.drop_import(pointer) }
  noexcept;
};

/// A device that checks the order of accesses (device/checked.hpp). The engine reports memory that
/// is released, borrowed or returned to an owner, and the group that its own work is about.
template <class Device>
concept order_checking_device = device<Device> &&
    requires(Device& dev, const void* pointer, std::size_t bytes, typename Device::stream_ref ref,
             std::string_view module, int number) {
  dev.gave_back(pointer, bytes, ref);
  dev.borrows(pointer, bytes);
  dev.returned(pointer, bytes, ref);
  dev.name_copy_streams(ref, ref, ref, place_kind::host);
  dev.writes_file(pointer, pointer, bytes);
  dev.reads_file(pointer, pointer, bytes);
  dev.abandons_capture();
  dev.at(module, number, number);
};

/// A device that lets the host do a stream's work itself (see `virtual_device::host_executes`): the
/// engine reports the bytes that this work saves, or reads again.
template <class Device>
concept host_executing_device = device<Device> &&
    requires(Device& dev, std::size_t bytes, typename Device::stream_ref ref) {
  { dev.host_executed(ref) } -> std::same_as<bool>;
  dev.worked(bytes, ref);
};

namespace detail {

// True if an offloader asks a device which work is over. A device that checks orders is not asked,
// because the reuse of memory, and so the findings, would depend on the clock.
template <class Device>
inline constexpr bool tells_what_is_over =
    !order_checking_device<Device> && requires(Device & dev, const typename Device::event& each) {
  dev.passed(each);
};

}  // namespace detail

}  // namespace tidepool
