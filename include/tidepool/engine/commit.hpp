// A commit, from its call to the copies: which of its arguments leave, and how.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

// Of a part; the product of both would overflow from 4 GiB on.
[[nodiscard]] inline std::size_t elements_of(const storage& whole, std::size_t bytes) {
  const auto common = std::gcd(whole.elements, whole.bytes);
  return bytes / (whole.bytes / common) * (whole.elements / common);
}

// Most lists of handles ascend or descend in memory: then each is new without a search.
class extent {
 public:
  // False where the address may have been there before.
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
  [[maybe_unused]] const named_range<> range{ranges_, trace::nvtx_action::commit, module, layer};
  const told_subject subject(*dev_, names_[static_cast<std::size_t>(module)], layer,
                             chunk.info.microbatch);
  if (chunk.forward_done) {
    refuse("commit", chunk, module, layer,
           "the chunk's forward pass has ended; commit before end_forward and before the first"
           " restore");
  }
  const bool noted =
      learner_.follows < followed::by_rule && expect_commit(chunk, module, layer, how);
  last_lane_ = lane;
  if (dev_->can().host_works) dev_->worked(bytes_of(handles), lane);
  const auto from = recorder_ == nullptr ? 0 : recorder_->arrive(lane);
  // By hand everything leaves: its handles are released by hand too, and nothing may be lost.
  const bool by_hand = how == commit_kind::by_hand;
  verdict decided;
  decided.to = places_.front();
  if (how == commit_kind::or_discard || (!by_hand && !keeps_.everything_leaves)) {
    decide(chunk, layer, handles, how, decided);
  }
  const auto [which, items] = chunk.add(module, layer, handles.size());
  which.offered = decided.offered;
  if (forgotten_.any) which.awaited = !forgotten_.has(chunk.ordinal, chunk.groups.size() - 1);
  which.place = decided.to;
  which.lane = lane;
  tally seen;
  transfer(chunk, which, items, handles, decided.what, !by_hand, seen);
  const bool stays = decided.what == plan::action::keep;
  if (stays || decided.wanted != plan::action::offload) {
    note_staying(chunk, which, decided, handles);
  }
  if (noted) {
    learner_.committed(chunk.ordinal, module, layer,
                       stays ? bytes_that_could_leave(handles) : bytes_saved(which, items),
                       which.offered);
  }
  if (recorder_ != nullptr) record_commit(chunk, decided, from, lane, handles);
  // What stays full was used here last.
  for (auto* each : handles) each->lane_ = lane;
  if (!by_hand) {
    empty_handles(which, items, decided.what, handles);
  } else if (recorder_ != nullptr) {
    note_held_by_hand(items, handles);
  }
  count_commit(which, seen, stays);
}

// The copies of a commit, and the cap on those in flight. A failure leaves nothing of the commit.
TIDEPOOL_INLINE void engine::transfer(chunk_state& chunk, group& which, saved* items,
                                      handle_list handles, plan::action what, bool choose,
                                      tally& seen) {
  try {
    collect(chunk, which, items, handles, what, choose, seen);
  } catch (...) {
    undo(chunk);
    throw;
  }
  try {
    offload(chunk, which, items);
  } catch (...) {
    store_.settle(store_.offload_lane(which.place));
    undo(chunk);
    throw;
  }
}

[[gnu::always_inline]] inline void engine::expect_argument(const chunk_state& chunk,
                                                           const group& into, handle_list handles,
                                                           std::uint32_t number, extent& known) {
  const auto* const given = handles[number];
  if (const auto* why = why_not(*given)) refuse_argument("commit", chunk, into, number, why);
  if (given->store_->borrowed && order_.capturing()) {
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

// Decides which arguments leave and finds them room in a place; copies nothing.
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
    const bool shared = store.copy.data != nullptr;
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
      if (!store_.place_copy(store, into.place) && !move_on(into, items)) {
        // A mistake in what follows is told first.
        for (auto next = into.count; next < handles.size(); ++next) {
          expect_argument(chunk, into, handles, next, known);
        }
        throw_out_of_places(chunk, into, store.bytes);
      }
      into.bytes += store.bytes;
      ++seen.offloaded;
    }
    store.wanted = false;
    store.offloaded = {};
    store.reloaded = {};
  }
}

// Why a handle cannot be committed; null where it can.
TIDEPOOL_INLINE const char* engine::why_not(const handle_base& given) const {
  const auto* store = given.store_;
  return store == nullptr       ? "holds no memory; was it committed or moved away before?"
         : store->owner != this ? "belongs to another offloader; commit it in a chunk of its own"
         : store->of_host_state
             ? "belongs to a host_state; write_back it, or reset it when it was only read"
             : nullptr;
}

// A buffer is all of its storage.
TIDEPOOL_INLINE std::size_t engine::bytes_of(const handle_base& given) {
  return given.is_view_ ? given.part_.bytes() : given.store_->bytes;
}

TIDEPOOL_INLINE bool engine::leaves(const handle_base& candidate, tally& seen) const {
  const auto& store = *candidate.store_;
  if (store.keep) return false;
  const auto bytes = bytes_of(candidate);
  const auto elements = bytes == store.bytes ? store.elements : elements_of(store, bytes);
  if (elements < opts_.min_tensor_elements) {
    ++seen.small;
    return false;
  }
  return true;
}

// The storage that is saved for a handle: its own, or a dense copy of its rectangle.
TIDEPOOL_INLINE detail::storage& engine::saved_as(const handle_base& given) {
  auto& whole = *given.store_;
  if (whole.copy.data != nullptr || bytes_of(given) == whole.bytes || given.whole_) return whole;
  if (auto* part = store_.copied_part(whole, given.part_)) return *part;
  const auto bytes = given.part_.bytes();
  auto& part = store_.create(*this, bytes, elements_of(whole, bytes));
  part.part = given.part_;
  part.origin = whole.number;
  return part;
}

// The place of a group has no block for one more storage: all that it saves first moves on to the
// next place that has room. Nothing has been copied yet.
[[gnu::cold]] TIDEPOOL_INLINE bool engine::move_on(group& into, saved* items) {
  const auto all_moved = [&] {
    for (std::uint32_t i = 0; i < into.count; ++i) {
      if (!items[i].copies) continue;
      auto& each = *items[i].store;
      // Who is given it next joined its fence when this group was given it.
      if (each.copy) store_.displace_copy(each, {});
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

// Issues the copies of a collected group; every argument that leaves is free to go afterwards.
TIDEPOOL_INLINE void engine::offload(chunk_state& chunk, group& which, saved* items) {
  if (which.leaving == 0) {
    which.position = order_.next(which.lane);
    // A restore on another stream may ask for this position, and could not record it then.
    if (order_.capturing()) static_cast<void>(order_.record(which.lane));
    return;
  }
  ticket done;
  if (which.bytes > 0) {
    [[maybe_unused]] const named_range<> range{ranges_, trace::nvtx_action::offload, which.module,
                                               which.layer};
    done =
        store_.copy_out(which, items,
                        {trace::span_kind::offload, names_[static_cast<std::size_t>(which.module)],
                         which.layer, chunk.info.microbatch, which.bytes});
    if (recorder_ != nullptr) recorder_->copied(done.lane);
  } else {
    done = order_.record(which.lane);
    which.position = done.position;
  }
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].store == nullptr) continue;
    if (items[i].copies) items[i].store->offloaded = done;
    note_use(*items[i].source, which.lane, done);  // behind the commit, too
  }
  auto& flying = windows_[static_cast<std::size_t>(which.module)];
  if (which.bytes > 0 && flying.capped()) cap(which, done);
}

// The offload that `done` ends is in flight; joins the module's oldest until no more are than the
// caps allow. Where a join fails, those before it are made all the same, but this one is not there.
TIDEPOOL_INLINE void engine::cap(const group& which, const ticket& done) {
  const auto module = static_cast<std::size_t>(which.module);
  auto& flying = windows_[module];
  flying.push(done, which.bytes);
  try {
    for (; flying.over(); flying.pop()) {
      if (order_.join(which.lane, flying.oldest(), join_site::cap)) {
        ++counters_.modules[module].cap_joins;
      }
    }
  } catch (...) {
    flying.take_back();
    throw;
  }
}

// The handles of what leaves give their memory up.
TIDEPOOL_INLINE void engine::empty_handles(group& which, const saved* item, plan::action what,
                                           handle_list handles) {
  for (auto* each : handles) {
    const auto* const saved = (item++)->store;
    if (saved == nullptr) continue;
    each->part_ = labels_[static_cast<std::size_t>(which.module)];
    each->layer_ = which.layer;
    each->saved_as_ = saved->number;
    auto& source = *std::exchange(each->store_, nullptr);
    source.discarded = what == plan::action::recompute;
    if (recorder_ != nullptr && source.handles > 1) note_held(source, saved);
    forget_handle(source, which.lane);
  }
  if (what == plan::action::recompute && which.leaving > 0) {
    which.state = group_state::discarded;
  }
}

TIDEPOOL_INLINE void engine::count_commit(const group& which, const tally& seen, bool stays) {
  auto& count = counters_.modules[static_cast<std::size_t>(which.module)];
  ++count.groups;
  count.tensors_offloaded += seen.offloaded;
  count.tensors_shared += seen.shared;
  count.tensors_small += seen.small;
  if (stays) ++count.groups_resident;
  if (which.bytes == 0) return;
  ++count.groups_offloaded;
  count.bytes_offloaded += which.bytes;
  store_.at(which.place).bytes_offloaded += which.bytes;
  store_.note_group(which.bytes);
}

TIDEPOOL_INLINE void engine::note_elsewhere(module_id module, bool excluded) {
  auto& count = counters_.modules[static_cast<std::size_t>(module)];
  ++(excluded ? count.tensors_excluded : count.tensors_elsewhere);
}

// Takes back a commit that failed; no copy of it is running.
TIDEPOOL_INLINE void engine::undo(chunk_state& chunk) noexcept {
  const auto& failed = chunk.groups.back();
  const auto* items = chunk.saved_of(failed);
  for (std::uint32_t i = 0; i < failed.count; ++i) {
    if (items[i].store != nullptr) forget_save(*items[i].store);
  }
  chunk.remove_last();
}

// Without a backward pass, a commit is the last use.
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
