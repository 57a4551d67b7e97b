/// A device that counts what is asked of it, and runs hooks where a test wants to look closer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "disk.hpp"
#include "tidepool/device/device.hpp"

namespace tidepool::test {

/// `Base` with counters. Its own kinds of stream and event stay those of `Base`.
template <class Base>
class counting_device : public Base {
 public:
  using Base::Base;

  std::uint64_t streams_made = 0;
  std::uint64_t events_made = 0;
  std::uint64_t records = 0;
  std::uint64_t waits = 0;
  std::array<std::uint64_t, 4> copies{};  // by direction
  std::array<std::uint64_t, 4> bytes{};
  std::uint64_t device_allocations = 0;
  std::uint64_t host_allocations = 0;
  std::size_t device_held = 0;  // allocations not given back
  std::uint64_t peer_allocations = 0;
  std::size_t host_held = 0;
  std::size_t peer_held = 0;
  std::function<void(copy_direction, typename Base::stream_ref)> after_copy;
  std::function<void()> before_copy;    // may throw
  std::function<void()> before_record;  // may throw
  std::function<void()> before_wait;    // may throw
  std::function<void()> before_fill;    // may throw

  std::shared_ptr<disk> on_disk;  // of files; none: the system's

  [[nodiscard]] std::unique_ptr<backing_file> open_file(const std::string& path) {
    if (on_disk == nullptr) return open_backing_file(path);
    return std::make_unique<disk_file>(on_disk);
  }
  [[nodiscard]] typename Base::stream make_stream() {
    ++streams_made;
    return Base::make_stream();
  }
  [[nodiscard]] typename Base::event make_event(bool timing = false) {
    ++events_made;
    return Base::make_event(timing);
  }
  void record(typename Base::event& target, typename Base::stream_ref on) {
    if (before_record) before_record();
    ++records;
    Base::record(target, on);
  }
  void wait(typename Base::stream_ref waiter, const typename Base::event& until) {
    if (before_wait) before_wait();
    ++waits;
    Base::wait(waiter, until);
  }
  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            typename Base::stream_ref on) {
    if (before_copy) before_copy();
    ++copies[static_cast<std::size_t>(direction)];
    bytes[static_cast<std::size_t>(direction)] += shape.bytes();
    Base::copy(target, source, shape, direction, on);
    if (after_copy) after_copy(direction, on);
  }
  void fill_bytes(void* pointer, unsigned char byte, std::size_t size,
                  typename Base::stream_ref on) {
    if (before_fill) before_fill();
    Base::fill_bytes(pointer, byte, size, on);
  }
  [[nodiscard]] void* try_allocate(std::size_t size) {
    ++device_allocations;
    auto* const pointer = Base::try_allocate(size);
    device_held += pointer == nullptr ? 0 : 1;
    return pointer;
  }
  [[nodiscard]] void* try_allocate_host(std::size_t size) {
    ++host_allocations;
    auto* const pointer = Base::try_allocate_host(size);
    host_held += pointer == nullptr ? 0 : 1;
    return pointer;
  }
  [[nodiscard]] void* try_allocate_peer(int peer, std::size_t size) requires peer_device<Base> {
    ++peer_allocations;
    auto* const pointer = Base::try_allocate_peer(peer, size);
    peer_held += pointer == nullptr ? 0 : 1;
    return pointer;
  }
  void deallocate_peer(int peer, void* pointer) noexcept requires peer_device<Base> {
    peer_held -= pointer == nullptr ? 0 : 1;
    Base::deallocate_peer(peer, pointer);
  }
  void deallocate(void* pointer) noexcept {
    device_held -= pointer == nullptr ? 0 : 1;
    Base::deallocate(pointer);
  }
  void deallocate_host(void* pointer) noexcept {
    host_held -= pointer == nullptr ? 0 : 1;
    Base::deallocate_host(pointer);
  }

  [[nodiscard]] std::uint64_t offloads() const {
    return copies[static_cast<std::size_t>(copy_direction::device_to_host)];
  }
  [[nodiscard]] std::uint64_t reloads() const {
    return copies[static_cast<std::size_t>(copy_direction::host_to_device)];
  }
};

}  // namespace tidepool::test
