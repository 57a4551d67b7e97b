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

// The kernel that packs writes the spill, so that its stream joins the block's last reader. The
// offload stream comes after this stream by its join with the producer.
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
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (!items[i].copies || !items[i].store->is.packed) continue;
    auto& store = *items[i].store;
    const packed_block there(store);
    packing_.tensors += store.moved();
    packing_.link += there.link;
    packing_.largest = std::max(packing_.largest, largest_packed_piece(store.moved()));
    packing_.of_group = std::max(packing_.of_group, group += aligned(there.link));
    make_room(staged_.outgoing, staged_.outgoing.size() + 1);
    block room;
    store.is.packed = take_staging(there.link, which.lane, room);
    if (!store.is.packed) continue;
    staged_.outgoing.push_back(room);
    auto* const packed = static_cast<std::byte*>(room.data);
    const auto* const tensor = static_cast<const std::byte*>(store.here.memory.data);
    for_each_piece(store.moved(), [&](std::size_t start, std::size_t bytes) {
      dev_->pack(packed + pack_form::packed_bytes(start),
                 there.spill + pack_form::spill_bytes(start), tensor + start, bytes, which.lane);
    });
  }
}

// A few records of each tensor tell the share of a module, and cost the host about a microsecond.
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

TIDEPOOL_INLINE bool storages::take_staging(std::size_t bytes, lane_id by, block& into) {
  const bool by_owners = borrowed_.held() > 0 || gives_back_;
  if (by_owners) {
    const auto live = live_ + staged_.bytes();
    if (!budget_.fits(bytes, live)) return false;
    budget_.make_room(borrowed_, bytes, live);
  }
  block room;
  fence ready;
  if (!device_->take(bytes, by, room, ready)) return false;
  rollback untouched([&]() noexcept {
    ready.add(order_.past(by));
    device_->release(room, ready);
  });
  const auto site = gives_back_                           ? join_site::borrow
                    : by == reload_lane(place_kind::host) ? join_site::reload_reuse
                                                          : join_site::device_reuse;
  if (order_.join(by, ready, site)) ++waits_;
  filling_.handed_out(room, by);
  untouched.keep();
  into = room;
  return true;
}

TIDEPOOL_INLINE bool storages::take_incoming(std::span<const saved> items) {
  std::size_t link = 0;
  for (const auto& item : items) {
    if (!item.copies_back || !item.store->is.packed) continue;
    link = std::max(link, largest_packed_piece(item.store->moved()));
  }
  const auto by = reload_lane(place_kind::host);
  return link == 0 || take_staging(link, by, staged_.incoming);
}

TIDEPOOL_INLINE void storages::release_staging(const fence& after, lane_id on) noexcept {
  const auto release = [&](const block& room) {
    filling_.gave_back(room, on);
    device_->release(room, after);
  };
  for (const auto& each : staged_.outgoing) release(each);
  staged_.outgoing.clear();
  if (staged_.incoming) release(std::exchange(staged_.incoming, {}));
}

}  // namespace tidepool::detail
