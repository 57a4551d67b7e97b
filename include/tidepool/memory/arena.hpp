/// A fixed byte budget: one allocation, from which blocks come with back-pressure.
#pragma once

#include <string>

#include "tidepool/core/page_allocator.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/ranges.hpp"

namespace tidepool::inline v0_3_0 {

/// All device memory of saved tensors in one allocation of exactly the budget.
///
/// When nothing free can be had without a wait, the range whose fence is oldest is handed out and
/// the asking stream waits for it: the budget holds exactly, and the stall is the shortest there
/// is. The host never blocks. An empty grant means that everything is in use.
class arena final : public block_source {
 public:
  /// Throws `out_of_budget` when the device cannot give `budget` bytes.
  arena(page_allocator& pages, const clocks& order, std::size_t budget)
      : pages_(&pages), order_(&order), bytes_(budget / block_alignment * block_alignment) {
    if (bytes_ == 0) {
      throw out_of_budget("device_budget: an arena of " + detail::text::size_text(budget) +
                              " holds nothing, since blocks are of " +
                              std::to_string(block_alignment) +
                              " bytes; give it a larger --device-budget",
                          budget, 0);
    }
    base_ = pages.try_allocate(bytes_);
    if (base_ == nullptr) {
      throw out_of_budget("device_budget: the device cannot give an arena of " +
                              detail::text::size_text(budget) + " (" +
                              detail::text::size_text(pages.free_bytes()) +
                              " are free); give it a smaller --device-budget",
                          budget, pages.free_bytes());
    }
    book_.add_region(static_cast<std::byte*>(base_), bytes_);
  }
  ~arena() override { pages_->deallocate(base_); }

  [[nodiscard]] bool take(std::size_t bytes, lane_id waiter, block& into, fence& ready) override {
    const auto joined = order_->joined_by(waiter);
    const auto found = find(bytes, joined);
    if (found) book_.take(found, bytes, into, ready);
    return static_cast<bool>(found);
  }
  [[nodiscard]] bool take_at(std::size_t offset, std::size_t bytes, lane_id waiter, block& into,
                             fence& ready) override {
    const auto joined = order_->joined_by(waiter);
    return book_.take_at(static_cast<std::byte*>(base_) + offset, bytes, joined, into, ready);
  }
  /// Releases a block, which is free behind `after`.
  void release(const block& done, const fence& after) noexcept override {
    book_.release(done.index, after);
  }

  /// Makes an arena of which nothing is in use whole again, so that every step finds the same
  /// arena.
  void coalesce() noexcept override { book_.join_if_unused(); }

  /// Sets how blocks are placed; `fit_policy::spare_largest` until the first call.
  void set_fit(fit_policy how) noexcept override { how_ = how; }

  [[nodiscard]] std::size_t reserved() const override { return bytes_; }
  /// Bytes of the whole arena, which is taken at once.
  [[nodiscard]] std::size_t peak() const override { return bytes_; }
  [[nodiscard]] std::size_t budget() const override { return bytes_; }
  [[nodiscard]] std::size_t largest_free() const override { return book_.largest_free(); }
  [[nodiscard]] std::uint64_t allocations() const override { return 1; }

 private:
  template <class Joined>
  [[nodiscard]] ranges::place find(std::size_t bytes, const Joined& joined) {
    switch (how_) {
      case fit_policy::ready_first:
        return book_.find(bytes, joined, true);
      case fit_policy::compact:
        return book_.find_snug(bytes, joined);
      case fit_policy::spare_largest:
        break;
    }
    return book_.find_sparing(bytes, joined);
  }

  page_allocator* pages_;
  const clocks* order_;
  std::size_t bytes_;
  void* base_ = nullptr;
  ranges book_;
  fit_policy how_ = fit_policy::spare_largest;
};

}  // namespace tidepool
