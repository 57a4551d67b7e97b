// A place that groups are offloaded to: a link, a budget, and blocks with fences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tidepool/core/join_site.hpp"
#include "tidepool/core/page_allocator.hpp"
#include "tidepool/engine/memory_layout.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/memory/lanes.hpp"
#include "tidepool/memory/pool.hpp"
#include "tidepool/options.hpp"
#include "tidepool/trace/counters.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// The way to blocks that no copy of the device reaches, such as those of a file.
class staging {
 public:
  virtual ~staging() = default;
  // Queues copies of a rectangle of device memory, which becomes dense there.
  virtual void copy_out(const block& into, const void* whole, const rectangle& from) = 0;
  // Queues copies of what a block holds.
  virtual void copy_in(void* target, const block& from, std::size_t bytes) = 0;
  // Nobody wants the contents of this block any more.
  virtual void forget(const block& what) noexcept = 0;
  // Why there were no more when they were asked for last; empty where there were.
  [[nodiscard]] virtual std::string full() const = 0;
};

// Pages that another process lends.
class loan : public page_allocator {
 public:
  [[nodiscard]] const std::string& lender() const { return lender_; }
  [[nodiscard]] std::byte* memory() const noexcept { return begin_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // A step that trains begins. Where the lender is gone, it throws `lender_error`, or says so to
  // `report` and gives them back.
  virtual void before_step(const std::function<void(std::string_view)>& report) = 0;
  // A graph that offloads to them is to be launched, and finds `before` in memory.
  virtual void before_launch(const memory_layout& before) const = 0;
  // Blocks the host until copies to and from them are over. Nothing of the loan is left then.
  virtual void give_back() = 0;

 protected:
  loan(std::string lender, std::size_t bytes) : lender_(std::move(lender)), size_(bytes) {}

  std::string lender_;
  std::byte* begin_ = nullptr;
  std::size_t size_;
};

// Plain data; the rules are in storages.hpp, and are the same for all places. Whoever owns it
// settles both lanes before it goes.
struct offload_place {
  explicit offload_place(lanes& order) : offload(order.add_own()), reload(order.add_own()) {}

  // Takes no memory yet.
  void open(std::unique_ptr<page_allocator> from, const clocks& order, const pool_limits& limits) {
    pages = std::move(from);
    blocks.emplace(*pages, order, limits);
    blocks->allow_in_flight(limits.step);
  }
  // The same for memory of a neighbour.
  void open_peer(std::unique_ptr<page_allocator> from, const clocks& order,
                 const pool_limits& limits, int device) {
    name = "peer " + std::to_string(device);
    out = copy_direction::device_to_peer;
    in = copy_direction::peer_to_device;
    reuse = join_site::peer_reuse;
    open(std::move(from), order, limits);
  }

  // The same of one that is another process's.
  void open_loan(std::unique_ptr<loan> from, const clocks& order) {
    const pool_limits whole{from->size(), from->size(), rounding::none};
    lent = from.get();
    open_peer(std::move(from), order, whole, 0);
    name = "peer, " + lent->lender();
  }

  [[nodiscard]] trace::place_counters counted() const {
    trace::place_counters all{name, bytes_offloaded, bytes_reloaded, 0, 0, peak, 0};
    if (!blocks) return all;
    all.budget = blocks->budget();
    all.reserved = blocks->reserved();
    all.allocations = blocks->allocations();
    return all;
  }

  std::string name = "host";
  copy_direction out = copy_direction::device_to_host;
  copy_direction in = copy_direction::host_to_device;
  join_site reuse = join_site::host_reuse;  // of a block, after the reload out of it
  lane_id offload;
  lane_id reload;
  std::unique_ptr<page_allocator> pages;
  std::optional<pool> blocks;  // none where what was lent has been given back
  loan* lent = nullptr;        // of another process
  std::size_t used = 0;        // bytes in use
  std::size_t peak = 0;        // the most ever
  std::uint64_t bytes_offloaded = 0;
  std::uint64_t bytes_reloaded = 0;
  std::size_t granule = 1;          // that all blocks are multiples of; a power of two
  std::unique_ptr<staging> staged;  // none where copies reach the blocks; ends before the pages
};

// Opens the place of `place_kind::file`; `tidepool::file_place()` returns it. Null: none can.
using file_opener = void (*)(offload_place&, hardware&, lanes&, const options&);

}  // namespace detail

class loan_handle;  // of places/lending.hpp
enum class lender_gone : std::uint8_t;

}  // namespace tidepool
