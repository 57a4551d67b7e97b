// Storages in their places, the copies there and back, and the joins that order both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tidepool/core/happening.hpp"
#include "tidepool/core/part_index.hpp"
#include "tidepool/core/rollback.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/engine/packing.hpp"
#include "tidepool/engine/place_list.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/memory/lanes.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail {

// The joins of copies; joins around a capture are in lanes.hpp, joins of device memory in
// storages.hpp. Each place has its own offload stream and reload stream:
//   producer      offload stream  waits for the stream that commits
//   host_reuse    offload stream  waits for the reload that last read the host block
//   peer_reuse    offload stream  waits for the reload that last read the neighbour's block
//   own_offload   reload stream   waits for the offload of the same storage
//   unpack        unpack stream   waits for the copy of packed bytes (in pack_storages.hpp)
class copies {
 public:
  using place = offload_place;

  // `dev` and `heard` must outlive this object.
  copies(hardware& dev, const observers& heard, const options& opts, file_opener file)
      : dev_(&dev),
        heard_(&heard),
        order_(dev, heard),
        places_(dev, order_, opts, file),
        piece_(opts.copy_piece) {}
  copies(const copies&) = delete;
  copies& operator=(const copies&) = delete;

  [[nodiscard]] lanes& order() { return order_; }

  // ---- places ----

  [[nodiscard]] lane_id offload_lane(place_kind to) const {
    return places_.offload_lanes[static_cast<std::size_t>(to)];
  }
  [[nodiscard]] lane_id reload_lane(place_kind from) const {
    return places_.reload_lanes[static_cast<std::size_t>(from)];
  }
  // The copy lanes of every place; the host's come first.
  [[nodiscard]] const std::vector<lane_id>& copy_lanes() const { return places_.copy_lanes; }
  [[nodiscard]] const std::vector<place_kind>& places() const { return places_.nearest; }
  void borrow(std::unique_ptr<loan> from) { places_.borrow(order_, std::move(from)); }
  // Null while nothing is borrowed.
  [[nodiscard]] loan* lent() const {
    return has(place_kind::peer) ? at(place_kind::peer).lent : nullptr;
  }
  // Bytes offloaded to a lender so far, in captures as well.
  [[nodiscard]] std::uint64_t bytes_to_lender() const {
    return lent() == nullptr ? 0 : at(place_kind::peer).bytes_offloaded;
  }
  [[nodiscard]] bool has(place_kind which) const { return places_.has(which); }
  [[nodiscard]] place& at(place_kind which) {
    return *places_.all[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] const place& at(place_kind which) const {
    return *places_.all[static_cast<std::size_t>(which)];
  }

  // Takes a block of `where` for the copy of `store`; returns false if there is none.
  [[nodiscard, gnu::always_inline]] inline bool place_copy(storage& store, place_kind where) {
    store.is.packed = false;
    return place_copy(store, where, store.moved(), at(where).offload);
  }
  // Like `place_copy`, for `bytes` that the work of `writer` writes first.
  [[nodiscard, gnu::always_inline]] inline bool place_copy(storage& store, place_kind where,
                                                           std::size_t least, lane_id writer) {
    auto& to = at(where);
    fence ready;
    if (store.part.of != 0) parts_.make_room();
    const auto bytes = (least + to.granule - 1) & ~(to.granule - 1);
    if (bytes == 0) {
      store.there.memory = no_bytes();
    } else if (!to.blocks || !to.blocks->take(bytes, writer, store.there.memory, ready)) {
      return false;
    }
    // The join is made now, so that the fence need not be kept. It delays no other work, because
    // the next work of the stream is the copy into this block.
    if (ready.order() > 0) join_reuse(store, to, ready, writer);
    store.place = where;
    if (store.part.of != 0) parts_.insert(store);
    if (store.here.memory.data == nullptr) away_ += store.bytes;
    to.used += store.there.memory.bytes;
    to.peak = std::max(to.peak, to.used);
    return true;
  }

  void displace_copy(storage& store, const ticket& after) {
    if (!store.here.memory) away_ -= store.bytes;
    if (store.part.of != 0) parts_.erase(store);
    auto& from = at(store.place);
    if (from.staged && store.bytes > 0) from.staged->forget(store.there.memory);
    from.used -= store.there.memory.bytes;
    // If `after` is the begin, nothing was copied into the block, and the offload stream has joined
    // its last reader. The next writer may be a kernel that packs on another stream, which has not
    // joined it, so that the block gets the past of the offload stream.
    if (store.bytes > 0) {
      from.blocks->release(store.there.memory,
                           after.position > 0 ? fence(after) : order_.past(from.offload));
    }
    store.there.memory = {};
  }

  // The dense copy of a rectangle that was offloaded before, or null.
  [[nodiscard]] storage* copied_part(const storage& whole, const rectangle& part) const {
    return parts_.find(whole.number, part);
  }

  // ---- copies ----

  // Issues the offloads of a group behind the work of its lane; returns the ticket of their end.
  [[nodiscard]] ticket copy_out(group& which, const saved* items, const span_label& label) {
    auto& to = at(which.place);
    const auto ready = order_.hand_on(which.lane, to.offload, join_site::producer);
    which.position = ready.position;
    return carry(to.out, to.offload, label, [&] {
      for (std::uint32_t i = 0; i < which.count; ++i) {
        if (items[i].copies) queue_out(*items[i].store, *items[i].source, to);
      }
    });
  }

  // Issues the copies that `queue` queues, all to or from one place; returns the ticket of their
  // end.
  template <class Queue>
  [[nodiscard, gnu::always_inline]] ticket carry(copy_direction direction, lane_id on,
                                                 span_label label, const Queue& queue) {
    auto mark = observers::no_mark;
    heard_->begin_span(on, mark);
    spared_ = 0;
    queue();
    issue(direction, on);
    const auto done = order_.record(on);
    label.spared = spared_;
    heard_->end_span(on, mark, label);
    return done;
  }

  // Queues a copy of `source` into the block of `store` in its place, `to`. If `store` is a dense
  // part of `source`, only that rectangle is copied.
  void queue_out(const storage& store, const storage& source, place& to) {
    if (store.bytes == 0) return;
    if (store.is.packed) {
      batch_.push_back(staged_.next_out(store));
      spared_ += store.moved() - batch_.back().bytes;
      return;
    }
    const bool part = &store != &source;
    const auto moved = store.moved();
    const auto from = part ? store.part.what : rectangle{0, moved, 1, moved};
    if (to.staged) return to.staged->copy_out(store.there.memory, source.here.memory.data, from);
    const auto* data = static_cast<const std::byte*>(source.here.memory.data) + from.offset;
    if (from.rows == 1) return batch_.push_back({store.there.memory.data, data, from.width});
    // A rectangle with gaps becomes dense in a copy of its own, which is issued at once.
    dev_->copy(store.there.memory.data, data, {from.width, from.rows, from.pitch, from.width},
               to.out, to.offload);
  }

  // Makes the reload stream wait until the copy of `store` may be read.
  void await_offload(const storage& store) {
    order_.join(reload_lane(store.place), store.there.written, join_site::own_offload);
  }

  // Queues the copy of `store`, which is not packed, back to the device.
  void queue_in(const storage& store) {
    if (store.bytes == 0) return;
    auto& from = at(store.place);
    if (from.staged)
      return from.staged->copy_in(store.here.memory.data, store.there.memory, store.moved());
    batch_.push_back({store.here.memory.data, store.there.memory.data, store.moved()});
  }

  // Returns a fence behind all work that the lane has been given. If no event can be recorded, the
  // host waits for the work, and the fence is empty.
  [[nodiscard]] fence behind(lane_id lane) noexcept {
    batch_.clear();
    try {
      return order_.record(lane);
    } catch (...) {
      settle(lane);
      return {};
    }
  }

  // Blocks the host after a failure, until the lane runs nothing any more.
  void settle(lane_id lane) noexcept {
    batch_.clear();
    try {
      dev_->synchronize(lane);
    } catch (...) {  // a device that is gone runs no copy
    }
  }

 protected:
  ~copies() = default;

  // Issues the queued copies: many small copies as one batch, large copies in pieces.
  void issue(copy_direction direction, lane_id on) {
    if (!issue_batch(direction, on)) {
      for (const auto& item : batch_) issue_pieces(item, direction, on);
    }
    batch_.clear();
  }

  hardware* dev_;
  const observers* heard_;
  lanes order_;
  std::size_t away_ = 0;  // bytes that are only in a place, or will be computed again
  staged_tensors staged_;
  std::vector<copy_item> batch_;
  std::size_t spared_ = 0;  // bytes that packing keeps off the link, of the copies under way

 private:
  void join_reuse(storage& store, place& to, const fence& ready, lane_id writer) {
    rollback untaken([&]() noexcept {
      to.blocks->release(store.there.memory, ready);
      store.there.memory = {};
    });
    order_.join(writer, ready, to.reuse);
    untaken.keep();
  }

  // The launch of a copy with fewer bytes costs more than the copy.
  static constexpr std::size_t small_copy = std::size_t{1} << 20;

  bool issue_batch(copy_direction direction, lane_id on) {
    if (batch_.size() < 2) return false;
    std::size_t bytes = 0;
    for (const auto& item : batch_) bytes += item.bytes;
    return bytes / batch_.size() < small_copy && dev_->copy_batch(batch_, direction, on);
  }

  // Issues one copy in pieces of at most `piece_` bytes; 0: in one piece.
  void issue_pieces(const copy_item& item, copy_direction direction, lane_id on) {
    const auto piece = piece_ == 0 ? item.bytes : piece_;
    for (std::size_t done = 0; done < item.bytes; done += piece) {
      const auto now = std::min(piece, item.bytes - done);
      dev_->copy(static_cast<std::byte*>(item.target) + done,
                 static_cast<const std::byte*>(item.source) + done, {now, 1, now, now}, direction,
                 on);
    }
  }

  place_list places_;
  part_index<storage> parts_;
  std::size_t piece_;
};

}  // namespace tidepool::detail
