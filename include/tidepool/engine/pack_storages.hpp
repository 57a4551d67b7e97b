// How storages pack their tensors: the blocks on the host, and the staging on the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "tidepool/core/linkage.hpp"
#include "tidepool/core/rollback.hpp"
#include "tidepool/engine/storages.hpp"

namespace tidepool::inline v0_3_0::detail {

// The kernel that packs writes the spill, so that its stream joins the block's last reader, which
// would otherwise read the next tensor's spill. The offload stream needs no such join, because it
// joins this stream as its producer.
TIDEPOOL_INLINE bool storages::place_packed(storage& store, lane_id by) {
  if (!place_copy(store, place_kind::host, pack_form::host_bytes(store.moved()), by)) return false;
  rollback unplaced([&]() noexcept {
    settle(by);
    displace_copy(store, {});
  });
  store.there.written = order_.record(by);  // free behind it if the commit fails
  store.is.packed = true;
  unplaced.keep();
  return true;
}

TIDEPOOL_INLINE void storages::pack(const group& which, const saved* items) {
  staged_.queued = 0;
  std::size_t group = 0;
  incoming_sizes back{dev_->can().pack_piece};
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (!items[i].copies || !items[i].store->is.packed) continue;
    auto& store = *items[i].store;
    const packed_block there(store);
    packing_.tensors += store.moved();
    packing_.link += there.link;
    back.add(store.moved());
    packing_.incoming = std::max(packing_.incoming, aligned(back.first) + aligned(back.second()));
    packing_.of_group = std::max(packing_.of_group, group += aligned(there.link));
    store.is.packed = take_staging(there.link, which.lane);
    if (!store.is.packed) continue;
    enter_staging(staged_.blocks.back(), which.lane);
    auto* const packed = static_cast<std::byte*>(staged_.blocks.back().memory.data);
    const auto* const tensor = static_cast<const std::byte*>(store.here.memory.data);
    dev_->pack(packed, there.spill, tensor, store.moved(), which.lane);
  }
}

// A few records of each tensor show the share of raw records of a module; to look at them takes
// about 1 µs.
TIDEPOOL_INLINE auto storages::look_at(const storage& store) noexcept -> seen_records {
  constexpr std::size_t most = 16;
  seen_records seen;
  if (!dev_->can().moves_bytes || !order_.passed(fence(store.there.written))) return seen;
  const packed_block there(store);
  const auto records = pack_form::records_of(store.moved());
  const auto apart = std::max<std::size_t>(records / most, 1);
  for (auto i = store.number % apart; i < records; i += apart) {
    ++seen.all;
    seen.raw += pack_form::is_raw(there.packed, i) ? 1 : 0;
  }
  return seen;
}

// Queues the copies of a packed tensor, and its unpacking behind them. If a block of the staging is
// full, its copies and kernels are issued, and the next is filled behind the kernels that read it,
// which would otherwise read the next pieces. Without staging, the kernels read the packed form on
// the host.
TIDEPOOL_INLINE void storages::queue_packed(const storage& store) {
  const auto& host = at(place_kind::host);
  const packed_block there(store);
  auto* const tensor = static_cast<std::byte*>(store.here.memory.data);
  spared_ += store.moved() - there.link;
  const auto piece = dev_->can().pack_piece;
  for (std::size_t start = 0; start < store.moved(); start += piece) {
    const auto bytes = std::min(piece, store.moved() - start);
    const auto link = pack_form::packed_bytes(bytes);
    const auto* packed = there.packed + pack_form::packed_bytes(start);
    if (!staged_.blocks.empty()) {
      const auto& into = staged_.blocks.front();
      if (staged_.filled + link > into.memory.bytes) {
        issue(host.in, host.reload);
        static_cast<void>(unpack_behind(order_.record(host.reload)));
        enter_staging(into, host.reload);
      }
      auto* const room = static_cast<std::byte*>(into.memory.data) + staged_.filled;
      batch_.push_back({room, packed, link});
      staged_.filled += aligned(link);
      packed = room;
    }
    staged_.arriving.push_back(
        {tensor + start, packed, there.spill + pack_form::spill_bytes(start), bytes});
  }
}

// Unpacks the pieces whose copies end with `come`; returns the ticket behind both.
TIDEPOOL_INLINE ticket storages::unpack_behind(const ticket& come) {
  if (staged_.arriving.empty()) return come;
  const auto on = at(place_kind::host).unpack;
  order_.join(on, come, join_site::unpack);
  auto mark = observers::no_mark;
  heard_->begin_span(on, mark);
  for (const auto& each : staged_.arriving) {
    dev_->unpack(each.tensor, each.packed, each.spill, each.bytes, on);
  }
  staged_.arriving.clear();
  const auto done = order_.record(on);
  heard_->end_span(on, mark, {trace::span_kind::compute, "unpack"});
  staged_.filled = 0;
  if (!staged_.blocks.empty()) {
    staged_.blocks.front().ready = done;
    std::swap(staged_.blocks.front(), staged_.blocks.back());
  }
  return done;
}

TIDEPOOL_INLINE bool storages::take_staging(std::size_t bytes, lane_id by, bool spare) {
  if (borrowed_.held() > 0 || gives_back_) {
    auto live = live_;
    for (const auto& each : staged_.blocks) live += each.memory.bytes;
    if (!budget_.fits(bytes, live)) return false;
    budget_.make_room(borrowed_, bytes, live);
  }
  make_room(staged_.blocks, staged_.blocks.size() + 1);
  grant into;
  const bool taken = spare ? device_->take_spare(bytes, by, into.memory, into.ready)
                           : device_->take(bytes, by, into.memory, into.ready);
  if (!taken) return false;
  into.ready.add(order_.past(by));  // it goes back with this fence if `by` never writes it
  staged_.blocks.push_back(into);
  return true;
}

TIDEPOOL_INLINE void storages::enter_staging(const grant& into, lane_id by) {
  const auto site = gives_back_                           ? join_site::borrow
                    : by == reload_lane(place_kind::host) ? join_site::reload_reuse
                                                          : join_site::device_reuse;
  if (order_.join(by, into.ready, site)) ++waits_;
  filling_.handed_out(into.memory, by);
}

TIDEPOOL_INLINE bool storages::expect_packed(std::span<const saved> items) {
  if (packs_ == 0) return true;
  incoming_sizes sizes{dev_->can().pack_piece};
  for (const auto& item : items) {
    if (item.copies_back && item.store->is.packed) sizes.add(item.store->moved());
  }
  const auto by = reload_lane(place_kind::host);
  if (sizes.first == 0) return true;
  if (!take_staging(sizes.first, by)) return false;
  if (sizes.second() > 0) static_cast<void>(take_staging(sizes.second(), by, true));
  // Before the copies, whose time in a trace has no such wait.
  enter_staging(staged_.blocks.front(), by);
  return true;
}

// Each block is free behind its own fence.
TIDEPOOL_INLINE void storages::release_staging(lane_id on) noexcept {
  for (const auto& each : staged_.blocks) {
    filling_.gave_back(each.memory, on);
    device_->release(each.memory, each.ready);
  }
  staged_.blocks.clear();
  staged_.arriving.clear();
  staged_.filled = 0;
}

}  // namespace tidepool::detail
