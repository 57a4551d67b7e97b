// Undoes the begun work of a call that throws or returns early.
#pragma once

#include <type_traits>
#include <utility>

namespace tidepool::inline v0_3_0::detail {

// Calls `Undo` at the end of its life, unless `keep` was called: when the call that it guards
// throws, or returns early.
template <class Undo>
class rollback {
 public:
  static_assert(std::is_nothrow_invocable_v<Undo&>, "it runs while an exception is under way");

  explicit rollback(Undo undo) : undo_(std::move(undo)) {}
  rollback(const rollback&) = delete;
  rollback& operator=(const rollback&) = delete;
  ~rollback() {
    if (armed_) undo_();
  }

  void keep() noexcept { armed_ = false; }

 private:
  Undo undo_;
  bool armed_ = true;
};

}  // namespace tidepool::detail
