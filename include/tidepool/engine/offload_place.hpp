// A place that groups are offloaded to: a link, a budget, and blocks with fences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tidepool/core/join_site.hpp"
#include "tidepool/core/page_allocator.hpp"
#include "tidepool/engine/file_ring.hpp"
#include "tidepool/memory/backing_file.hpp"
#include "tidepool/memory/file_pages.hpp"
#include "tidepool/memory/file_worker.hpp"
#include "tidepool/memory/lanes.hpp"
#include "tidepool/memory/loan.hpp"
#include "tidepool/memory/pool.hpp"
#include "tidepool/options.hpp"
#include "tidepool/trace/counters.hpp"

namespace tidepool::inline v0_2_0::detail {

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
  // For a file, by way of a ring of the memory that `through` has.
  void open_file(hardware& dev, lanes& order, const options& opts,
                 std::unique_ptr<backing_file> file, std::unique_ptr<page_allocator> through) {
    name = "file";
    granule = file_granule;
    worker = std::make_unique<file_worker>(std::move(file));
    const auto budget = opts.file_budget.value_or(0) / file_granule * file_granule;
    auto room = std::make_unique<file_pages>(*worker, opts.file_path, budget);
    file_room = room.get();
    ring.emplace(dev, order, std::move(through), *room, *worker, opts.file_ring, offload, reload);
    open(std::move(room), order, {in_granules(opts.host_step), budget, rounding::none});
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
  void open_loan(std::unique_ptr<loan_pages> from, const clocks& order) {
    const pool_limits whole{from->bytes(), from->bytes(), rounding::none};
    const std::string lender = from->lender();
    lent = from.get();
    open_peer(std::move(from), order, whole, 0);
    name = "peer, " + lender;
  }
  // Gives that back; the place takes nothing until it has memory again.
  void close_loan() noexcept {
    lent = nullptr;
    blocks.reset();
    pages.reset();
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
  std::optional<pool> blocks;            // none where what was lent has been given back
  const loan* lent = nullptr;            // of another process
  std::uint64_t graphs_before_loan = 0;  // which know nothing of it
  std::size_t used = 0;                  // bytes in use
  std::size_t peak = 0;                  // the most ever
  std::uint64_t bytes_offloaded = 0;
  std::uint64_t bytes_reloaded = 0;
  std::size_t granule = 1;  // that all blocks are multiples of; a power of two
  // Of a file. The worker ends first: what it serves lies in the others.
  const file_pages* file_room = nullptr;
  std::optional<file_ring> ring;
  std::unique_ptr<file_worker> worker;
};

}  // namespace tidepool::detail
