/// A block of the trainer's own memory at an address that never changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tidepool/core/block.hpp"

namespace tidepool::inline v0_3_0 {

/// A `block_source` over memory that the trainer owns: for CUDA graphs and kernels that know an
/// address for good. A tensor allocated from it is offloaded from this address and reloaded to it.
/// Several layers may take turns, and each waits for the copies of the layer before.
///
/// The memory must be aligned as the device wants it and outlive this object. This object must
/// outlive tensors allocated from it. It serves one offloader.
class fixed_block final : public block_source {
 public:
  /// Takes memory that work given to any stream may use from now on.
  fixed_block(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}

  /// Returns false while the block is taken, or if it is too small.
  [[nodiscard]] bool take(std::size_t bytes, lane_id /*waiter*/, block& into,
                          fence& ready) override {
    if (taken_ || bytes > bytes_) return false;
    taken_ = true;
    into = {data_, bytes_, 0};
    ready = ready_;
    return true;
  }
  /// The block may be taken again, behind `after`.
  void release(const block& /*done*/, const fence& after) noexcept override {
    taken_ = false;
    ready_ = after;
  }

  [[nodiscard]] bool taken() const { return taken_; }  ///< True while the block is taken.

  [[nodiscard]] std::size_t reserved() const override { return bytes_; }
  [[nodiscard]] std::size_t peak() const override { return bytes_; }  ///< Bytes of the block.
  [[nodiscard]] std::size_t budget() const override { return bytes_; }
  [[nodiscard]] std::size_t largest_free() const override { return taken_ ? 0 : bytes_; }
  [[nodiscard]] std::uint64_t allocations() const override { return 0; }

 private:
  void* data_;
  std::size_t bytes_;
  bool taken_ = false;
  fence ready_;
};

}  // namespace tidepool
