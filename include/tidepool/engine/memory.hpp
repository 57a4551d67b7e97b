// The engine's memory: handles, who still needs a storage, and what is evicted when room is short.
#pragma once

#include <utility>

#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/misuse.hpp"

namespace tidepool::inline v0_2_0::detail {

TIDEPOOL_INLINE granted engine::allocate(std::size_t bytes, std::size_t elements, lane_id lane,
                                         block_source* source, fill contents) {
  if (bytes > most_bytes) throw_too_many(std::to_string(bytes) + " bytes");
  if (source != nullptr && !source->serves(identity_)) throw_serves_another();
  coalesce_after_evaluation();
  const auto from = arrive(lane);
  auto& store = store_.create(*this, bytes, elements);
  store.source = source;
  store.zeroed = contents == fill::zero;
  // No plan and no recorded step knows of what has no bytes.
  const bool counts = source == nullptr && bytes > 0;
  if (counts) store.planned = placement_.allocated(bytes);
  try {
    place_or_throw(store, lane, "allocate", placement_.first(store.planned));
    if (store.zeroed) store_.zero(store, lane);
    if (recorder_ != nullptr && counts) {
      recorder_->allocated(from, store.number, bytes, lane);
    }
  } catch (...) {
    if (store.on_device) take_back_untouched(store, lane);
    store_.destroy(store);
    throw;
  }
  return {share(store), lane};
}

// Memory that was handed to `lane` and that nobody has used; it may have been filled there.
[[gnu::cold]] TIDEPOOL_INLINE void engine::take_back_untouched(storage& store,
                                                               lane_id lane) noexcept {
  try {
    store_.note_filling(store);
    store_.displace(store, order_.past(lane), lane);
  } catch (...) {  // no event, so nobody may ever reuse the memory: it stays taken
    store_.lose(store);
  }
}

// Memory that is somebody else's, written by work on `lane`: that is its owner's stream.
TIDEPOOL_INLINE granted engine::adopt_memory(void* data, std::size_t bytes, std::size_t elements,
                                             lane_id lane, memory_owner owner) {
  if (data == nullptr && bytes > 0) {
    throw misuse_error("adopt: a null pointer; give the address of what was written");
  }
  if (bytes > most_bytes) throw_too_many(std::to_string(bytes) + " bytes");
  if (order_.capturing()) {
    throw misuse_error(
        "adopt: a capture is under way, and its graph would go on using memory that goes back to "
        "its"
        " owner; adopt outside of it, or allocate the tensor from the offloader");
  }
  if (bytes == 0) return allocate(0, elements, lane);  // and the owner has its memory back
  coalesce_after_evaluation();
  const auto from = arrive(lane);
  store_.budget().keep();
  while (store_.passes_budget(bytes)) {  // what is there already may pass it
    if (evict_one()) continue;
    if (store_.budget().exceed() && !store_.passes_budget(bytes)) break;
  }
  auto& store = store_.create(*this, bytes, elements);
  try {
    store_.adopt(store, data, lane, owner);
  } catch (...) {
    store_.destroy(store);
    throw;
  }
  store.planned = placement_.allocated(bytes);
  if (recorder_ != nullptr) recorder_->allocated(from, store.number, bytes, lane);
  return {share(store), lane};
}

// `until` is the last use on `lane`. Whether the trainer has made that wait for the lane that the
// memory was handed to is not known here, so it does not stand for what that one waited for.
TIDEPOOL_INLINE void engine::note_use(storage& store, lane_id lane, const ticket& until) {
  if (lane != store.handed_to) store_.note_filling(store);
  store.last_use.add(until);
  if (lane == store.handed_to) return;
  store.last_use.add(order_.past(store.handed_to, store.handed_at));
  store.last_use.add(store.reloaded);
}

TIDEPOOL_INLINE void engine::drop_quietly(storage& store, lane_id lane) noexcept {
  // Nobody can call it again, as one would after a `reset` that threw: so it is tried twice.
  for (int left = closed_ || lost() ? 0 : 2; left-- > 0;) {
    try {
      if (graphs_.replayed) meet_after_launch();
      return drop(store, lane, false);  // a pass may be given up here
    } catch (...) {  // no event, so nobody may ever reuse the memory: it stays taken, as if the
                     // handle were still there, or until the capture that broke is over
      if (left > 0) continue;
      if (keep_orphan(store)) return;
      if (store.handles == 1 && store.saves == 0) {  // the memory stays taken, and no tensor has it
        store_.lose(store);
        store_.destroy(store);
      }
    }
  }
  release(this);
}

// One handle less outside; `lane` is where it was used last.
TIDEPOOL_INLINE void engine::forget_handle(storage& store, lane_id lane) {
  --store.handles;
  if (recorder_ != nullptr && store.handles == store.stays && recorder_->is_held(store.number)) {
    record_drop(store, lane);
  }
  if (store.handles == 0) {
    if (store.saves == 0) {
      if (recorder_ != nullptr) recorder_->released(store.number, lane);
      store_.displace(store, store.last_use, lane);
      store_.destroy(store);
    } else if (!store.wanted) {
      store_.displace(store, store.last_use,
                      store.discarded ? lane : store_.offload_lane(store.place));
    } else {
      store.idle = idle_.push_back(&store);
    }
  }
  release(this);
}

// One group less that saved it; its copy goes with the last.
TIDEPOOL_INLINE void engine::forget_save(storage& store) {
  if (--store.saves > 0) return;
  // A reload waited for the offload, so its ticket stands for both.
  const auto last_copy = store.reloaded.position > 0 ? store.reloaded : store.offloaded;
  if (store.copy) store_.displace_copy(store, last_copy);
  if (store.handles > 0) return;
  forget_idle(store);
  if (store.on_device) {
    store.last_use.add(last_copy);
    store_.displace(store, store.last_use, store_.reload_lane(store.place));
  }
  store_.destroy(store);
}

// One group less that stayed by policy. Its handles may have gone or changed since.
TIDEPOOL_INLINE void engine::forget_kept(chunk_state& chunk, group& which) {
  keeps_.take(std::exchange(which.kept, 0));
  const auto* items = chunk.saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    auto* store = items[i].source;
    if (store == nullptr || store->number != items[i].number) continue;
    --store->stays;
    if (recorder_ != nullptr) recorder_->outlives(store->number, false);
    note_handed_over(*store);
  }
}

TIDEPOOL_INLINE void engine::forget_idle(storage& store) {
  const auto slot = std::exchange(store.idle, slot_list<storage*>::none);
  if (slot != slot_list<storage*>::none) idle_.erase(slot);
}

// Its device memory is free again once its users and its reload are done; its place still has it.
TIDEPOOL_INLINE void engine::take_back(storage& store, lane_id on) {
  fence after(store.last_use);
  after.add(store.reloaded);
  store_.displace(store, after, on);
}

// Takes device memory back from what is on the device ahead of its use.
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
  starved_ = false;  // it would come back at the next release, and be in the way again
  auto* items = last.chunk->saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    auto* store = items[i].store;
    if (store == nullptr || !store->on_device || store->handles > 0) continue;
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
  const bool reloads_wait = reloads && starved_ && !closed_ && !store_.borrowed().giving();
  forget_handle(store, lane);
  if (reloads_wait) reload_ahead();
}

TIDEPOOL_INLINE bool engine::lost() const noexcept { return dev_->lost(); }

// Memory that is not in use goes back to the device, so that it may come from there in one piece.
// That waits for the device, and is better than no step. A graph knows addresses of it.
[[gnu::cold]] TIDEPOOL_INLINE bool engine::give_back_unused() {
  return !order_.capturing() && order_.graphs() == 0 && store_.device_source().give_back_unused();
}

// Evicts until `take` has found room; false where nothing is left to evict.
template <class Take>
bool engine::take_or_evict(const Take& take) {
  store_.budget().keep();
  // Once: what a part of the request took and gave up again would be unused for ever.
  for (bool last = false; !take();) {
    if (evict_one() || store_.budget().exceed()) continue;
    if (std::exchange(last, true) || !give_back_unused()) return false;
  }
  return true;
}

}  // namespace tidepool::detail
