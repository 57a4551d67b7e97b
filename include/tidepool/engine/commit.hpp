// A commit, from its call to the copies: chooses the arguments that leave, and their places.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tidepool/core/rollback.hpp"
#include "tidepool/engine/calls.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/staying.hpp"

namespace tidepool::inline v0_3_0::detail {

// The range of addresses so far. A handle outside the range is new. Most lists need no search for
// repeated handles, because their handles ascend or descend in memory.
class extent {
 public:
  // Returns false if `address` lies in the range, and may have been given before.
  [[nodiscard]] bool widened_by(const void* address) {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const bool beyond = at < first_ || at > last_;
    first_ = std::min(first_, at);
    last_ = std::max(last_, at);
    return beyond;
  }

 private:
  std::uintptr_t first_ = std::numeric_limits<std::uintptr_t>::max();
  std::uintptr_t last_ = 0;
};

TIDEPOOL_INLINE void engine::commit(chunk_state& chunk, module_id module, int layer, lane_id lane,
                                    handle_list handles, commit_kind how) {
  if (chunk.info.forward_only) {
    if (chunk.info.release && how != commit_kind::by_hand) {
      release_saved(chunk, module, layer, lane, handles);
    }
    return;
  }
  const work_on_group<> work(*this, trace::nvtx_action::commit, chunk, module, layer);
  if (chunk.forward_done) {
    refuse("commit", chunk, module, layer,
           "the chunk's forward pass has ended; commit before end_forward and before the first"
           " restore");
  }
  verdict decided{.to = places_.front()};
  if (how == commit_kind::or_discard || decider_.has_a_say()) {
    decided = decider_.decide(asked{*this, chunk, module, layer, handles, how});
  }
  if (dev_->can().host_works) dev_->worked(bytes_of(handles), lane);
  const told_call call(*this, lane);
  const bool by_hand = how == commit_kind::by_hand;
  const auto [which, items] = chunk.add(module, layer, handles.size());
  which.offered = decided.offered;
  which.awaited = decided.awaited;
  which.place = decided.to;
  which.lane = lane;
  tally seen;
  transfer(chunk, which, items, handles, decided.what, !by_hand, seen);
  const bool stays = decided.stays();
  if (stays || decided.wanted != plan::action::offload) {
    note_staying(chunk, which, decided, handles);
  }
  if (decided.noted) {
    learner_.committed(chunk.ordinal, module, layer,
                       stays ? bytes_that_could_leave(handles) : bytes_saved(which, items));
  }
  if (heard_.any()) {
    heard_.tell({.what = happened::committed,
                 .lane = lane,
                 .chunk = &chunk,
                 .index = static_cast<std::uint32_t>(chunk.groups.size() - 1),
                 .handles = handles,
                 .decided = &decided});
  }
  // This commit is the last use of handles that stay full.
  for (auto* each : handles) each->lane_ = lane;
  if (!by_hand) {
    empty_handles(which, items, decided.what, handles);
  } else if (heard_.any()) {  // the trainer releases these handles later, by hand
    for (std::size_t i = 0; i < handles.size(); ++i) {
      heard_.tell(
          {.what = happened::outlives, .tensor = handles[i]->store_, .saved_as = items[i].store});
    }
  }
  count_commit(which, items, seen, stays);
}

// Issues the copies of a commit and keeps the cap on copies in flight. A failure takes the whole
// commit back.
TIDEPOOL_INLINE void engine::transfer(chunk_state& chunk, group& which, saved* items,
                                      handle_list handles, plan::action what, bool choose,
                                      tally& seen) {
  bool copying = false;
  rollback nothing_left([&]() noexcept {
    if (copying) store_.settle(store_.offload_lane(which.place));
    store_.abandon_staging(which.lane);
    undo(chunk);
  });
  collect(chunk, which, items, handles, what, choose, seen);
  copying = true;
  offload(chunk, which, items);
  nothing_left.keep();
}

[[gnu::always_inline]] inline void engine::expect_argument(const chunk_state& chunk,
                                                           const group& into, handle_list handles,
                                                           std::uint32_t number, extent& known) {
  const auto* const given = handles[number];
  if (const auto* why = why_not(*given)) refuse_argument("commit", chunk, into, number, why);
  if (given->store_->is.borrowed && order_.capturing()) {
    refuse_argument("commit", chunk, into, number,
                    "lies in memory that goes back to its owner, which a graph would go on"
                    " reading; commit it outside of the capture");
  }
  const auto before = handles.begin() + number;
  if (!known.widened_by(given) && std::find(handles.begin(), before, given) != before) {
    refuse_argument("commit", chunk, into, number,
                    "is given twice; give each handle once, or share() it");
  }
}

// Chooses the arguments that leave and finds them room in a place; copies nothing.
TIDEPOOL_INLINE void engine::collect(chunk_state& chunk, group& into, saved* items,
                                     handle_list handles, plan::action what, bool choose,
                                     tally& seen) {
  const bool stays = what == plan::action::keep;
  extent known;
  for (const auto* each : handles) {
    expect_argument(chunk, into, handles, into.count, known);
    each->store_->module = static_cast<int>(into.module);
    if (stays || (choose && !leaves(*each, seen))) {
      ++into.count;
      continue;
    }
    auto& store = saved_as(*each);
    const bool dense = &store != each->store_;
    const bool shared = store.there.memory.data != nullptr;
    ++store.saves;
    auto& item = items[into.count++];
    item.store = &store;
    item.source = each->store_;
    item.part = dense ? each->part_.dense() : each->part_;
    item.copies = !shared;
    ++into.leaving;
    store.module = static_cast<int>(into.module);
    if (shared && what != plan::action::recompute) {
      ++seen.shared;
      continue;
    }
    if (what != plan::action::recompute) {
      const bool packed =
          store_.packs(into.module) && packs(into, item) && store_.place_packed(store, into.lane);
      if (!packed && !store_.place_copy(store, into.place) && !move_on(into, items)) {
        // A mistake in a later argument is reported first, because no larger budget mends it.
        for (auto next = into.count; next < handles.size(); ++next) {
          expect_argument(chunk, into, handles, next, known);
        }
        throw_out_of_places(chunk, into, store.moved());
      }
      into.bytes += store.moved();
      ++seen.offloaded;
    } else {
      store.is.packed = false;  // it may have been packed for an earlier group
    }
    store.is.wanted = false;
    if (!store.is.packed) store.there.written = {};
    store.here.written = {};
  }
}

// The reason why a handle cannot be committed; null if it can.
TIDEPOOL_INLINE const char* engine::why_not(const handle_base& given) const {
  const auto* store = given.store_;
  return store == nullptr       ? "holds no memory; was it committed or moved away before?"
         : store->owner != this ? "belongs to another offloader; commit it in a chunk of its own"
         : store->is.of_host_state
             ? "belongs to a host_state; write_back it, or reset it when it was only read"
             : nullptr;
}

TIDEPOOL_INLINE bool engine::leaves(const handle_base& candidate, tally& seen) const {
  if (candidate.store_->is.kept) return false;
  if (!candidate.is_small(opts_.min_tensor_elements)) return true;
  ++seen.small;
  return false;
}

// True if the tensor of an argument can be packed: all of its storage, on its way to the host.
TIDEPOOL_INLINE bool engine::packs(const group& into, const saved& item) const {
  const auto& store = *item.store;
  // Memory of another owner may begin anywhere, but kernels need its alignment.
  return into.place == place_kind::host && item.source == item.store && store.is.bfloat16 &&
         store.moved() >= dev_->can().packs_from &&
         reinterpret_cast<std::uintptr_t>(store.here.memory.data) % pack_form::alignment == 0;
}

// The storage that is saved for a handle: the handle's own, or a dense copy of its rectangle.
TIDEPOOL_INLINE detail::storage& engine::saved_as(const handle_base& given) {
  auto& whole = *given.store_;
  if (whole.there.memory.data != nullptr || given.bytes_held() == whole.bytes || given.whole_)
    return whole;
  if (auto* part = store_.copied_part(whole, given.part_)) return *part;
  const auto bytes = given.part_.bytes();
  auto& part = store_.create(*this, bytes, elements_of(whole, bytes));
  part.part.what = given.part_;
  part.part.of = whole.number;
  return part;
}

// Moves a group to the next place, because its place has no block for one more storage: all tensors
// that the group is the first to save go to the next place with room for them. No tensor has been
// copied yet. Returns false if no place has room.
[[gnu::cold]] TIDEPOOL_INLINE bool engine::move_on(group& into, saved* items) {
  const auto all_moved = [&] {
    for (std::uint32_t i = 0; i < into.count; ++i) {
      if (!items[i].copies) continue;
      auto& each = *items[i].store;
      // The block needs no fence, because the offload stream joined it when the block was taken.
      // For a packed tensor another stream joined it; `written` is the position of that stream.
      if (each.there.memory) store_.displace_copy(each, each.there.written);
      if (!store_.place_copy(each, into.place)) return false;
    }
    return true;
  };
  auto next = std::find(places_.begin(), places_.end(), into.place);
  while (++next != places_.end()) {
    into.place = *next;
    if (all_moved()) return true;
  }
  return false;
}

// Issues the copies of a collected group; every argument that leaves may be released afterwards.
TIDEPOOL_INLINE void engine::offload(chunk_state& chunk, group& which, saved* items) {
  if (which.leaving == 0) {
    which.position = order_.next(which.lane);
    // The position is recorded now, because a restore on another stream of the capture would take
    // an unrecorded position for work from before the capture.
    if (order_.capturing()) static_cast<void>(order_.record(which.lane));
    return;
  }
  ticket done;
  std::size_t counted = 0;
  rollback uncounted([&]() noexcept {
    if (counted > 0) rows_->take_back(counted);
  });
  if (which.bytes > 0) {
    [[maybe_unused]] const named_range<> range{ranges_, trace::nvtx_action::offload, which.module,
                                               which.layer};
    if (store_.packs(which.module)) store_.pack(which, items);
    done =
        store_.copy_out(which, items,
                        {trace::span_kind::offload, names_[static_cast<std::size_t>(which.module)],
                         which.layer, chunk.info.microbatch, which.bytes});
    store_.unstage(done);
    if (rows_ != nullptr) counted = rows_->count(chunk, which, items);
    if (heard_.any()) heard_.tell({.what = happened::copied, .lane = done.lane});
  } else {
    done = order_.record(which.lane);
    which.position = done.position;
  }
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].store == nullptr) continue;
    if (items[i].copies) items[i].store->there.written = done;
    // The end of the offload comes after the commit's own work, and stands for both. The offload of
    // a packed tensor reads the packed form, so that the tensor is free behind the commit's work.
    const bool packed = items[i].copies && items[i].store->is.packed;
    note_use(*items[i].source, which.lane,
             packed ? ticket(which.lane, which.position, done.order) : done);
  }
  auto& flying = windows_[static_cast<std::size_t>(which.module)];
  if (which.bytes > 0 && flying.capped()) {
    cap(which, done, bytes_on_device(which, items));
  }
  uncounted.keep();
}

// Counts the offload that ends with `done` as in flight, then joins the module's oldest offloads
// until the caps are kept. If a join fails, earlier joins remain, but this offload is not counted.
TIDEPOOL_INLINE void engine::cap(const group& which, const ticket& done, std::size_t bytes) {
  const auto module = static_cast<std::size_t>(which.module);
  auto& flying = windows_[module];
  flying.push(done, bytes);
  rollback not_there([&]() noexcept { flying.take_back(); });
  for (; flying.over(); flying.pop()) {
    if (order_.join(which.lane, flying.oldest(), join_site::cap)) {
      ++counters_.modules[module].cap_joins;
    }
  }
  not_there.keep();
}

// Empties the handles of the tensors that leave.
TIDEPOOL_INLINE void engine::empty_handles(group& which, const saved* item, plan::action what,
                                           handle_list handles) {
  for (auto* each : handles) {
    const auto* const saved = (item++)->store;
    if (saved == nullptr) continue;
    each->part_ = labels_[static_cast<std::size_t>(which.module)];
    each->layer_ = which.layer;
    each->saved_as_ = saved->number;
    auto& source = *std::exchange(each->store_, nullptr);
    source.is.discarded = what == plan::action::recompute;
    if (source.handles > 1) {
      if (heard_.any())
        heard_.tell({.what = happened::outlives, .tensor = &source, .saved_as = saved});
    }
    forget_handle(source, which.lane);
  }
  if (what == plan::action::recompute && which.leaving > 0) {
    which.state = group_state::discarded;
  }
}

TIDEPOOL_INLINE void engine::count_commit(const group& which, const saved* items, const tally& seen,
                                          bool stays) {
  auto& count = counters_.modules[static_cast<std::size_t>(which.module)];
  for (std::uint32_t i = 0; store_.packs(which.module) && i < which.count; ++i) {
    if (!items[i].copies || !items[i].store->is.packed) continue;
    count.bytes_packed += items[i].store->moved();
    count.bytes_on_link += pack_form::packed_bytes(items[i].store->moved());
  }
  ++count.groups;
  count.tensors_offloaded += seen.offloaded;
  count.tensors_shared += seen.shared;
  count.tensors_small += seen.small;
  if (stays) ++count.groups_resident;
  if (which.bytes == 0) return;
  ++count.groups_offloaded;
  count.bytes_offloaded += which.bytes;
  store_.at(which.place).bytes_offloaded += which.bytes;
  store_.note_group(bytes_on_device(which, items));
  store_.note_beside_packed(which);
}

TIDEPOOL_INLINE void engine::note_elsewhere(module_id module, bool excluded) {
  auto& count = counters_.modules[static_cast<std::size_t>(module)];
  ++(excluded ? count.tensors_excluded : count.tensors_elsewhere);
}

// Takes a failed commit back. None of its copies is running.
TIDEPOOL_INLINE void engine::undo(chunk_state& chunk) noexcept {
  const auto& failed = chunk.groups.back();
  const auto* items = chunk.saved_of(failed);
  for (std::uint32_t i = 0; i < failed.count; ++i) {
    if (items[i].store != nullptr) forget_save(*items[i].store);
  }
  chunk.remove_last();
}

// Releases the handles of a commit without a backward pass. The commit is their last use.
TIDEPOOL_INLINE void engine::release_saved(chunk_state& chunk, module_id module, int layer,
                                           lane_id lane, handle_list handles) {
  extent known;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const auto before = handles.begin() + static_cast<std::ptrdiff_t>(i);
    const char* why = why_not(*handles[i]);
    const bool is_new = known.widened_by(handles[i]);
    if (!is_new && std::find(handles.begin(), before, handles[i]) != before) why = "is given twice";
    if (why == nullptr) continue;
    refuse("commit", chunk, module, layer, "argument " + std::to_string(i + 1) + " " + why);
  }
  const auto used = order_.record(lane);
  for (auto* each : handles) note_use(*each->store_, lane, used);
  for (auto* each : handles) {
    auto& store = *std::exchange(each->store_, nullptr);
    each->part_ = labels_[static_cast<std::size_t>(module)];
    each->layer_ = layer;
    each->saved_as_ = store.number;
    forget_handle(store, lane);
  }
}

}  // namespace tidepool::detail
