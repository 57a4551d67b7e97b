// Copies between the device and a place, issued together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "tidepool/device/device.hpp"
#include "tidepool/engine/storage.hpp"

namespace tidepool::inline v0_2_0::detail {

template <device Device>
class copy_queue {
 public:
  using stream_ref = typename Device::stream_ref;

  // Copies longer than `piece` bytes are issued in pieces; 0: whole.
  copy_queue(Device& dev, std::size_t piece) : dev_(&dev), piece_(piece) {}

  void add(void* target, const void* source, std::size_t bytes) {
    batch_.push_back({target, source, bytes});
  }

  // A rectangle becomes dense where it goes: by a copy of its own, issued at once.
  void add_out(void* target, const void* whole, const rectangle& from, copy_direction direction,
               stream_ref stream) {
    const auto* data = static_cast<const std::byte*>(whole) + from.offset;
    if (from.rows == 1) return add(target, data, from.width);
    dev_->copy(target, data, {from.width, from.rows, from.pitch, from.width}, direction, stream);
  }

  // Many small copies as one, large ones in pieces.
  void issue(copy_direction direction, stream_ref stream) {
    if (!issue_batch(direction, stream)) {
      for (const auto& item : batch_) issue_pieces(item, direction, stream);
    }
    batch_.clear();
  }

  void clear() noexcept { batch_.clear(); }

 private:
  // Below this many bytes each, launching costs more than copying.
  static constexpr std::size_t small_copy = std::size_t{1} << 20;

  bool issue_batch(copy_direction direction, stream_ref stream) {
    if constexpr (requires { dev_->copy_batch(std::span<const copy_item>(), direction, stream); }) {
      std::size_t bytes = 0;
      for (const auto& item : batch_) bytes += item.bytes;
      return batch_.size() > 1 && bytes / batch_.size() < small_copy &&
             dev_->copy_batch(std::span<const copy_item>(batch_), direction, stream);
    } else {
      return false;
    }
  }

  void issue_pieces(const copy_item& item, copy_direction direction, stream_ref stream) {
    const auto piece = piece_ == 0 ? item.bytes : piece_;
    for (std::size_t done = 0; done < item.bytes; done += piece) {
      const auto now = std::min(piece, item.bytes - done);
      dev_->copy(static_cast<std::byte*>(item.target) + done,
                 static_cast<const std::byte*>(item.source) + done, {now, 1, now, now}, direction,
                 stream);
    }
  }

  Device* dev_;
  std::size_t piece_;
  std::vector<copy_item> batch_;
};

}  // namespace tidepool::detail
