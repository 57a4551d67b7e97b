// The engine's reloads: on demand and ahead of use.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "tidepool/core/rollback.hpp"
#include "tidepool/engine/calls.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/packing.hpp"

namespace tidepool::inline v0_3_0::detail {

// Brings tensors back to the device, in the order of `by_size` if it is given, and adds their bytes
// to `bytes`. Returns false, and brings none, if there is no memory for all of them. Tensors that
// other groups saved first may be in other places, and come back over the links of those places.
TIDEPOOL_INLINE bool engine::bring(std::span<saved> items, const std::uint32_t* by_size, haste how,
                                   span_label& label, std::size_t& bytes) {
  std::uint32_t placed = 0;
  unsigned from = 0;  // a bit for each kind of place
  std::array<std::size_t, place_kinds> moved{};
  const auto next = [&](std::uint32_t i) -> saved& { return items[by_size ? by_size[i] : i]; };
  bool copying = false;
  rollback give_back([&]() noexcept {
    fence after;
    for (; from != 0; from &= from - 1) {
      const auto& place = store_.at(place_kind(std::countr_zero(from)));
      // A copy under way also reads from its place, without an event after it, so that the host
      // waits.
      if (copying) store_.settle(place.unpack);
      copying ? store_.settle(place.reload) : after.add(store_.behind(place.reload));
    }
    store_.abandon_staging(store_.at(place_kind::host).unpack);
    for (std::uint32_t i = 0; i < placed; ++i) {
      auto& item = next(i);
      if (!std::exchange(item.copies_back, false)) continue;
      store_.displace(*item.store, after, store_.reload_lane(item.store->place));
    }
  });
  for (; placed < items.size(); ++placed) {
    auto& item = next(placed);
    auto* store = item.returning();
    item.copies_back = store != nullptr && !store->here.memory;
    if (!item.copies_back) continue;
    // The join comes first, because memory of earlier offloads is then known to be free.
    store_.await_offload(*store);
    if (!place_again(*store, store_.reload_lane(store->place))) return false;
    if (store->bytes > 0) from |= 1U << static_cast<unsigned>(store->place);
    moved[static_cast<std::size_t>(store->place)] += store->moved();
    bytes += store->moved();
  }
  // Kernels then read host memory and slow all others down, which only a restore is worth.
  if (!store_.expect_packed(items) && how == haste::ahead) return false;
  copying = true;
  const bool of_state = items.size() == 1 && from != 0 && items[0].store->is.of_host_state;
  for (auto left = from; left != 0; left &= left - 1) {
    const auto kind = static_cast<place_kind>(std::countr_zero(left));
    auto& place = store_.at(kind);
    const auto out_of_it = [kind](const saved& item) {
      return item.copies_back && item.store->place == kind;
    };
    label.bytes = moved[static_cast<std::size_t>(kind)];
    const auto done = store_.unpack_rest(store_.carry(place.in, place.reload, label, [&] {
      for (const auto& item : items) {
        if (out_of_it(item)) store_.queue_back(*item.store);
      }
    }));
    for (const auto& item : items) {
      if (out_of_it(item)) item.store->here.written = done;
    }
    if (of_state) continue;
    place.bytes_reloaded += label.bytes;
    if (heard_.any()) heard_.tell({.what = happened::copied, .lane = done.lane});
  }
  give_back.keep();
  return true;
}

// The bytes that a reload takes of the offloader's own memory. Each storage counts once. A reload
// ahead of its use also needs room for the largest packed `piece`; a restore can do without: 0.
[[nodiscard]] inline std::size_t bytes_to_place(std::span<saved> items, std::size_t piece = 0) {
  std::size_t bytes = 0;
  incoming_sizes packed{piece};
  for (auto item = items.begin(); item != items.end(); ++item) {
    const auto* store = item->returning();
    if (store == nullptr || store->here.memory || store->source != nullptr) continue;
    const auto same = [store](const saved& each) { return each.returning() == store; };
    if (std::none_of(items.begin(), item, same)) bytes += store->bytes;
    if (piece > 0 && store->is.packed) packed.add(store->moved());
  }
  return bytes + aligned(packed.first);
}

// Starts the copies of one group; returns false if there is no device memory for it now. Its
// tensors get their memory in the order of their commit, or of `chunk.by_size` with
// `largest_first`.
TIDEPOOL_INLINE bool engine::try_reload(chunk_state& chunk, std::uint32_t index, haste how) {
  starved_ = false;  // an allocator may drop a handle meanwhile, which must start no nested reload
  auto& which = chunk.groups[index];
  const std::span items(chunk.saved_of(which), which.count);
  const work_on_group<> work(*this, trace::nvtx_action::reload, chunk, which.module, which.layer);
  const auto& name = names_[static_cast<std::size_t>(which.module)];
  // No memory is taken for only a part of a group, because memory that goes back to an allocator
  // costs a join.
  if (store_.gives_back()) {
    const auto need = bytes_to_place(items, how == haste::ahead ? dev_->can().pack_piece : 0);
    if (need > 0 && store_.passes_budget(need)) return false;
  }
  for (const auto& item : items) {
    if (auto* store = item.returning()) store->is.wanted = true;
  }
  span_label label{trace::span_kind::reload, name, which.layer, chunk.info.microbatch, 0};
  std::size_t bytes = 0;
  const auto* by_size = how == haste::largest_first ? chunk.by_size.data() : nullptr;
  if (!bring(items, by_size, how, label, bytes)) return false;
  which.state = group_state::arriving;
  if (bytes == 0) return true;
  counters_.modules[static_cast<std::size_t>(which.module)].bytes_reloaded += bytes;
  ahead_.forget(which.ahead);
  std::size_t held = 0;  // bytes on the device; copies are shorter if only some rows move
  for (const auto& item : items) held += item.copies_back ? item.store->bytes : 0;
  which.ahead = ahead_.add({&chunk, index}, held);
  return true;
}

TIDEPOOL_INLINE void engine::require_reload(chunk_state& chunk, std::uint32_t index) {
  auto& which = chunk.groups[index];
  auto* items = chunk.saved_of(which);
  if (take_or_evict([&] { return try_reload(chunk, index, haste::needed); })) return;
  // The free pieces may have room if the largest tensor is placed first, instead of the order of
  // the commit.
  store_.device_source().coalesce();
  chunk.by_size.resize(which.count);
  std::iota(chunk.by_size.begin(), chunk.by_size.end(), 0U);
  std::ranges::sort(chunk.by_size, std::greater<>(), [&](std::uint32_t i) {
    return std::pair(items[i].store == nullptr ? 0 : items[i].store->bytes, which.count - i);
  });
  if (take_or_evict([&] { return try_reload(chunk, index, haste::largest_first); })) return;
  // Finds the trainer's source that had no room. Blocks taken before have been released by now.
  const block_source* own = nullptr;
  std::size_t bytes = 0;  // bytes of all tensors to bring, even if other groups saved them
  for (std::uint32_t i = 0; i < which.count; ++i) {
    const auto* store = items[i].returning();
    if (store == nullptr || store->here.memory) continue;
    if (own == nullptr) bytes += store->bytes;
    if (store->source == nullptr || store->source->largest_free() >= store->bytes) continue;
    own = store->source;
    bytes = store->bytes;
  }
  throw_out_of_device(bytes, "reload of " + name_of_group(chunk, which.module, which.layer), own);
}

// Reloads groups ahead of their use, as far as the limits allow. Memory of an allocator has no
// fence, so that a reload into it waits for all work that the allocator's stream was given. A
// reload that finds no room in the budget is therefore tried again at each release, because the
// next restore would be too late. It is not tried if an owner drops a handle while it gets its
// memory back, because a call of the engine is under way then.
TIDEPOOL_INLINE void engine::reload_ahead() {
  starved_ = false;
  store_.budget().keep();
  const auto& limits = decider_.limits();
  const auto bytes = limits.bytes.value_or(ahead_.unlimited);
  while (ahead_.may_grow(limits.groups, bytes)) {
    auto* chunk = live_.next_to_reload();
    if (chunk == nullptr) return;
    const auto index = chunk->next_to_reload();
    auto& next = chunk->groups[index];
    const std::span items(chunk->saved_of(next), next.count);
    if (placement_.hold() && placement_.passes(store_.live() + bytes_to_place(items))) return;
    try {
      if (!try_reload(*chunk, index, haste::ahead)) {
        starved_ = store_.gives_back() && store_.budget().refused();
        return;
      }
    } catch (...) {
      // The reload is left for later, as without memory: the restore tries again and reports the
      // error. In a capture the error is reported now, because recorded work cannot be taken back.
      if (order_.capturing()) throw;
      return;
    }
  }
}

// Puts a group back in the queue of reloads.
TIDEPOOL_INLINE void engine::reload_again(chunk_state& chunk, std::uint32_t index) {
  chunk.reload_again(index);
  live_.look_again(chunk);
}

TIDEPOOL_INLINE void engine::start_reload(chunk_state& chunk, module_id module, int layer) {
  if (chunk.info.forward_only) return;
  pass_gate();
  const auto index = waiting_group(chunk, module, layer, "start_reload");
  if (chunk.groups[index].state == group_state::away) require_reload(chunk, index);
}

// Brings one tensor back for `lane`, which waits for it. The result is empty if there is no device
// memory. The tensor may be on the device already, ahead of its use.
TIDEPOOL_INLINE granted engine::fetch_one(storage& store, lane_id lane, const span_label& label) {
  const bool was_there = static_cast<bool>(store.here.memory);
  if (!take_or_evict([&] { return was_there || bring_one(store, label); })) return {};
  rollback unused([&]() noexcept {  // a tensor that was fetched ahead may stay
    if (!was_there) take_back(store, store_.reload_lane(store.place));
  });
  order_.join(lane, store.here.written, join_site::consumer);
  unused.keep();
  forget_idle(store);
  hand_to(store, lane);
  return {share(store), lane};
}

// Brings a saved tensor back for a reader in forward, which holds the tensor until it drops the
// handle. The group stays committed, and its restore accepts the full handle.
TIDEPOOL_INLINE granted engine::read_again(chunk_state& chunk, module_id module, int layer,
                                           std::size_t argument, lane_id lane) {
  if (chunk.info.release) refuse_released("load", chunk, module, layer);
  const auto& name = names_[static_cast<std::size_t>(module)];
  const told_subject subject(*dev_, name, layer, chunk.info.microbatch);
  const auto& which = chunk.groups[waiting_group(chunk, module, layer, "load")];
  auto& store = *chunk.saved_of(which)[argument].store;
  auto& count = counters_.modules[static_cast<std::size_t>(module)];
  auto here = fetch_one(
      store, lane, {trace::span_kind::reload, name, layer, chunk.info.microbatch, store.moved()});
  if (here.store == nullptr) {
    throw_out_of_device(store.bytes, "load of a tensor of " + name_of_group(chunk, module, layer),
                        store.source);
  }
  count.bytes_reloaded += store.moved();
  if (heard_.any()) heard_.tell({.what = happened::read_again});
  return here;
}

}  // namespace tidepool::detail
