/// State that lives on the host and visits the device: optimizer moments, pages of a cache.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tidepool/buffer.hpp"
#include "tidepool/engine/state.hpp"

namespace tidepool::inline v0_3_0 {

template <device Device>
class host_state;

namespace detail {

// `offloader::state_on_host` finds this function by its namespace.
template <device Device>
[[nodiscard]] host_state<Device> state_in(std::type_identity<Device>, engine& of, std::size_t bytes,
                                          std::string_view name);

}  // namespace detail

/// Data on the host. It has pinned memory of its own from `offloader::state_on_host` to
/// its destruction, and device memory, from the offloader's source, only while it visits.
///
///     state.prefetch();                    // some time before
///     auto here = state.fetch(stream);     // read it, change it
///     state.write_back(here, stream);      // changed; or here.reset(stream) when only read
///
/// The copies run on the offloader's two copy streams and wait for what they must; no call blocks
/// the host. Copies inside a capture belong to the graph. A capture that fails has copied nothing,
/// and leaves the contents from before it.
///
/// Move-only; may outlive its offloader, not its device. Thread safety: none.
template <device Device>
class host_state {
 public:
  using stream_ref = typename Device::stream_ref;  ///< A stream of the device.

  host_state() = default;
  /// Leaves `other` empty.
  host_state(host_state&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        name_(std::move(other.name_)),
        written_(other.written_) {}
  /// Drops the state that this object held; leaves `other` empty.
  host_state& operator=(host_state&& other) noexcept {
    if (this != &other) {
      drop();
      store_ = std::exchange(other.store_, nullptr);
      name_ = std::move(other.name_);
      written_ = other.written_;
    }
    return *this;
  }
  // A compiler that refuses a copy shows these lines.
  host_state(const host_state&) = delete;             // move-only; it owns its host memory
  host_state& operator=(const host_state&) = delete;  // move-only; it owns its host memory
  ~host_state() { drop(); }

  /// True while the object holds host memory.
  explicit operator bool() const { return store_ != nullptr; }
  /// Bytes; 0 when empty.
  [[nodiscard]] std::size_t size() const { return store_ == nullptr ? 0 : store_->bytes; }

  /// Takes device memory for new contents, which work given to `stream` from now on may write:
  /// nothing is copied in. `write_back` makes them the state's contents. Throws `misuse_error`
  /// while the state is on the device already, `out_of_budget`, `device_error`.
  [[nodiscard]] buffer<Device> create(stream_ref stream) {
    require("create");
    return detail::buffer_of<Device>(calls().create(*store_, name_, lane_of(stream)));
  }

  /// Starts the copy in, on the reload stream. False when there is no device memory now, or when
  /// the state is on the device already or was never written. A prefetched state is evicted for any
  /// call that needs its memory, and for a capture that begins. After a `prefetch` inside a capture
  /// only later work of the capture, or work after its launch, finds the state on the device.
  bool prefetch() { return store_ != nullptr && written_ && calls().prefetch(*store_, name_); }

  /// Gives the contents to work on `stream` from now on: the work waits for the copy in, which
  /// starts here unless `prefetch` started it. Throws `misuse_error` (never written, on the device
  /// already, or its last write_back failed), `out_of_budget`, `device_error`.
  [[nodiscard]] buffer<Device> fetch(stream_ref stream) {
    require("fetch");
    if (!written_) {
      throw misuse_error(
          "fetch of " + name_ +
          ": nothing was ever written, or the last write_back failed; create() it, fill it,"
          " write_back()");
    }
    return detail::buffer_of<Device>(calls().fetch(*store_, name_, lane_of(stream)));
  }

  /// Copies the contents out once `stream` has come this far, and empties `changed`, whose memory
  /// is free after the copy. Throws `misuse_error` unless `changed` is this state's buffer, and for
  /// first contents inside a capture; `device_error`. `changed` is then as before. After a
  /// `device_error` the host may have a part of it, and the state has no contents: write it back
  /// again.
  void write_back(buffer<Device>& changed, stream_ref stream) {
    require("write_back");
    calls().write(*store_, name_, changed, lane_of(stream), written_);
  }

 private:
  template <device Any>
  friend host_state<Any> detail::state_in(std::type_identity<Any>, detail::engine& of,
                                          std::size_t bytes, std::string_view name);

  host_state(detail::storage* store, std::string_view name) : store_(store), name_(name) {}

  [[nodiscard]] detail::engine& owner() const { return detail::owner_of(*store_); }
  [[nodiscard]] detail::state_calls calls() const { return {owner()}; }
  [[nodiscard]] lane_id lane_of(const stream_ref& stream) const {
    return detail::lane_of<Device>(owner(), stream);
  }
  void require(const char* call) const {
    if (store_ == nullptr) {
      throw misuse_error(std::string(call) + ": this host_state is empty; was it moved away?");
    }
  }
  void drop() noexcept {
    if (auto* const store = std::exchange(store_, nullptr))
      detail::state_calls{detail::owner_of(*store)}.drop(*store);
  }

  detail::storage* store_ = nullptr;
  std::string name_;
  bool written_ = false;  // true when the state has contents
};

template <device Device>
host_state<Device> detail::state_in(std::type_identity<Device> /*device*/, engine& of,
                                    std::size_t bytes, std::string_view name) {
  return {&state_calls{of}.make(bytes, name), name};
}

}  // namespace tidepool
