// The engine's reloads: on demand and ahead of use.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

// The copies of a group out of one place; `alone` when none come out of others.
[[gnu::always_inline]] inline void engine::bring(chunk_state& chunk, const group& which,
                                                 place_kind from, bool alone) {
  auto* items = chunk.saved_of(which);
  auto& place = store_.at(from);
  const auto copies = place.reload;
  const auto out_of_it = [&](const saved& item) {
    return item.copies_back && (alone || item.store->place == from);
  };
  const auto traced = trace_.begin(copies);
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (!out_of_it(items[i])) continue;
    store_.queue_in(*items[i].store);
    bytes += items[i].store->bytes;
  }
  store_.issue(place.in, copies);
  const auto done = order_.record(copies);
  if (recorder_ != nullptr) recorder_->copied(copies);
  trace_.end(traced, copies,
             {trace::span_kind::reload, names_[static_cast<std::size_t>(which.module)], which.layer,
              chunk.info.microbatch, bytes});
  place.bytes_reloaded += bytes;
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (out_of_it(items[i])) items[i].store->reloaded = done;
  }
}

// What a group takes of the offloader's memory to come back; a storage counts once.
[[nodiscard]] inline std::size_t bytes_to_place(saved* items, std::uint32_t count) {
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto* store = items[i].returning();
    if (store == nullptr || store->on_device || store->source != nullptr) continue;
    const auto same = [store](saved& each) { return each.returning() == store; };
    if (std::none_of(items, items + i, same)) bytes += store->bytes;
  }
  return bytes;
}

// Starts the copies of one group; false when there is no device memory for it now. What other
// groups saved before it may be in other places than the rest: each comes back over its own link.
// Its tensors get their memory in the order of their commit, or of `chunk.by_size`.
TIDEPOOL_INLINE bool engine::try_reload(chunk_state& chunk, std::uint32_t index, bool by_size) {
  starved_ = false;  // a handle that the allocator drops meanwhile starts no reload in this one
  auto& which = chunk.groups[index];
  auto* items = chunk.saved_of(which);
  [[maybe_unused]] const named_range<> range{ranges_, trace::nvtx_action::reload, which.module,
                                             which.layer};
  const told_subject subject(*dev_, names_[static_cast<std::size_t>(which.module)], which.layer,
                             chunk.info.microbatch);
  std::size_t bytes = 0;
  std::uint32_t placed = 0;
  unsigned from = 0;  // a bit for each kind of place
  // Where memory goes back to an allocator, that takes a join: none is taken for a part of a group.
  if (store_.gives_back()) {
    const auto need = bytes_to_place(items, which.count);
    if (need > 0 && store_.passes_budget(need)) return false;
  }
  const auto take_back = [&](const fence& after) {
    for (std::uint32_t i = 0; i < placed; ++i) {
      auto& item = items[by_size ? chunk.by_size[i] : i];
      if (!std::exchange(item.copies_back, false)) continue;
      store_.displace(*item.store, after, store_.reload_lane(item.store->place));
    }
  };
  try {
    for (; placed < which.count; ++placed) {
      auto& item = items[by_size ? chunk.by_size[placed] : placed];
      auto* store = item.returning();
      if (store != nullptr) store->wanted = true;
      item.copies_back = store != nullptr && !store->on_device;
      if (!item.copies_back) continue;
      // Joined first: whatever else left before it is then known to be over, and its memory free.
      store_.await_offload(*store);
      if (!place_again(*store, store_.reload_lane(store->place))) {
        take_back(store_.record_reloads(from));
        return false;
      }
      if (store->bytes > 0) from |= 1U << static_cast<unsigned>(store->place);
      bytes += store->bytes;
    }
    which.state = group_state::arriving;
    if (bytes == 0) return true;
    for (auto left = from; left != 0; left &= left - 1) {
      bring(chunk, which, static_cast<place_kind>(std::countr_zero(left)),
            std::has_single_bit(from));
    }
    counters_.modules[static_cast<std::size_t>(which.module)].bytes_reloaded += bytes;
  } catch (...) {
    for (; from != 0; from &= from - 1) {
      store_.settle(store_.reload_lane(static_cast<place_kind>(std::countr_zero(from))));
    }
    which.state = group_state::away;
    take_back({});
    throw;
  }
  ahead_.forget(which.ahead);
  which.ahead = ahead_.add({&chunk, index}, bytes);
  return true;
}

TIDEPOOL_INLINE void engine::require_reload(chunk_state& chunk, std::uint32_t index) {
  if (take_or_evict([&] { return try_reload(chunk, index); })) return;
  auto& which = chunk.groups[index];
  const auto* items = chunk.saved_of(which);
  // There may be room in pieces that the order of the commit does not fill well.
  store_.device_source().coalesce();
  chunk.by_size.resize(which.count);
  std::iota(chunk.by_size.begin(), chunk.by_size.end(), 0U);
  std::ranges::sort(chunk.by_size, std::greater<>(), [&](std::uint32_t i) {
    return std::pair(items[i].store == nullptr ? 0 : items[i].store->bytes, which.count - i);
  });
  if (try_reload(chunk, index, true)) return;
  // The last that was asked for: those before it have been given back.
  const block_source* own = nullptr;
  std::size_t bytes = 0;  // of all; those that others saved first left with them
  for (std::uint32_t i = 0; i < which.count; ++i) {
    const auto* store = items[i].returning();
    if (store == nullptr || store->on_device) continue;
    if (own == nullptr) bytes += store->bytes;
    if (store->source == nullptr || store->source->largest_free() >= store->bytes) continue;
    own = store->source;
    bytes = store->bytes;
  }
  throw_out_of_device(bytes, "reload of " + name_of_group(chunk, which.module, which.layer), own);
}

// Where memory goes back to an allocator it has no fence: what is reloaded into it waits for all
// that its stream was given. So a reload that finds no room in the budget is tried again at each
// release, since the next restore would be too late. Not so where an owner releases a handle while
// it is given its memory back: then a call of the engine is not over yet.
TIDEPOOL_INLINE void engine::reload_ahead() {
  starved_ = false;
  store_.budget().keep();
  const auto bytes = opts_.reload_ahead_bytes.value_or(ahead_.unlimited);
  while (ahead_.may_grow(opts_.reload_ahead, bytes)) {
    auto* chunk = live_.next_to_reload();
    if (chunk == nullptr) return;
    try {
      if (!try_reload(*chunk, chunk->next_to_reload())) {
        starved_ = store_.gives_back() && store_.budget().refused();
        return;
      }
    } catch (...) {
      // Left for later like one without memory: its restore tries again, and says what is wrong.
      // What a capture has kept cannot be taken back.
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
  settle();
  const auto index = waiting_group(chunk, module, layer, "start_reload");
  if (chunk.groups[index].state == group_state::away) require_reload(chunk, index);
}

}  // namespace tidepool::detail
