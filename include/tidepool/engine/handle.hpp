// The handle of saved memory of any device. `handle` and its derived classes add only types.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0::detail {

class engine;
struct state_calls;

// A module's name in the place of a rectangle. A handle that a commit emptied shows no part, and
// may outlive its offloader. So the name for messages is stored there, and handles need no more
// bytes.
using module_label = std::array<char, sizeof(rectangle)>;

[[nodiscard]] inline rectangle labelled(std::string_view name) {
  module_label text{};
  constexpr auto most = text.size() - 1;
  std::copy_n(name.begin(), std::min(name.size(), most), text.begin());
  if (name.size() > most) std::fill_n(text.end() - 4, 3, '.');
  return std::bit_cast<rectangle>(text);
}
[[nodiscard]] inline std::string name_in(const rectangle& label) {
  return std::bit_cast<module_label>(label).data();
}

// A new handle of a storage, on its way to the trainer.
struct granted {
  storage* store = nullptr;
  lane_id lane{};
};

// The number of elements in `bytes` bytes of a storage. The ratio is reduced first, because bytes
// times elements would overflow from 4 GiB on.
[[nodiscard]] inline std::size_t elements_of(const storage& whole, std::size_t bytes) {
  const auto common = std::gcd(whole.elements, whole.bytes);
  return bytes / (whole.bytes / common) * (whole.elements / common);
}

class handle_base;
using handle_list = std::span<handle_base* const>;

// A counted reference to a storage.
class handle_base {
 public:
  handle_base(const handle_base&) = delete;
  handle_base& operator=(const handle_base&) = delete;

  explicit operator bool() const { return store_ != nullptr; }

  [[nodiscard]] const storage* held() const { return store_; }
  // The bytes that the handle shows; a buffer shows all of its storage.
  [[nodiscard]] std::size_t bytes_held() const { return is_view_ ? part_.bytes() : store_->bytes; }
  [[nodiscard]] bool is_small(std::size_t least_elements) const {
    const auto bytes = bytes_held();
    const auto elements = bytes == store_->bytes ? store_->elements : elements_of(*store_, bytes);
    return elements < least_elements;
  }
  // True if the tensor may leave: it is large enough and not opted out.
  [[nodiscard]] bool leaves(std::size_t least_elements) const {
    return !store_->is.kept && !is_small(least_elements);
  }

 protected:
  handle_base() = default;
  explicit handle_base(bool is_view) : is_view_(is_view) {}
  handle_base(storage* store, const rectangle& part, lane_id lane, bool whole, bool is_view)
      : store_(store), part_(part), lane_(lane), whole_(whole), is_view_(is_view) {}
  handle_base(handle_base&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        part_(other.part_),
        lane_(other.lane_),
        whole_(other.whole_),
        is_view_(other.is_view_),
        layer_(other.layer_),
        saved_as_(std::exchange(other.saved_as_, 0)) {}
  handle_base& operator=(handle_base&& other) noexcept {
    if (this != &other) {
      drop();
      store_ = std::exchange(other.store_, nullptr);
      part_ = other.part_;
      lane_ = other.lane_;
      whole_ = other.whole_;
      layer_ = other.layer_;
      saved_as_ = std::exchange(other.saved_as_, 0);
    }
    return *this;
  }
  ~handle_base() { drop(); }

  [[nodiscard]] void* address() const {
    if (store_ == nullptr) {
      if (saved_as_ != 0) refuse_emptied();
      return nullptr;
    }
    if (store_->bytes == 0) return nullptr;
    return static_cast<std::byte*>(store_->here.memory.data) + part_.offset;
  }
  [[nodiscard]] storage* shared() const {
    ++store_->handles;
    ++store_->owner->references;
    return store_;
  }
  // Drops the handle, but its memory stays taken, because no stream is known after whose work it
  // would be free.
  void lose() noexcept;
  // Drops the handle, which `lane` used last.
  void give_up(lane_id lane);

  storage* store_ = nullptr;
  rectangle part_{};            // or the name of the module whose commit emptied the handle
  lane_id lane_{};              // lane that allocated, shared, committed or restored it
  bool whole_ = false;          // a commit saves the whole storage, not only the part
  bool is_view_ = false;        // a view has a width; a buffer shows all of its storage
  std::int32_t layer_ = -1;     // layer of the commit that emptied it
  std::uint64_t saved_as_ = 0;  // number of the storage that this commit saved; 0: not emptied

 private:
  friend class engine;
  friend struct state_calls;

  // Replaces the handle by one of a whole storage, or of nothing.
  void fill(const granted& memory) noexcept {
    drop();
    store_ = memory.store;
    part_ = store_ == nullptr ? rectangle{} : rectangle{0, store_->bytes, 1, store_->bytes};
    lane_ = memory.lane;
    whole_ = false;
    layer_ = -1;
    saved_as_ = 0;
  }
  void drop() noexcept {
    if (store_ != nullptr) drop_full();
  }
  void drop_full() noexcept;

  [[noreturn, gnu::cold, gnu::noinline]] void refuse_emptied() const {
    throw misuse_error("data: the commit of " + name_in(part_) + " of layer " +
                       std::to_string(layer_) +
                       " emptied this handle, so that it has no address; restore it before backward"
                       " reads it, and commit it behind the last use in forward");
  }
};

// Room for the lists of handles that trainers give to a call, and to calls made within it.
class handle_lists {
 public:
  [[nodiscard]] std::vector<handle_base*>& next() {
    if (used_ == lists_.size()) lists_.emplace_back();
    return lists_[used_];
  }
  void take() noexcept { ++used_; }
  void give() noexcept { --used_; }

 private:
  std::deque<std::vector<handle_base*>> lists_;
  std::size_t used_ = 0;
};

// A list of handles as the engine takes it, for the time of one call.
class listed_handles {
 public:
  template <class Handle>
  listed_handles(handle_lists& in, std::span<Handle* const> given) : in_(&in), list_(in.next()) {
    list_.assign(given.begin(), given.end());
    in.take();
  }
  listed_handles(const listed_handles&) = delete;
  listed_handles& operator=(const listed_handles&) = delete;
  ~listed_handles() { in_->give(); }

  operator handle_list() const { return list_; }  // NOLINT(google-explicit-constructor)

 private:
  handle_lists* in_;
  std::vector<handle_base*>& list_;
};

}  // namespace tidepool::detail
