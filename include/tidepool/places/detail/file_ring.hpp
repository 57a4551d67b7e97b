// The way of tensors to a file and back: a ring of pinned memory between the copies and the I/O.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "tidepool/core/page_allocator.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/offload_place.hpp"
#include "tidepool/engine/sources.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/lanes.hpp"
#include "tidepool/places/detail/file_pages.hpp"
#include "tidepool/places/detail/file_worker.hpp"
#include "tidepool/places/file.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// A copy out fills a slot, on the device; once it has ended, the worker writes the slot. A copy
// back comes out of the slot that still has the bytes, or out of one that the worker has read them
// into.
//
// The device never waits for the file: no event stands for I/O, and a kernel that was launched
// behind a read could not be told that it failed. The host waits instead, in the call that needs a
// slot or the bytes, and that call throws. Slots are taken in turn, so that which one is had, and
// when the host waits, follows from the order of calls and never from the disk.
class file_ring final : public staging {
 public:
  // Takes no memory yet. Both lanes are of this ring alone.
  file_ring(hardware& dev, lanes& order, std::unique_ptr<page_allocator> memory,
            const file_pages& blocks, std::unique_ptr<file_worker> worker, std::size_t bytes,
            lane_id offload, lane_id reload)
      : dev_(&dev),
        order_(&order),
        memory_(std::move(memory)),
        blocks_(&blocks),
        worker_(std::move(worker)),
        count_(std::min(most_slots, bytes / file_granule)),
        piece_(std::min(bytes, most_bytes) / count_ / file_granule * file_granule),
        offload_(offload),
        reload_(reload) {}
  // The owner settles both lanes first, because their copies use the ring's memory.
  ~file_ring() override {
    worker_.reset();  // what it serves lies here
    if (pages_ != nullptr) memory_->deallocate(pages_);
  }

  [[nodiscard]] std::string full() const override { return blocks_->full(); }

  void copy_out(const block& into, const void* whole, const rectangle& from) override {
    open();
    poll();
    const auto at = blocks_->offset_of(into.data);
    const auto* const data = static_cast<const std::byte*>(whole) + from.offset;
    for (std::size_t done = 0; done < from.bytes(); done += piece_) {
      auto& one = take();
      order_->join(offload_, one.emptied, join_site::host_reuse);
      const auto now = std::min(piece_, from.bytes() - done);
      fill(one.data, data, from, done, now);
      one.filled = order_->record(offload_);
      one.offset = at + done;
      one.request.bytes = in_granules(now);
      one.state = slot_state::filled;
    }
  }

  void copy_in(void* target, const block& from, std::size_t bytes) override {
    open();
    poll();
    const auto at = blocks_->offset_of(from.data);
    for (std::size_t done = 0; done < bytes; done += piece_) {
      const auto now = std::min(piece_, bytes - done);
      auto& one = holding(at + done, now);
      order_->join(reload_, one.filled, join_site::own_offload);
      dev_->copy(static_cast<std::byte*>(target) + done, one.data, {now, 1, now, now},
                 copy_direction::host_to_device, reload_);
      one.emptied = order_->record(reload_);
    }
  }

  // A write of the block that is under way ends before the block's next one, in the worker's order.
  void forget(const block& what) noexcept override {
    const auto first = blocks_->offset_of(what.data);
    for (auto& each : slots_) {
      if (each.offset < first || each.offset - first >= what.bytes) continue;
      each.offset = nothing;
      if (each.state == slot_state::filled) each.state = slot_state::free;
    }
  }

 private:
  static constexpr std::size_t most_slots = 16;
  static constexpr std::size_t most_bytes = std::numeric_limits<std::size_t>::max() / 2;
  static constexpr std::uint64_t nothing = std::numeric_limits<std::uint64_t>::max();

  enum class slot_state : unsigned char {
    free,     // or as the file has it
    filled,   // by a copy that was issued; to be written
    writing,  // or that has failed, which `request` says
    reading   // which took too long
  };

  struct slot {
    std::byte* data = nullptr;
    slot_state state = slot_state::free;
    std::uint64_t offset = nothing;  // of what it holds, in the file
    ticket filled;                   // the copy into it
    ticket emptied;                  // the latest copy out of it, to the device
    file_request request;
  };

  // Hands to the worker what has been copied by now.
  void poll() {
    for (std::size_t i = 0; i < count_; ++i) {
      auto& each = slots_[(next_ + i) % count_];
      if (each.state != slot_state::filled) continue;
      if (!order_->passed(fence(each.filled))) return;
      write(each);
    }
  }

  [[nodiscard]] std::size_t bytes_taken() const {
    return count_ * piece_ + file_granule;  // it may begin anywhere
  }

  void open() {
    if (pages_ != nullptr) return;
    pages_ = memory_->try_allocate(bytes_taken());
    if (pages_ == nullptr) {
      throw out_of_budget("places: file_ring: " + text::size_text(bytes_taken()) +
                              " of pinned host memory cannot be had; give a smaller"
                              " --file-ring, or a smaller --host-budget",
                          bytes_taken(), bytes_taken());
    }
    const auto address = reinterpret_cast<std::uintptr_t>(pages_);
    auto* const data = static_cast<std::byte*>(pages_) + (in_granules(address) - address);
    for (std::size_t i = 0; i < count_; ++i) slots_[i].data = data + i * piece_;
  }

  // Some of the bytes of a rectangle, counted row by row: part of a row, whole rows, part of one.
  void fill(std::byte* target, const std::byte* data, const rectangle& from, std::size_t first,
            std::size_t bytes) {
    while (bytes > 0) {
      const auto column = first % from.width;
      const bool whole = column == 0 && bytes >= from.width;
      const auto width = whole ? from.width : std::min(from.width - column, bytes);
      const auto rows = whole ? bytes / from.width : 1;
      dev_->copy(target, data + first / from.width * from.pitch + column,
                 {width, rows, rows == 1 ? width : from.pitch, width},
                 copy_direction::device_to_host, offload_);
      target += width * rows;
      first += width * rows;
      bytes -= width * rows;
    }
  }

  // The slot that has these bytes, or one that they are read into.
  slot& holding(std::uint64_t at, std::size_t bytes) {
    const auto found = std::ranges::find(slots_, at, &slot::offset);
    if (found != slots_.end() && found->state != slot_state::reading) return *found;
    auto& into = take();
    // The worker is about to write to it.
    await(into.filled, offload_);
    if (!left_out(join_site::file_reuse)) await(into.emptied, reload_);
    into.state = slot_state::reading;
    dev_->reads_file(into.data, blocks_->at(at), bytes);
    into.request.ask(file_request_kind::read, into.data, in_granules(bytes), at);
    worker_->submit(into.request);
    finish(into);
    into.offset = at;
    return into;
  }

  // The next slot in turn, of which nobody needs the bytes.
  slot& take() {
    auto& oldest = slots_[next_];
    if (oldest.state == slot_state::filled) {
      if (!left_out(join_site::file_write)) await(oldest.filled, offload_);
      write(oldest);
    }
    if (oldest.state != slot_state::free) finish(oldest);
    oldest.offset = nothing;
    next_ = (next_ + 1) % count_;
    return oldest;
  }

  void write(slot& from) {
    dev_->writes_file(blocks_->at(from.offset), from.data, from.request.bytes);
    from.request.ask(file_request_kind::write, from.data, from.request.bytes, from.offset);
    worker_->submit(from.request);
    from.state = slot_state::writing;
  }

  // Blocks the host until the worker is done with a slot. A write that failed is tried once more
  // each time; until it succeeds the slot keeps what nobody else has.
  void finish(slot& which) {
    const bool writes = which.state == slot_state::writing;
    if (!worker_->wait(which.request)) throw_slow(which);
    if (writes && which.request.failed() && which.offset != nothing) {
      write(which);
      if (!worker_->wait(which.request)) throw_slow(which);
    }
    const bool failed = which.request.failed();
    if (failed && writes && which.offset != nothing) throw_failed(which, "written");
    which.state = slot_state::free;
    if (failed && !writes) throw_failed(which, "read");
  }

  void await(const ticket& until, lane_id lane) {
    if (until.position == 0 || order_->passed(fence(until))) return;
    dev_->synchronize(lane);
  }

  [[nodiscard]] bool left_out(join_site site) const { return dev_->leaves_out(site); }

  [[noreturn, gnu::cold]] void throw_slow(const slot& which) const {
    throw disk_error("the file in " + blocks_->path() +
                         " does not answer: " + std::to_string(which.request.bytes) + " bytes at " +
                         std::to_string(which.request.offset) +
                         ". Nothing is lost: make the call again once the disk answers",
                     blocks_->path(), ETIMEDOUT);
  }
  [[noreturn, gnu::cold]] void throw_failed(const slot& which, const char* what) const {
    const auto& request = which.request;
    const auto code = request.result.code;
    const bool full = code == ENOSPC || code == EDQUOT;
    const std::string remedy = full ? "free room on the disk and make the call again"
                                    : "make the call again; if it goes on, see to the disk";
    throw disk_error(
        "the file in " + blocks_->path() + ": " + std::to_string(request.result.bytes) + " of " +
            std::to_string(request.bytes) + " bytes at " + std::to_string(request.offset) +
            " could be " + what + (code == 0 ? ", and no error was given" : ": " + in_words(code)) +
            ". Nothing is lost: " + remedy + ", or give --places=host",
        blocks_->path(), code);
  }

  hardware* dev_;
  lanes* order_;
  std::unique_ptr<page_allocator> memory_;
  const file_pages* blocks_;
  std::unique_ptr<file_worker> worker_;
  std::size_t count_;
  std::size_t piece_;  // bytes of a slot
  lane_id offload_;
  lane_id reload_;
  void* pages_ = nullptr;
  std::array<slot, most_slots> slots_;
  std::size_t next_ = 0;  // the one that was taken the longest ago
};

inline void open_file(offload_place& place, hardware& dev, lanes& order, const options& opts) {
  place.name = "file";
  place.granule = file_granule;
  const auto budget = opts.file_budget.value_or(0) / file_granule * file_granule;
  std::unique_ptr<backing_file> file;
  dev.open_file(opts.file_path, file);
  if (file == nullptr) file = open_backing_file(opts.file_path);
  auto worker = std::make_unique<file_worker>(std::move(file));
  auto room = std::make_unique<file_pages>(*worker, opts.file_path, budget);
  place.staged =
      std::make_unique<file_ring>(dev, order, make_host_pages(dev, opts), *room, std::move(worker),
                                  opts.file_ring, place.offload, place.reload);
  place.open(std::move(room), order, {in_granules(opts.host_step), budget, rounding::none});
}

}  // namespace detail

TIDEPOOL_INLINE detail::file_opener file_place() { return detail::open_file; }

}  // namespace tidepool
