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

// Copies to and from blocks that no copy of the device reaches, such as those of a file.
class staging {
 public:
  virtual ~staging() = default;
  // Queues copies of a rectangle of device memory, which becomes dense in the block.
  virtual void copy_out(const block& into, const void* whole, const rectangle& from) = 0;
  // Queues copies of the contents of a block to `target` on the device.
  virtual void copy_in(void* target, const block& from, std::size_t bytes) = 0;
  // Drops the contents of a block that are no longer needed.
  virtual void forget(const block& what) noexcept = 0;
  // The reason why the latest request for blocks failed; empty if it succeeded.
  [[nodiscard]] virtual std::string full() const = 0;
};

// Pages that another process lends.
class loan : public page_allocator {
 public:
  [[nodiscard]] const std::string& lender() const { return lender_; }
  [[nodiscard]] std::byte* memory() const noexcept { return begin_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // Called when a step that trains begins. If the lender is gone, throws `lender_error`, or reports
  // it to `report` and gives the pages back.
  virtual void before_step(const std::function<void(std::string_view)>& report) = 0;
  // Called before the launch of a graph that offloads to these pages; `before` is the layout that
  // the graph needs.
  virtual void before_launch(const memory_layout& before) const = 0;
  // Gives the pages back. Blocks the host until copies to and from them are over. Destroys the
  // loan.
  virtual void give_back() = 0;

 protected:
  loan(std::string lender, std::size_t bytes) : lender_(std::move(lender)), size_(bytes) {}

  std::string lender_;
  std::byte* begin_ = nullptr;
  std::size_t size_;
};

// Plain data. The rules are the same for all places, and are in storages.hpp. The owner of a place
// settles its lanes before the place is destroyed.
struct offload_place {
  explicit offload_place(lanes& order)
      : offload(order.add_own()), reload(order.add_own()), unpack(reload) {}

  // Sets the source of the place's blocks; takes no memory yet.
  void open(std::unique_ptr<page_allocator> from, const clocks& order, const pool_limits& limits) {
    pages = std::move(from);
    blocks.emplace(*pages, order, limits);
    blocks->allow_in_flight(limits.step);
  }
  // Like `open`, for memory of the neighbour `device`.
  void open_peer(std::unique_ptr<page_allocator> from, const clocks& order,
                 const pool_limits& limits, int device) {
    name = "peer " + std::to_string(device);
    out = copy_direction::device_to_peer;
    in = copy_direction::peer_to_device;
    reuse = join_site::peer_reuse;
    open(std::move(from), order, limits);
  }

  // Like `open_peer`, for memory that another process lends.
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
  join_site reuse = join_site::host_reuse;  // join before a new use of a block
  lane_id offload;
  lane_id reload;
  lane_id unpack;  // of its own where tensors are packed; else `reload`
  std::unique_ptr<page_allocator> pages;
  std::optional<pool> blocks;  // empty if a loan has been given back
  loan* lent = nullptr;        // the loan of another process; null: none
  std::size_t used = 0;        // bytes in use
  std::size_t peak = 0;        // the most bytes ever in use
  std::uint64_t bytes_offloaded = 0;
  std::uint64_t bytes_reloaded = 0;
  std::size_t granule = 1;          // bytes of all blocks are multiples of it; a power of two
  std::unique_ptr<staging> staged;  // null: copies reach the blocks; destroyed before the pages
};

// A function that opens the place of `place_kind::file`; `tidepool::file_place()` returns one.
// Null: files cannot be opened.
using file_opener = void (*)(offload_place&, hardware&, lanes&, const options&);

}  // namespace detail

class loan_handle;  // of places/lending.hpp
enum class lender_gone : std::uint8_t;

}  // namespace tidepool
