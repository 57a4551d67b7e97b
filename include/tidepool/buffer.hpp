/// Handles of saved memory: `buffer` for a whole storage, `view` for a part of one.
#pragma once

#include <cstddef>
#include <string>

#include "tidepool/device/device.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/handle.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/lane_of.hpp"

namespace tidepool::inline v0_3_0 {

template <device Device>
class buffer;
struct counted_rows;  // of rows.hpp

/// True for types of BF16 numbers. Specialise it for your own type before it is allocated.
template <class T>
inline constexpr bool is_bfloat16 = false;
#if defined(__STDCPP_BFLOAT16_T__)
template <>
inline constexpr bool is_bfloat16<decltype(0.0bf16)> = true;
#endif
}  // namespace tidepool

struct __nv_bfloat16;  // NOLINT(bugprone-reserved-identifier) of cuda_bf16.h

namespace tidepool::inline v0_3_0 {

/// True: CUDA's own type.
template <>
inline constexpr bool is_bfloat16<__nv_bfloat16> = true;

namespace detail {

// The lane of a stream whose call takes or reads memory, eagerly or in a capture of ours.
template <device Device>
[[nodiscard]] lane_id lane_of(engine& of, const typename Device::stream_ref& stream) {
  auto& order = of.order();
  if constexpr (capturing_device<Device>) {
    of.pass_gate(hardware_in<Device>(order).device().capturing(stream));
  }
  return lane_in<Device>(order, stream);
}
// The lane of a stream on which a handle is released or a capture begins. Such calls work wherever
// graphs have left tensors.
template <device Device>
[[nodiscard]] lane_id lane_to_release(engine& of, const typename Device::stream_ref& stream) {
  auto& order = of.order();
  if constexpr (capturing_device<Device>) {
    of.meet_graphs(hardware_in<Device>(order).device().capturing(stream));
  }
  return lane_in<Device>(order, stream);
}

// Makes a handle of memory that an engine has handed out for BF16 numbers, or for others.
template <device Device>
[[nodiscard]] buffer<Device> buffer_of(const granted& memory, bool bfloat16 = false);

}  // namespace detail

/// The common part of buffers and views: one counted reference to a storage.
///
/// Move-only. While the storage is on the device the handle is full and `data` is its address
/// there. `commit` empties the handles of tensors that leave, and `restore` fills them again,
/// perhaps at another address. A full handle that is destroyed gives its memory back in the order
/// of the stream on which it was last allocated, committed or restored; use `reset` when another
/// stream used it last. The calls of a disabled module and the `restore` of a forward-only chunk do
/// nothing and do not change that stream: if forward and backward run on two streams, call `reset`,
/// which is right with any options.
///
/// A handle may outlive its offloader, but not its device. Thread safety: none.
template <device Device>
class handle : public detail::handle_base {
 public:
  // A compiler that refuses a copy shows these lines.
  handle(const handle&) = delete;             // move-only; buffer::share() makes another handle
  handle& operator=(const handle&) = delete;  // move-only; buffer::share() makes another handle

  /// True while this handle holds device memory.
  explicit operator bool() const { return store_ != nullptr; }

  /// Device address of the first byte, until the next commit or reset. Work may use it on the
  /// stream that the handle was allocated, restored or joined on. Null when empty or of 0 bytes. If
  /// a commit emptied the handle, `data` throws `misuse_error`, with module and layer, until the
  /// handle is restored, reset or assigned.
  [[nodiscard]] void* data() const { return address(); }
  /// Like `data`, as a pointer to T.
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data());
  }

  /// Gives the memory back: it may be reused after the work that `stream` has been given so far.
  /// Does not block the host. Empty handles stay empty. A `reset` that throws (`device_error`)
  /// leaves the handle full.
  void reset(typename Device::stream_ref stream) {
    saved_as_ = 0;
    if (store_ == nullptr) return;
    give_up(detail::lane_to_release<Device>(detail::owner_of(*store_), stream));
  }

  /// Opts this storage out for good: commits leave it on the device and in its handles. Call it for
  /// a tensor that forward or the optimizer reads after its commit.
  void keep_resident() const {
    if (store_ != nullptr) store_->is.kept = true;
  }
  /// Tells that this storage holds BF16 numbers, whatever type it was allocated as, so that it is
  /// packed where `options::pack` has its module. Other numbers come back right as well, because
  /// packing keeps all bits.
  void holds_bfloat16() const {
    if (store_ != nullptr) store_->is.bfloat16 = true;
  }

 protected:
  // The constructors are not public, because a view moved into a buffer would stand for the whole
  // storage.
  handle() = default;
  handle(handle&&) noexcept = default;
  handle& operator=(handle&&) noexcept = default;
  ~handle() = default;

  explicit handle(bool is_view) : handle_base(is_view) {}
  handle(detail::storage* store, const detail::rectangle& part, lane_id lane, bool whole,
         bool is_view)
      : handle_base(store, part, lane, whole, is_view) {}

 private:
  template <device, class>
  friend class keyed;
};

/// Position of a view in its buffer, and how it leaves. Offsets, widths and pitches are bytes.
struct view_shape {
  std::size_t offset = 0;      ///< in bytes, from the begin of the buffer
  std::size_t width = 0;       ///< bytes of one row
  std::size_t rows = 1;        ///< number of rows
  std::size_t pitch = 0;       ///< bytes from row to row; 0 means dense rows
  bool whole_storage = false;  ///< offload the storage behind it instead of the rectangle alone
};

/// A rectangle of a buffer. A view keeps the storage alive.
///
/// A plain view leaves as a dense copy of its rows and comes back as memory of its own, with
/// `pitch() == width()`. With `whole_storage`, or when the storage has been saved already, the
/// storage leaves once and the view comes back as the same rectangle of it.
template <device Device>
class view : public handle<Device> {
 public:
  /// Empty.
  view() : handle<Device>(true) {}

  /// Bytes of one row; 0 when empty.
  [[nodiscard]] std::size_t width() const { return shown().width; }
  /// How many rows; 0 when empty.
  [[nodiscard]] std::size_t rows() const { return shown().rows; }
  [[nodiscard]] std::size_t pitch() const { return shown().pitch; }  ///< Bytes from row to row.
  /// True when a commit offloads the storage behind the view instead of the rectangle alone.
  [[nodiscard]] bool whole_storage() const { return this->whole_; }

 private:
  template <device>
  friend class buffer;

  view(detail::storage* store, const detail::rectangle& part, lane_id lane, bool whole)
      : handle<Device>(store, part, lane, whole, true) {}

  [[nodiscard]] detail::rectangle shown() const {
    return this->store_ == nullptr ? detail::rectangle() : this->part_;
  }
};

/// Device memory of one saved tensor, from the offloader's memory source: made by
/// `offloader::allocate`, `allocate_from` or `adopt`. A default-constructed buffer is empty.
template <device Device>
class buffer : public handle<Device> {
 public:
  buffer() = default;

  /// Bytes; 0 when empty.
  [[nodiscard]] std::size_t size() const {
    return this->store_ == nullptr ? 0 : this->store_->bytes;
  }

  /// Another handle to the same storage, for a second owner. Any number of groups may save the
  /// storage, which is copied once. It stays on the device as long as any handle to it is full.
  [[nodiscard]] buffer share() const {
    if (this->store_ == nullptr) return {};
    return buffer({this->shared(), this->lane_});
  }

  /// Says that only the first rows are valid, as many as a count on the device says. Until the
  /// buffer is restored or forgotten, commits move the first `how.planned_rows` rows alone, and the
  /// restore fills as many rows of a block of the same size; the other rows are then undefined.
  /// Call it again before the next commit; without it, or after a commit that failed, all rows
  /// move. Needs rows.hpp.
  ///
  /// The commit copies the count in the order of its stream, and does not block the host. Ask
  /// `offloader::rows_overflowed` after each step. Throws `misuse_error` for a buffer that is saved
  /// already or a host_state's, for no row or more rows than it has, and for the offloader's first
  /// count in a capture; `out_of_budget`.
  template <class Engine = detail::engine>
  void counts_rows(const counted_rows& how) const {
    static_assert(
        requires(Engine & of, detail::storage & store) { count_rows(of, store, how); },
        "tidepool: #include <tidepool/rows.hpp> for counts of rows");
    if (this->store_ == nullptr) throw misuse_error("counts_rows: this buffer holds no memory");
    count_rows(static_cast<Engine&>(detail::owner_of(*this->store_)), *this->store_, how);
  }

  /// A view of the part that `shape` describes, which a commit can save in place of the whole.
  /// Throws `misuse_error` when the part is not inside; a view of 0 bytes needs only its offset
  /// inside.
  ///
  ///     auto k = qkv.view({.offset = width, .width = width, .rows = tokens, .pitch = 3 * width});
  [[nodiscard]] tidepool::view<Device> view(const view_shape& shape) const {
    const auto pitch = shape.pitch == 0 ? shape.width : shape.pitch;
    // Divided instead of multiplied, so that no value of a caller overflows.
    const bool fits = this->store_ != nullptr && shape.width <= pitch && shape.offset <= size() &&
                      (shape.width == 0 || shape.rows == 0 ||
                       (shape.width <= size() - shape.offset &&
                        (size() - shape.offset - shape.width) / pitch >= shape.rows - 1));
    if (!fits) {
      throw misuse_error(
          "view: " + std::to_string(shape.rows) + " rows of " + std::to_string(shape.width) +
          " bytes, " + std::to_string(pitch) + " apart, from byte " + std::to_string(shape.offset) +
          (shape.width > pitch
               ? std::string(" overlap; let the pitch be at least the width")
               : " are not inside a buffer of " + std::to_string(size()) + " bytes"));
    }
    return {this->shared(),
            {shape.offset, shape.width, shape.rows, pitch},
            this->lane_,
            shape.whole_storage};
  }

 private:
  template <device Any>
  friend buffer<Any> detail::buffer_of(const detail::granted& memory, bool bfloat16);

  explicit buffer(const detail::granted& memory)
      : handle<Device>(memory.store, {0, memory.store->bytes, 1, memory.store->bytes}, memory.lane,
                       false, false) {}
};

namespace detail {

template <device Device>
buffer<Device> buffer_of(const granted& memory, bool bfloat16) {
  memory.store->is.bfloat16 = memory.store->is.bfloat16 || bfloat16;
  return buffer<Device>(memory);
}

}  // namespace detail
}  // namespace tidepool
