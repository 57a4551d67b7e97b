// Storages in their places, and the copies there and back: the ordering rules of both stand here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tidepool/core/part_index.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/engine/place_list.hpp"
#include "tidepool/engine/storage.hpp"
#include "tidepool/memory/lanes.hpp"
#include "tidepool/memory/tracer.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_2_0::detail {

// The joins (those around a capture are in lanes.hpp, those of device memory in storages.hpp);
// offload and reload stream are those of the place that a storage is offloaded to:
//   producer      offload stream  waits for the stream that commits
//   host_reuse    offload stream  waits for the reload that last read the host block
//   peer_reuse    the same        of a neighbour's block
//   own_offload   reload stream   waits for the offload of the same storage
class copies {
 public:
  using place = offload_place;

  // `dev` outlives it.
  copies(hardware& dev, const options& opts)
      : dev_(&dev),
        trace_(dev),
        order_(dev, trace_),
        places_(dev, order_, trace_, opts),
        piece_(opts.copy_piece) {}
  copies(const copies&) = delete;
  copies& operator=(const copies&) = delete;

  [[nodiscard]] lanes& order() { return order_; }
  [[nodiscard]] tracer& trace() { return trace_; }

  // ---- places ----

  [[nodiscard]] lane_id offload_lane(place_kind to) const {
    return places_.offload_lanes[static_cast<std::size_t>(to)];
  }
  [[nodiscard]] lane_id reload_lane(place_kind from) const {
    return places_.reload_lanes[static_cast<std::size_t>(from)];
  }
  // Those of every place; the host's come first.
  [[nodiscard]] const std::vector<lane_id>& copy_lanes() const { return places_.copy_lanes; }
  [[nodiscard]] const std::vector<place_kind>& places() const { return places_.nearest; }
  void borrow(const loan_handle& from) { places_.borrow(*dev_, order_, trace_, from); }
  [[nodiscard]] bool has(place_kind which) const { return places_.has(which); }
  [[nodiscard]] place& at(place_kind which) {
    return *places_.all[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] const place& at(place_kind which) const {
    return *places_.all[static_cast<std::size_t>(which)];
  }

  // Gives `store` a block of a place to be copied to; false when there is none.
  [[nodiscard, gnu::always_inline]] inline bool place_copy(storage& store, place_kind where) {
    auto& to = at(where);
    fence ready;
    if (store.origin != 0) parts_.make_room();
    const auto bytes = (store.bytes + to.granule - 1) & ~(to.granule - 1);
    if (bytes == 0) {
      store.copy = no_bytes();
    } else if (!to.blocks || !to.blocks->take(bytes, to.offload, store.copy, ready)) {
      return false;
    }
    // Made now, so that nobody has to remember the fence: what is issued on the stream from here on
    // waits, and only the copy into this block is.
    if (ready.order() > 0) join_reuse(store, to, ready);
    store.place = where;
    if (store.origin != 0) parts_.insert(store);
    if (store.on_device.data == nullptr) away_ += store.bytes;
    to.used += store.copy.bytes;
    to.peak = std::max(to.peak, to.used);
    return true;
  }

  void displace_copy(storage& store, const ticket& after) {
    if (!store.on_device) away_ -= store.bytes;
    if (store.origin != 0) parts_.erase(store);
    auto& from = at(store.place);
    if (from.ring && store.bytes > 0) from.ring->forget(store.copy);
    from.used -= store.copy.bytes;
    if (store.bytes > 0) from.blocks->release(store.copy, after);
    store.copy = {};
  }

  // The dense copy of a rectangle that was offloaded, or null.
  [[nodiscard]] storage* copied_part(const storage& whole, const rectangle& part) const {
    return parts_.find(whole.number, part);
  }

  // ---- copies ----

  // Issues the offloads of a group, behind what its lane has been given; the ticket of their end.
  [[nodiscard]] ticket copy_out(group& which, const saved* items, const span_label& label) {
    auto& to = at(which.place);
    const auto ready = order_.hand_on(which.lane, to.offload, join_site::producer);
    which.position = ready.position;
    const auto traced = trace_.on ? trace_.begin(to.offload) : trace_.off;
    for (std::uint32_t i = 0; i < which.count; ++i) {
      if (items[i].copies) queue_out(*items[i].store, *items[i].source, to);
    }
    issue(to.out, to.offload);
    const auto done = order_.record(to.offload);
    trace_.end(traced, to.offload, label);
    return done;
  }

  // Queues a copy of `source`, or of the rectangle of it that `store` is, into the block of `store`
  // in its place, `to`.
  void queue_out(const storage& store, const storage& source, place& to) {
    if (store.bytes == 0) return;
    const bool part = &store != &source;
    const auto from = part ? store.part : rectangle{0, store.bytes, 1, store.bytes};
    if (to.ring) return to.ring->copy_out(store.copy, source.on_device.data, from);
    const auto* data = static_cast<const std::byte*>(source.on_device.data) + from.offset;
    if (from.rows == 1) return batch_.push_back({store.copy.data, data, from.width});
    // It becomes dense where it goes: by a copy of its own, issued at once.
    dev_->copy(store.copy.data, data, {from.width, from.rows, from.pitch, from.width}, to.out,
               to.offload);
  }

  // Makes the reload stream wait until the copy of `store` may be read.
  void await_offload(const storage& store) {
    order_.join(reload_lane(store.place), store.offloaded, join_site::own_offload);
  }

  // Queues a copy back.
  void queue_in(const storage& store) {
    if (store.bytes == 0) return;
    auto& from = at(store.place);
    if (from.ring) return from.ring->copy_in(store.on_device.data, store.copy, store.bytes);
    batch_.push_back({store.on_device.data, store.copy.data, store.bytes});
  }

  // Issues what was queued, all of it to or from one place: many small copies as one, large ones in
  // pieces.
  void issue(copy_direction direction, lane_id on) {
    if (!issue_batch(direction, on)) {
      for (const auto& item : batch_) issue_pieces(item, direction, on);
    }
    batch_.clear();
  }

  // Behind all that the reload streams of these places, a bit for each, have been given.
  [[nodiscard]] fence record_reloads(unsigned from) {
    fence after;
    for (std::size_t k = 0; k < place_kinds; ++k) {
      if ((from >> k & 1U) != 0) after.add(order_.record(reload_lane(place_kind(k))));
    }
    return after;
  }

  // After a failure: blocks the host until the lane runs nothing any more.
  void settle(lane_id lane) noexcept {
    batch_.clear();
    try {
      dev_->synchronize(lane);
    } catch (...) {  // a device that is gone runs no copy
    }
  }

 protected:
  ~copies() = default;

  hardware* dev_;
  tracer trace_;
  lanes order_;
  std::size_t away_ = 0;  // bytes on the host alone, or to be computed again

 private:
  void join_reuse(storage& store, place& to, const fence& ready) {
    try {
      order_.join(to.offload, ready, to.reuse);
    } catch (...) {
      to.blocks->release(store.copy, ready);
      store.copy = {};
      throw;
    }
  }

  // Below this many bytes each, launching costs more than copying.
  static constexpr std::size_t small_copy = std::size_t{1} << 20;

  bool issue_batch(copy_direction direction, lane_id on) {
    if (batch_.size() < 2) return false;
    std::size_t bytes = 0;
    for (const auto& item : batch_) bytes += item.bytes;
    return bytes / batch_.size() < small_copy && dev_->copy_batch(batch_, direction, on);
  }

  // Longer than `piece_` bytes; 0: whole.
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
  std::vector<copy_item> batch_;
};

}  // namespace tidepool::detail
