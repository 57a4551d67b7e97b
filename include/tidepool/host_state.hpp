/// State that lives on the host and visits the device: optimizer moments, pages of a cache.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "tidepool/buffer.hpp"
#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0 {

template <device Device, class Modules>
class offloader;

/// One piece of state. Its pinned host memory is its own from `offloader::state_on_host` to its
/// destruction; device memory it has only while it visits, from the offloader's source.
///
///     state.prefetch();                    // some time before
///     auto here = state.fetch(stream);     // read it, change it
///     state.write_back(here, stream);      // changed; or here.reset(stream) when only read
///
/// The copies run on the offloader's two copy streams and wait for what they must; no call blocks
/// the host. Inside a capture all of them belong to the graph; of a capture that fails nothing was
/// copied, and the contents are those from before it.
///
/// Move-only; may outlive its offloader, not its device. Thread safety: none.
template <device Device>
class host_state {
 public:
  using stream_ref = typename Device::stream_ref;  ///< A stream of the device.

  host_state() = default;
  /// The other is empty afterwards.
  host_state(host_state&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        name_(std::move(other.name_)),
        written_(other.written_) {}
  /// Drops what it held; the other is empty afterwards.
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

  /// True while it holds host memory.
  explicit operator bool() const { return store_ != nullptr; }
  /// Bytes; 0 when empty.
  [[nodiscard]] std::size_t size() const { return store_ == nullptr ? 0 : store_->bytes; }

  /// Device memory for contents that are new, which work given to `stream` from now on may write:
  /// nothing is copied in. `write_back` makes them the state's. Throws `misuse_error` while it
  /// visits already, `out_of_budget`, `device_error`.
  [[nodiscard]] buffer<Device> create(stream_ref stream) {
    require("create");
    return detail::buffer_of<Device>(owner().create_state(*store_, name_, lane_of(stream)));
  }

  /// Starts the copy in, on the reload stream. False when there is no device memory now, when it is
  /// here already, or was never written. What was fetched ahead is evicted for anybody in need, and
  /// for a capture that begins. Inside a capture it is here only for what is captured after it, and
  /// once that has been launched.
  bool prefetch() {
    return store_ != nullptr && written_ && owner().prefetch_state(*store_, name_);
  }

  /// The contents, once work given to `stream` from now on runs: that waits for the copy in, which
  /// starts here unless `prefetch` started it. Throws `misuse_error` (never
  /// written, here already, or its last write_back failed), `out_of_budget`, `device_error`.
  [[nodiscard]] buffer<Device> fetch(stream_ref stream) {
    require("fetch");
    if (!written_) {
      throw misuse_error(
          "fetch of " + name_ +
          ": nothing was ever written, or the last write_back failed; create() it, fill it,"
          " write_back()");
    }
    return detail::buffer_of<Device>(owner().fetch_state(*store_, name_, lane_of(stream)));
  }

  /// Copies the contents out once `stream` has come this far, and empties `changed`, whose memory
  /// is free after the copy. Throws `misuse_error` unless it is this state's buffer, and for
  /// first contents inside a capture; `device_error`. `changed` is then as before. After a
  /// `device_error` the host may have part of it, and then the state has no contents: write it back
  /// again.
  void write_back(buffer<Device>& changed, stream_ref stream) {
    require("write_back");
    owner().write_state(*store_, name_, changed, lane_of(stream), written_);
  }

 private:
  template <device, class>
  friend class offloader;

  host_state(detail::storage* store, std::string_view name) : store_(store), name_(name) {}

  [[nodiscard]] detail::engine& owner() const { return detail::owner_of(*store_); }
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
      detail::owner_of(*store).drop_state(*store);
  }

  detail::storage* store_ = nullptr;
  std::string name_;
  bool written_ = false;  // it has contents
};

}  // namespace tidepool
