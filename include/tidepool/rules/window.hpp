/// A module's offloads in flight: first in, first out, capped.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tidepool/core/clocks.hpp"

namespace tidepool::inline v0_3_0 {

/// Offloads of one module, over all chunks, that no compute stream has joined yet.
///
/// Megatron keeps such a queue for each name and chunk, so that its bound is cap x names x chunks;
/// this one is per module. It only counts: the engine makes the joins.
class window {
 public:
  /// The caps of one module.
  struct limits {
    std::optional<std::size_t> groups;  ///< none: no cap
    std::optional<std::size_t> bytes;   ///< none: no cap
  };

  void set(const limits& caps) { caps_ = caps; }  ///< Sets the caps.
  /// Whether there is any cap.
  [[nodiscard]] bool capped() const { return caps_.groups || caps_.bytes; }

  /// An offload of so many bytes, which is over at `done`.
  void push(const ticket& done, std::size_t bytes) {
    if (tail_ - head_ == queue_.size()) grow();
    queue_[tail_++ % queue_.size()] = {done, bytes};
    bytes_ += bytes;
  }
  /// Undoes the latest `push`, which has not been popped.
  void take_back() { bytes_ -= queue_[--tail_ % queue_.size()].bytes; }
  /// Forgets the oldest, which has been joined.
  void pop() { bytes_ -= queue_[head_++ % queue_.size()].bytes; }

  /// Whether nothing is in flight.
  [[nodiscard]] bool empty() const { return head_ == tail_; }
  /// Where the oldest is over.
  [[nodiscard]] const ticket& oldest() const { return queue_[head_ % queue_.size()].done; }
  [[nodiscard]] std::size_t groups() const { return tail_ - head_; }  ///< Offloads in flight.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }          ///< Bytes in flight.

  /// More in flight than the caps allow.
  [[nodiscard]] bool over() const {
    return !empty() &&
           ((caps_.groups && groups() > *caps_.groups) || (caps_.bytes && bytes() > *caps_.bytes));
  }

 private:
  struct entry {
    ticket done;
    std::size_t bytes = 0;
  };

  void grow() {
    std::vector<entry> larger(queue_.empty() ? 8 : queue_.size() * 2);
    for (auto i = head_; i != tail_; ++i) larger[i - head_] = queue_[i % queue_.size()];
    tail_ -= head_;
    head_ = 0;
    queue_ = std::move(larger);
  }

  limits caps_;
  std::vector<entry> queue_;  // [head, tail) modulo its size
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace tidepool
