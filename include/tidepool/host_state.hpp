/// State that lives on the host and visits the device: optimizer moments, pages of a cache.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

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

/// Data on the host. The state has pinned memory of its own from `offloader::state_on_host` to its
/// destruction. It has device memory, from the offloader's source, only while it visits the device.
///
///     state.prefetch();                    // some time before
///     auto here = state.fetch(stream);     // read it, change it
///     state.write_back(here, stream);      // changed; or here.reset(stream) when only read
///
/// The copies run on the two copy streams of the host's place and wait for the work that writes or
/// reads their memory. Calls block the host only as `offloader` says. Copies inside a capture
/// belong to the graph. A capture that fails has copied nothing, and leaves the contents from
/// before it.
///
/// Move-only; may outlive its offloader, but not its device. Thread safety: none.
template <device Device>
class host_state {
 public:
  using stream_ref = typename Device::stream_ref;  ///< A stream of the device.

  host_state() = default;
  host_state(host_state&&) = default;             ///< Leaves the other object empty.
  host_state& operator=(host_state&&) = default;  ///< Drops its state; leaves the other one empty.
  // A compiler that refuses a copy shows these lines.
  host_state(const host_state&) = delete;             // move-only; it owns its host memory
  host_state& operator=(const host_state&) = delete;  // move-only; it owns its host memory

  /// True while the object holds host memory.
  explicit operator bool() const { return store_ != nullptr; }
  /// Bytes; 0 when empty.
  [[nodiscard]] std::size_t size() const { return store_ == nullptr ? 0 : store_->bytes; }

  /// Takes device memory for new contents, and copies nothing in. Work given to `stream` from now
  /// on may write them, and `write_back` makes them the state's contents. Throws `misuse_error`
  /// while the state is on the device already, `out_of_budget`, `device_error`.
  [[nodiscard]] buffer<Device> create(stream_ref stream) {
    require("create");
    return detail::buffer_of<Device>(calls().create(*store_, name_, lane_of(stream)));
  }

  /// Starts the copy in, on the reload stream. Returns false if there is no device memory now, if
  /// the state is on the device already, or if it was never written. A prefetched state is evicted
  /// for any call that needs its memory, and for a capture that begins. After a `prefetch` inside a
  /// capture only later work of the capture, or work after its launch, finds the state on the
  /// device.
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
  /// `device_error` the host may have only a part of the bytes, so that the state has no contents:
  /// write them back again.
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

  struct drop {
    void operator()(detail::storage* store) const noexcept {
      detail::state_calls{detail::owner_of(*store)}.drop(*store);
    }
  };
  std::unique_ptr<detail::storage, drop> store_;
  std::string name_;
  bool written_ = false;  // true when the state has contents
};

template <device Device>
host_state<Device> detail::state_in(std::type_identity<Device> /*device*/, engine& of,
                                    std::size_t bytes, std::string_view name) {
  return {&state_calls{of}.make(bytes, name), name};
}

}  // namespace tidepool
