// The happenings that the engine tells its observers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tidepool/core/clocks.hpp"
#include "tidepool/trace/record.hpp"

namespace tidepool::inline v0_3_0::detail {

struct storage;
struct chunk_state;
struct verdict;
class handle_base;

// Each kind names the fields of `happening` that it fills.
enum class happened : std::uint8_t {
  call_begun,       // a call begins on `lane`; calls may be nested
  call_over,        // the innermost call ends, with or without success
  allocated,        // `tensor` has memory for `lane`
  committed,        // group `index` of `chunk` was committed as `decided`; `handles` are still full
  outlives,         // a handle still holds `tensor` after the commit that saved it as `saved_as`
  handle_gone,      // a handle of `tensor` was dropped, used last on `lane`
  restored,         // group `index` of `chunk` is restored for `lane`
  came_back,        // a restore filled a handle with `tensor`
  stayed,           // a restore found `tensor` in the handle where it had stayed
  kept_no_more,     // a group that kept `tensor` on the device needs it no more
  copied,           // `lane` was given a copy
  read_again,       // forward read a tensor after a group had saved it
  recompute_begun,  // the trainer computes a group again on `lane`
  recomputed,       // the trainer has computed group `index` of `chunk` again on `lane`
  recompute_failed,  // the trainer's function threw
  forgotten,         // group `index` of `chunk` will never be restored
  forward_ended,     // the forward pass of `chunk` has ended
  pass_begun,        // a pass of `chunk` begins on `lane`; `backward`, or forward
  pass_over,         // a pass of `chunk` ends on `lane`; `backward`, or forward
  span_begun,        // work or a wait begins on `lane`; `mark` is the observers' until `span_over`
  span_over,         // the work or the wait is over; `label` names it
  memory_changed,    // `tensor` took or gave back device memory, used on `lane`; see `level`
};

// A span's subject.
struct span_label {
  trace::span_kind kind = trace::span_kind::compute;
  std::string_view name;
  int layer = -1;
  int microbatch = -1;
  std::size_t bytes = 0;
  std::size_t spared = 0;  // of `bytes`, by packing
};

// Bytes of device memory. `without` is the sum that would be taken now without any offload.
struct level_change {
  std::size_t taken = 0;
  std::size_t given = 0;
  std::size_t without = 0;
};

// Fields that a kind does not name are empty. Pointers are valid only during `on`.
struct happening {
  happened what;
  lane_id lane{};
  const storage* tensor = nullptr;
  const storage* saved_as = nullptr;
  chunk_state* chunk = nullptr;
  std::uint32_t index = 0;
  std::span<handle_base* const> handles{};
  const verdict* decided = nullptr;
  bool backward = false;
  std::size_t* mark = nullptr;
  const span_label* label = nullptr;
  level_change level{};
};

// Listens to the engine. An observer keeps its own failures for later, because a step goes on even
// if it can no longer be recorded.
class observer {
 public:
  observer() = default;
  observer(const observer&) = delete;
  observer& operator=(const observer&) = delete;
  virtual ~observer() = default;
  virtual void on(const happening& what) noexcept = 0;

 private:
  friend class observers;
  observer* next_ = nullptr;
};

// The observers of one offloader. While there is none, a happening costs one test.
class observers {
 public:
  // The mark of a span that began before there was an observer. Observers do not hear of its end.
  static constexpr auto no_mark = static_cast<std::size_t>(-1);

  [[nodiscard]] bool any() const { return first_ != nullptr; }
  // `fresh` must be in no list, and must leave this one before it is destroyed.
  void add(observer& fresh) noexcept {
    fresh.next_ = first_;
    first_ = &fresh;
  }
  void remove_all() noexcept { first_ = nullptr; }
  // Does nothing if `gone` is not in the list.
  void remove(observer& gone) noexcept {
    for (auto** each = &first_; *each != nullptr; each = &(*each)->next_) {
      if (*each != &gone) continue;
      *each = gone.next_;
      return;
    }
  }
  [[nodiscard]] bool has(const observer& sought) const noexcept {
    for (const auto* each = first_; each != nullptr; each = each->next_) {
      if (each == &sought) return true;
    }
    return false;
  }

  // Callers ask `any` first, so that no happening is made without an observer.
  [[gnu::noinline]] void tell(const happening& what) const noexcept {
    for (auto* each = first_; each != nullptr; each = each->next_) each->on(what);
  }
  [[gnu::always_inline]] void begin_span(lane_id on, std::size_t& mark) const noexcept {
    if (first_ != nullptr) tell({.what = happened::span_begun, .lane = on, .mark = &mark});
  }
  [[gnu::always_inline]] void end_span(lane_id on, std::size_t mark,
                                       const span_label& label) const noexcept {
    if (mark != no_mark) {
      tell({.what = happened::span_over, .lane = on, .mark = &mark, .label = &label});
    }
  }

 private:
  observer* first_ = nullptr;
};

}  // namespace tidepool::detail
