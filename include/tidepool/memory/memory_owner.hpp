/// Who gets borrowed memory back.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <new>
#include <type_traits>
#include <utility>

namespace tidepool::inline v0_3_0 {

/// The owner of memory that an offloader borrows: a callable, which is called once when the memory
/// is given back, or anything else that can be moved, such as a reference count, which is destroyed
/// then.
///
/// It lies inside this object, so that none is made on the heap. Move-only; destroying it gives the
/// memory back, and so does assigning to it. The callable must not throw. What it uses must outlive
/// the offloader with its handles and chunks, since the end of the last of them may call it. What
/// its stream has joined may still run then: it must not `free` the memory on the host, unless the
/// host executes that stream (`virtual_device::host_executes`).
///
///     off.adopt(data, bytes, stream, [=] { cudaFreeAsync(data, raw_stream); });
///     off.adopt(tensor.data_ptr(), bytes, stream, tensor);
class memory_owner {
 public:
  static constexpr std::size_t capacity = 48;  ///< bytes of what a callable captures

  memory_owner() noexcept = default;
  /// Takes a callable, or a reference count, over. It must fit `capacity` bytes (else no
  /// compiling).
  template <class Owner>
    requires(!std::same_as<std::remove_cvref_t<Owner>, memory_owner>)
  memory_owner(Owner&& owner) {  // NOLINT(google-explicit-constructor, bugprone-forwarding-*)
    using stored = std::decay_t<Owner>;
    static_assert(sizeof(stored) <= capacity && alignof(stored) <= alignof(std::max_align_t),
                  "tidepool: the owner of borrowed memory has at most memory_owner::capacity bytes;"
                  " capture a pointer or a reference count instead");
    static_assert(std::is_nothrow_move_constructible_v<stored>,
                  "tidepool: the owner of borrowed memory must not throw when it is moved");
    ::new (static_cast<void*>(space_)) stored(std::forward<Owner>(owner));
    act_ = &act<stored>;
  }
  /// The other owns nothing afterwards.
  memory_owner(memory_owner&& other) noexcept { take(other); }
  /// Gives back what it had; the other owns nothing afterwards.
  memory_owner& operator=(memory_owner&& other) noexcept {
    if (this != &other) {
      give_back();
      take(other);
    }
    return *this;
  }
  memory_owner(const memory_owner&) = delete;
  memory_owner& operator=(const memory_owner&) = delete;
  ~memory_owner() { give_back(); }

  /// True until the memory is given back.
  explicit operator bool() const { return act_ != nullptr; }

  /// The owner has it back; a second call does nothing.
  void give_back() noexcept {
    if (const auto now = std::exchange(act_, nullptr)) now(space_, nullptr);
  }

 private:
  void take(memory_owner& other) noexcept {
    act_ = std::exchange(other.act_, nullptr);
    if (act_ != nullptr) act_(other.space_, space_);
  }

  // Moves what is stored to `to`; where there is none, gives the memory back.
  template <class Stored>
  static void act(void* from, void* to) noexcept {
    auto& stored = *std::launder(static_cast<Stored*>(from));
    if (to != nullptr) {
      ::new (to) Stored(std::move(stored));
    } else if constexpr (std::invocable<Stored&>) {
      std::invoke(stored);
    }
    stored.~Stored();
  }

  alignas(std::max_align_t) std::byte space_[capacity]{};
  void (*act_)(void* from, void* to) noexcept = nullptr;
};

}  // namespace tidepool
