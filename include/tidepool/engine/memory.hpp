// The engine's memory: handles, the users of a storage, and eviction when room is short.
#pragma once

#include <utility>

#include "tidepool/core/rollback.hpp"
#include "tidepool/engine/calls.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/misuse.hpp"

namespace tidepool::inline v0_3_0::detail {

TIDEPOOL_INLINE granted engine::allocate(std::size_t bytes, std::size_t elements, lane_id lane,
                                         block_source* source, fill contents) {
  if (bytes > most_bytes) throw_too_many(std::to_string(bytes) + " bytes");
  if (source != nullptr && !source->serves(identity_)) throw_serves_another();
  coalesce_after_evaluation();
  const told_call call(*this, lane);
  auto& store = store_.create(*this, bytes, elements);
  store.source = source;
  store.is.zeroed = contents == fill::zero;
  if (source == nullptr && bytes > 0) store.planned = placement_.allocated(bytes);
  rollback unmade([&]() noexcept {
    if (store.here.memory) take_back_untouched(store, lane);
    store_.destroy(store);
  });
  place_or_throw(store, lane, "allocate", placement_.first(store.planned));
  if (store.is.zeroed) store_.zero(store, lane);
  if (heard_.any()) heard_.tell({.what = happened::allocated, .lane = lane, .tensor = &store});
  unmade.keep();
  return {share(store), lane};
}

// Takes back memory that was handed to `lane` and not used since, except that `lane` may have
// filled it.
[[gnu::cold]] TIDEPOOL_INLINE void engine::take_back_untouched(storage& store,
                                                               lane_id lane) noexcept {
  try {
    store_.note_filling(store);
    store_.displace(store, order_.past(lane), lane);
  } catch (...) {  // without an event the memory cannot be reused: it stays taken
    store_.lose(store);
  }
}

// Adopts memory of another owner. `lane` is the owner's stream, and its work wrote the memory.
TIDEPOOL_INLINE granted engine::adopt_memory(void* data, std::size_t bytes, std::size_t elements,
                                             lane_id lane, memory_owner owner) {
  if (data == nullptr && bytes > 0) {
    throw misuse_error("adopt: a null pointer; give the address of what was written");
  }
  if (bytes > most_bytes) throw_too_many(std::to_string(bytes) + " bytes");
  if (order_.capturing()) {
    throw misuse_error(
        "adopt: a capture is under way, and its graph would go on using memory that goes back to"
        " its owner; adopt outside of it, or allocate the tensor from the offloader");
  }
  if (bytes == 0) return allocate(0, elements, lane);  // the owner gets its memory back at once
  coalesce_after_evaluation();
  const told_call call(*this, lane);
  store_.budget().keep();
  while (store_.passes_budget(bytes)) {  // memory that is there already may pass the budget
    if (evict_one()) continue;
    if (store_.budget().exceed() && !store_.passes_budget(bytes)) break;
  }
  auto& store = store_.create(*this, bytes, elements);
  rollback unmade([&]() noexcept { store_.destroy(store); });
  store_.adopt(store, data, lane, owner);
  unmade.keep();
  store.planned = placement_.allocated(bytes);
  if (heard_.any()) heard_.tell({.what = happened::allocated, .lane = lane, .tensor = &store});
  return {share(store), lane};
}

// Notes `until` as the last use on `lane`. Adds the past of the lane that the memory was handed to,
// because the engine does not know whether the trainer made `lane` wait for that lane.
TIDEPOOL_INLINE void engine::note_use(storage& store, lane_id lane, const ticket& until) {
  if (lane != store.handed.to) store_.note_filling(store);
  store.used.add(until);
  if (lane == store.handed.to) return;
  store.used.add(order_.past(store.handed.to, store.handed.at));
  store.used.add(store.here.written);
}

TIDEPOOL_INLINE void engine::drop_quietly(storage& store, lane_id lane) noexcept {
  // The drop is tried twice, because a destructor, unlike a `reset` that threw, cannot be called
  // again.
  for (int left = closed_ || lost() ? 0 : 2; left-- > 0;) {
    try {
      meet_graphs();
      return drop(store, lane, false);  // no reloads: a pass may be given up here
    } catch (...) {  // without an event the memory cannot be reused: it stays taken, as if the
                     // handle were still there, or until the broken capture is over
      if (left > 0) continue;
      if (gate_ != nullptr && gate_->keep_orphan(store)) return;
      if (store.handles == 1 && store.saves == 0) {  // the memory stays taken, and no tensor has it
        store_.lose(store);
        store_.destroy(store);
      }
    }
  }
  release(this);
}

// Drops one handle of the trainer, which `lane` used last.
TIDEPOOL_INLINE void engine::forget_handle(storage& store, lane_id lane) {
  --store.handles;
  if (heard_.any()) heard_.tell({.what = happened::handle_gone, .lane = lane, .tensor = &store});
  if (store.handles == 0) {
    if (store.saves == 0) {
      store_.displace(store, store.used, lane);
      store_.destroy(store);
    } else if (!store.is.wanted) {
      const bool copied = !store.is.discarded && !store.is.packed;
      store_.displace(store, store.used, copied ? store_.offload_lane(store.place) : lane);
    } else {
      store.idle = idle_.push_back(&store);
    }
  }
  release(this);
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::count_raw(const storage& store) noexcept {
  const auto seen = store_.look_at(store);
  auto& count = counters_.modules[static_cast<std::size_t>(store.module)];
  count.records_seen += seen.all;
  count.records_raw += seen.raw;
}

// Drops one save of a storage; its copy is released with the last save.
TIDEPOOL_INLINE void engine::forget_save(storage& store) {
  if (--store.saves > 0) return;
  // The ticket of a reload stands for the offload, too, because the reload waited for it.
  const auto last_copy = store.here.written.position > 0 ? store.here.written : store.there.written;
  if (store.is.packed && store.there.memory) count_raw(store);
  if (store.there.memory) store_.displace_copy(store, last_copy);
  store.is.counted = false;  // the next contents may have all rows
  if (store.handles > 0) return;
  forget_idle(store);
  if (store.here.memory) {
    store.used.add(last_copy);
    store_.displace(store, store.used, store_.reload_lane(store.place));
  }
  store_.destroy(store);
}

// Ends the stay of a group that stayed by policy. Storages that are gone or reused since are
// skipped.
TIDEPOOL_INLINE void engine::forget_kept(chunk_state& chunk, group& which) {
  decider_.stays_no_more(std::exchange(which.kept, 0));
  const auto* items = chunk.saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    auto* store = items[i].source;
    if (store == nullptr || store->number != items[i].number) continue;
    --store->stays;
    if (heard_.any()) heard_.tell({.what = happened::kept_no_more, .tensor = store});
  }
}

TIDEPOOL_INLINE void engine::forget_idle(storage& store) {
  const auto slot = std::exchange(store.idle, slot_list<storage*>::none);
  if (slot != slot_list<storage*>::none) idle_.erase(slot);
}

// Releases the device memory behind its users and its reload; the place keeps the contents.
TIDEPOOL_INLINE void engine::take_back(storage& store, lane_id on) {
  fence after(store.used);
  after.add(store.here.written);
  store_.displace(store, after, on);
}

// Releases the memory of one tensor or group that is on the device ahead of its use. Returns false
// if there is none.
TIDEPOOL_INLINE bool engine::evict_one() {
  if (!idle_.empty()) {
    auto& store = *idle_[idle_.last()];
    forget_idle(store);
    take_back(store, store_.reload_lane(store.place));
    ++counters_.evictions;
    return true;
  }
  if (ahead_.empty()) return false;
  const auto last = ahead_.latest();
  auto& which = last.chunk->groups[last.index];
  ahead_.forget(which.ahead);
  starved_ = false;  // otherwise the next release would reload the group at once
  auto* items = last.chunk->saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    auto* store = items[i].store;
    if (store == nullptr || !store->here.memory || store->handles > 0) continue;
    forget_idle(*store);
    take_back(*store, store_.reload_lane(store->place));
  }
  reload_again(*last.chunk, last.index);
  ++counters_.evictions;
  return true;
}

TIDEPOOL_INLINE void engine::place_or_throw(storage& store, lane_id lane, const char* call,
                                            std::size_t offset) {
  if (take_or_evict([&] { return store_.place(store, lane, offset); })) return;
  throw_out_of_device(store.bytes, call, store.source);
}

TIDEPOOL_INLINE trace::counters engine::counters() const {
  auto result = counters_;
  const auto& source = store_.device_source();
  result.arena_waits = store_.waits();
  result.placed_elsewhere = store_.elsewhere();
  result.device_allocations = source.allocations();
  result.device_reserved = source.reserved();
  result.device_peak = source.peak();
  result.live_peak = store_.live_peak();
  result.live_peak_without = store_.live_peak_without();
  result.away_at_peak = store_.away_at_peak();
  const auto& borrowed = store_.borrowed();
  result.borrowed = borrowed.held();
  result.borrowed_peak = borrowed.peak();
  result.takes_borrowed = source.gives_back();
  result.borrowed_waiting = borrowed.waiting();
  result.borrowed_joins = borrowed.joins();
  result.budget_exceeded = store_.budget().exceeded();
  for (const auto kind : places_) result.places.push_back(store_.at(kind).counted());
  const auto host = store_.at(place_kind::host).counted();
  result.host_allocations = host.allocations;
  result.host_reserved = host.reserved;
  result.host_peak = host.peak;
  result.host_memory = dev_->host_memory_text();
  return result;
}

TIDEPOOL_INLINE void engine::drop(storage& store, lane_id lane, bool reloads) {
  note_use(store, lane, order_.record(lane));
  // No reload starts in the middle of a commit or reload that packs, because it would use the same
  // staging. An allocator may drop a handle there.
  const bool reloads_wait =
      reloads && starved_ && !closed_ && !store_.borrowed().giving() && !store_.staging();
  forget_handle(store, lane);
  if (reloads_wait) reload_ahead();
}

TIDEPOOL_INLINE bool engine::lost() const noexcept { return dev_->lost(); }

// Returns unused memory to the device, so that one large piece can be taken instead. The host then
// waits for the device, because the step would fail otherwise. In a capture, or once graphs were
// made, the memory stays, because graphs have its addresses.
[[gnu::cold]] TIDEPOOL_INLINE bool engine::give_back_unused() {
  return !order_.capturing() && order_.graphs() == 0 && store_.device_source().give_back_unused();
}

// Evicts until `take` has found room; returns false if there is nothing left to evict.
template <class Take>
bool engine::take_or_evict(const Take& take) {
  store_.budget().keep();
  // Memory is given back only once, because a part of the request may take and release memory,
  // which is then unused again.
  for (bool last = false; !take();) {
    if (evict_one() || store_.budget().exceed()) continue;
    if (std::exchange(last, true) || !give_back_unused()) return false;
  }
  return true;
}

}  // namespace tidepool::detail
