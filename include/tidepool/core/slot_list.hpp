// A list in the order of insertion, of which any element can be erased in constant time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tidepool::inline v0_3_0::detail {

// Elements are known by the slot that `push_back` returned; slots are used again.
template <class T>
class slot_list {
 public:
  using slot = std::uint32_t;
  static constexpr slot none = std::numeric_limits<slot>::max();

  [[nodiscard]] bool empty() const { return last_ == none; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // The slot of the latest element; `none` when the list is empty.
  [[nodiscard]] slot last() const { return last_; }
  [[nodiscard]] const T& operator[](slot at) const { return nodes_[at].value; }

  // Makes room, so that one more `push_back` needs no memory.
  void make_room() {
    if (free_ != none) return;
    nodes_.push_back({});
    free_ = static_cast<slot>(nodes_.size() - 1);
  }

  slot push_back(const T& value) {
    make_room();
    const auto at = free_;
    free_ = nodes_[at].before;
    nodes_[at] = {value, last_, none};
    if (last_ != none) nodes_[last_].behind = at;
    last_ = at;
    ++size_;
    return at;
  }

  void erase(slot at) noexcept {
    auto& gone = nodes_[at];
    (gone.behind == none ? last_ : nodes_[gone.behind].before) = gone.before;
    if (gone.before != none) nodes_[gone.before].behind = gone.behind;
    gone.before = free_;
    free_ = at;
    --size_;
  }

 private:
  struct node {
    T value{};
    slot before = none;  // in a free node, the next free one
    slot behind = none;
  };

  std::vector<node> nodes_;
  slot last_ = none;
  slot free_ = none;
  std::size_t size_ = 0;
};

}  // namespace tidepool::detail
