/// A device that checks the order of all accesses to memory while a program runs.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tidepool/device/detail/checked_handles.hpp"
#include "tidepool/device/detail/operation.hpp"
#include "tidepool/device/detail/order_log.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/device/finding.hpp"

namespace tidepool::inline v0_3_0 {

/// A `Device` whose calls also go to a log, which vector clocks judge while the program runs.
///
/// It takes the place of `Device` in an offloader and has all members of `Device`. The trainer
/// declares what kernels read and write (`reads`, `writes`). Streams are ordered by `record`,
/// `wait` and `synchronize` of this object, or by `recorded`, `waited` and `host_waited` for other
/// events. `findings()` has the mistakes. No check blocks the host or changes the device's work.
/// But an offloader over it joins work instead of asking whether it is over, so that findings do
/// not depend on the clock. Thread safety: as `Device`, and one thread at a time.
///
/// A device class with functions of its own derives from this one and calls only this one, because
/// calls to `watched` are not seen.
///     tp::checked_device<tp::cuda_device> gpu{0};
///     dev.writes(x, stream, "gelu");       // beside the launch, on either side of it
///     dev.reads(weights, bytes, stream, "gelu");
///     std::cout << gpu.report();
template <device Device>
class checked_device : public Device {
 public:
  using watched = Device;                                       ///< The device that is watched.
  using stream_ref = typename Device::stream_ref;               ///< A stream of the device.
  using event = detail::checked_event<typename Device::event>;  ///< Owns an event.
  /// Owns a captured graph; void where `Device` has none.
  using graph = typename detail::graph_checked<Device>::type;

  /// Constructs `Device` with the same arguments.
  template <class... With>
    requires std::constructible_from<Device, const With&...>
  explicit checked_device(const With&... with) : Device(with...) {}
  checked_device(const checked_device&) = delete;
  checked_device& operator=(const checked_device&) = delete;

  // ---- declarations of the trainer ----

  /// Declares that a kernel on `on` reads these bytes. Call it beside the launch, between the same
  /// waits and records of the stream.
  void reads(const void* data, std::size_t bytes, stream_ref on, std::string_view kernel) {
    log_.read(lane_of(on), access_kind::kernel_read, data, bytes, kernel);
  }
  /// Like `reads`, for bytes that are written.
  void writes(const void* data, std::size_t bytes, stream_ref on, std::string_view kernel) {
    log_.write(lane_of(on), access_kind::kernel_write, data, bytes, kernel);
  }
  /// Like `reads`, for the elements of a span.
  template <class T, std::size_t Extent>
  void reads(std::span<T, Extent> data, stream_ref on, std::string_view kernel) {
    reads(data.data(), data.size_bytes(), on, kernel);
  }
  /// Like `writes`, for the elements of a span.
  template <class T, std::size_t Extent>
  void writes(std::span<T, Extent> data, stream_ref on, std::string_view kernel) {
    writes(data.data(), data.size_bytes(), on, kernel);
  }
  /// Like `reads`, for a whole buffer.
  template <detail::has_bytes Memory>
  void reads(const Memory& memory, stream_ref on, std::string_view kernel) {
    reads(memory.data(), memory.size(), on, kernel);
  }
  /// Like `writes`, for a whole buffer.
  template <detail::has_bytes Memory>
  void writes(const Memory& memory, stream_ref on, std::string_view kernel) {
    writes(memory.data(), memory.size(), on, kernel);
  }
  /// Declares that the host itself reads memory that the device reaches.
  void host_reads(const void* data, std::size_t bytes, std::string_view what) {
    log_.read(detail::order_clocks::host, access_kind::host_read, data, bytes, what);
  }
  /// Declares that the host itself writes memory that the device reaches.
  void host_writes(const void* data, std::size_t bytes, std::string_view what) {
    log_.write(detail::order_clocks::host, access_kind::host_write, data, bytes, what);
  }

  /// Names a stream in findings.
  void name_stream(stream_ref which, std::string as) {
    log_.clocks().name(lane_of(which), std::move(as), false);
  }
  /// Notes that an event of the trainer's own, known by any address, was recorded on a stream.
  void recorded(const void* own_event, stream_ref on) {
    const auto [at, fresh] = own_events_.try_emplace(own_event, 0U);
    if (fresh) at->second = log_.add_event();
    log_.record(lane_of(on), at->second);
  }
  /// Notes that a stream waits for an event of `recorded`. An event that was never recorded is
  /// ignored.
  void waited(stream_ref waiter, const void* own_event) {
    const auto at = own_events_.find(own_event);
    if (at == own_events_.end()) return;
    log_.expect_wait(lane_of(waiter), at->second);
    log_.wait(lane_of(waiter), at->second);
  }
  /// Notes that the host waited for a stream, or for the device, by another call than
  /// `synchronize`.
  void host_waited(stream_ref which) { log_.clocks().host_waits(lane_of(which)); }
  void host_waited() { log_.clocks().host_waits(); }  ///< Like the call for one, for all streams.

  /// While it lives, accesses belong to one part of the step. An offloader makes one for its own
  /// work.
  using place = detail::checked_place;
  /// Accesses from here to the end of the result belong to this part.
  place at(std::string_view module, int layer = -1, int microbatch = -1) {
    return {log_, module, layer, microbatch};
  }

  /// Turns findings of kernels that read unwritten memory on or off. They are on by default, from
  /// the first declared write.
  void check_unwritten(bool on) { log_.judge_unwritten(on); }

  // ---- findings ----

  /// The first 64 findings in order of time; each pair of places in the program counts once.
  [[nodiscard]] const std::vector<finding>& findings() const { return log_.findings().all(); }
  /// The number of findings, each repetition counted.
  [[nodiscard]] std::uint64_t finding_count() const { return log_.findings().count(); }
  /// Forgets the findings; a mistake that is found again counts anew.
  void forget_findings() { log_.findings().clear(); }
  /// All findings in words, and a line with their number.
  [[nodiscard]] std::string report() const {
    std::string text;
    for (const auto& each : findings()) text += "order: " + to_text(each);
    const auto count = findings().size();
    return text + "order: " + std::to_string(count) + (count == 1 ? " mistake" : " mistakes") +
           " found\n";
  }
  /// The number of accesses and ranges that are remembered now.
  [[nodiscard]] std::size_t log_size() const { return log_.size(); }

  /// Like the members of `Device`, but also noted in the log. See the concept `device`. @{
  [[nodiscard]] typename Device::stream make_stream() {
    auto made = Device::make_stream();
    static_cast<void>(log_.clocks().made(key_of(made.ref())));
    return made;
  }
  [[nodiscard]] event make_event(bool timing = false) { return {Device::make_event(timing), log_}; }
  void record(event& target, stream_ref on) {
    Device::record(target.inner, on);
    log_.record(lane_of(on), target.number);
  }
  void wait(stream_ref waiter, const event& until) {
    log_.expect_wait(lane_of(waiter), until.number);
    Device::wait(waiter, until.inner);
    log_.wait(lane_of(waiter), until.number);
    ran(waiter);
  }
  void synchronize(stream_ref which) {
    Device::synchronize(which);
    host_waited(which);
  }
  void synchronize() {
    Device::synchronize();
    host_waited();
  }
  [[nodiscard]] double elapsed_us(const event& from, const event& to) const {
    return Device::elapsed_us(from.inner, to.inner);
  }
  [[nodiscard]] bool passed(const event& which) requires
      requires(const Device& dev, const typename Device::event& each) {
    dev.passed(each);
  }
  {
    if (!Device::passed(which.inner)) return false;
    log_.passed(which.number);
    return true;
  }
  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            stream_ref on) {
    Device::copy(target, source, shape, direction, on);
    log_.copy(lane_of(on), target, source, shape, direction);
  }
  [[nodiscard]] bool copy_batch(std::span<const copy_item> items, copy_direction direction,
                                stream_ref on) requires requires(Device& dev) {
    dev.copy_batch(items, direction, on);
  }
  {
    if (!Device::copy_batch(items, direction, on)) return false;
    for (const auto& each : items) {
      log_.copy(lane_of(on), each.target, each.source, {each.bytes, 1, each.bytes, each.bytes},
                direction);
    }
    return true;
  }
  void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes,
                  stream_ref on) requires filling_device<Device> {
    Device::fill_bytes(pointer, byte, bytes, on);
    log_.write(lane_of(on), access_kind::fill, pointer, bytes, {});
    ran(on);
  }

  void pack(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
            stream_ref on) requires packing_device<Device> {
    Device::pack(packed, spill, tensor, bytes, on);
    log_.pack(lane_of(on), packed, spill, tensor, bytes);
    ran(on);
  }
  void unpack(std::byte* tensor, const std::byte* packed, const std::byte* spill, std::size_t bytes,
              stream_ref on) requires packing_device<Device> {
    Device::unpack(tensor, packed, spill, bytes, on);
    log_.unpack(lane_of(on), tensor, packed, spill, bytes);
    ran(on);
  }

  [[nodiscard]] void* try_allocate(std::size_t bytes) {
    return taken(Device::try_allocate(bytes), bytes, true);
  }
  template <class... How>
  [[nodiscard]] void* try_allocate_host(std::size_t bytes, const How&... how) requires
      requires(Device& dev) {
    dev.try_allocate_host(bytes, how...);
  }
  { return taken(Device::try_allocate_host(bytes, how...), bytes, false); }
  [[nodiscard]] void* allocate(std::size_t bytes) requires requires(Device& dev) {
    dev.allocate(bytes);
  }
  { return taken(Device::allocate(bytes), bytes, true); }
  [[nodiscard]] void* try_allocate_peer(int peer, std::size_t bytes) requires peer_device<Device> {
    return taken(Device::try_allocate_peer(peer, bytes), bytes, false);
  }
  void deallocate_peer(int peer, void* pointer) noexcept requires peer_device<Device> {
    forget(pointer);
    Device::deallocate_peer(peer, pointer);
  }
  [[nodiscard]] void* import_memory(int descriptor,
                                    std::size_t bytes) requires lending_device<Device> {
    return taken(Device::import_memory(descriptor, bytes), bytes, false);
  }
  void drop_import(void* pointer) noexcept requires lending_device<Device> {
    forget(pointer);
    Device::drop_import(pointer);
  }
  void deallocate(void* pointer) noexcept {
    forget(pointer);
    Device::deallocate(pointer);
  }
  void deallocate_host(void* pointer) noexcept {
    forget(pointer);
    Device::deallocate_host(pointer);
  }

  void begin_capture(stream_ref on) requires capturing_device<Device> {
    Device::begin_capture(on);
    log_.begin_capture(lane_of(on));
  }
  [[nodiscard]] graph end_capture(stream_ref on) requires capturing_device<Device> {
    if (!std::exchange(abandons_, false)) log_.expect_joined();
    try {
      auto made = Device::end_capture(on);
      return {std::move(made), log_.end_capture(), log_};
    } catch (...) {
      log_.abandon_capture();
      throw;
    }
  }
  template <class Graph>
    requires std::same_as<Graph, graph>
  void replay(Graph& which, stream_ref on) {
    Device::replay(which.inner, on);
    log_.launch(which.steps(), lane_of(on));
  }
  /// @}
  /// Like `launch` of the virtual device; `touches` declares the memory that the kernel uses.
  void launch(stream_ref on, double duration_ns, std::function<void()> run, const char* label = "",
              std::vector<kernel_access> touches = {}) requires requires(Device& dev) {
    dev.launch(on, duration_ns, run, label, touches);
  }
  {
    Device::launch(on, duration_ns, std::move(run), label, touches);
    for (const auto& each : touches) {
      if (each.writes) {
        writes(each.data, each.bytes, on, label);
      } else {
        reads(each.data, each.bytes, on, label);
      }
    }
    ran(on);
  }
  /// Like `drop` of `Device`. Dropped work counts as waited for, because it never runs.
  void drop(stream_ref which, std::uint64_t issued = 0) noexcept requires requires(Device& dev) {
    dev.drop(which, issued);
  }
  {
    Device::drop(which, issued);
    try {
      host_waited();
    } catch (...) {  // findings may then report more than is wrong
    }
  }

  // ---- calls of an offloader ----

  /// Notes that memory is handed out: its old contents count as unwritten.
  bool poison(void* pointer, std::size_t bytes, stream_ref on) {
    bool filled = false;
    if constexpr (requires(Device & dev) {
                    { dev.poison(pointer, bytes, on) } -> std::same_as<bool>;
                  }) {
      filled = Device::poison(pointer, bytes, on);
    }
    log_.hand_out(lane_of(on), pointer, bytes);
    return filled;
  }
  /// Notes that memory was given back: no access is allowed before it is handed out again.
  void gave_back(const void* pointer, std::size_t bytes, stream_ref on) {
    log_.give_back(lane_of(on), pointer, bytes);
  }
  /// Notes that an owner lends memory, until `returned`. Bytes that are lent several times go back
  /// with the last return.
  void borrows(const void* pointer, std::size_t bytes) { log_.borrow(pointer, bytes); }
  /// Notes that borrowed memory goes back to an owner whose stream is `home`.
  void returned(const void* pointer, std::size_t bytes, stream_ref home) {
    log_.give_to_owner(lane_of(home), pointer, bytes);
  }
  /// Notes that a failed capture ends: its work never runs, so that streams need not be joined
  /// back.
  void abandons_capture() noexcept { abandons_ = true; }
  /// Notes that the offloader's file is written from memory; `block` stands for the place in the
  /// file.
  void writes_file(const void* block, const void* memory, std::size_t bytes) {
    log_.copy_by_host(access_kind::host_read, block, memory, bytes);
  }
  void reads_file(const void* memory, const void* block, std::size_t bytes) {  ///< Like
                                                                               ///< `writes_file`,
                                                                               ///< reversed.
    log_.copy_by_host(access_kind::host_write, memory, block, bytes);
  }
  /// Names an offloader's copy streams to one place. The call for the host comes first.
  void name_copy_streams(stream_ref offload, stream_ref reload, stream_ref unpack, place_kind to) {
    if (to == place_kind::host) ++offloaders_;
    const bool peer = to == place_kind::peer;
    const auto which = std::string(peer                     ? " of the neighbour"
                                   : to == place_kind::file ? " of the file"
                                                            : "") +
                       (offloaders_ == 1 ? "" : " " + std::to_string(offloaders_));
    log_.clocks().name(lane_of(offload), "the offload stream" + which, true, peer);
    log_.clocks().name(lane_of(unpack), "the unpack stream" + which, true, peer);
    log_.clocks().name(lane_of(reload), "the reload stream" + which, true, peer);
  }

 private:
  // The host has waited for work that it does itself.
  void ran([[maybe_unused]] stream_ref on) {
    if constexpr (host_executing_device<Device>) {
      if (Device::host_executed(on)) host_waited(on);
    }
  }
  // A question for the id of a stream in a capture would end the capture.
  [[nodiscard]] static std::uint64_t key_of(const stream_ref& which) {
    if constexpr (requires { which.key_in_capture(); }) {
      return which.key_in_capture();
    } else {
      return which.key();
    }
  }
  [[nodiscard]] detail::order_clocks::lane lane_of(const stream_ref& which) {
    return log_.clocks().of(key_of(which));
  }

  [[nodiscard]] void* taken(void* pointer, std::size_t bytes, bool on_device) {
    if (pointer == nullptr) return nullptr;
    sizes_[pointer] = bytes;
    log_.allocate(pointer, bytes, on_device);
    return pointer;
  }
  void forget(void* pointer) noexcept {
    const auto at = sizes_.find(pointer);
    if (at == sizes_.end()) return;
    try {
      log_.free(pointer, at->second);
    } catch (...) {  // a later use of the memory is not found
    }
    sizes_.erase(at);
  }

  detail::order_log log_;
  std::unordered_map<void*, std::size_t> sizes_;
  std::unordered_map<const void*, std::uint32_t> own_events_;
  unsigned offloaders_ = 0;
  bool abandons_ = false;
};

}  // namespace tidepool
