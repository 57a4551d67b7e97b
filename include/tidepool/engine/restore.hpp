// A restore, from its call to the join of the stream that reads.
#pragma once

#include <algorithm>

#include "tidepool/engine/calls.hpp"
#include "tidepool/engine/commit.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/misuse.hpp"

namespace tidepool::inline v0_3_0::detail {

TIDEPOOL_INLINE void engine::restore(chunk_state& chunk, module_id module, int layer, lane_id lane,
                                     handle_list handles) {
  if (chunk.info.forward_only) {
    if (chunk.info.release) refuse_released("restore", chunk, module, layer);
    return;
  }
  const work_on_group<> work(*this, trace::nvtx_action::restore, chunk, module, layer);
  const told_call call(*this, lane);
  const auto index = fetch(chunk, module, layer, lane, handles);
  if (chunk.groups[index].state == group_state::discarded) {
    refuse("restore", chunk, module, layer,
           "by plan it was discarded, to be computed again; give restore_or_recompute the function"
           " that does");
  }
  hand_over(chunk, index, lane, handles);
}

// Makes the tensors of a group ready for `lane`, and returns the group's index. Does not change a
// discarded group.
TIDEPOOL_INLINE std::uint32_t engine::fetch(chunk_state& chunk, module_id module, int layer,
                                            lane_id lane, handle_list handles) {
  const auto index = waiting_group(chunk, module, layer, "restore");
  auto& which = chunk.groups[index];
  auto* const items = chunk.saved_of(which);
  // All arguments are checked before any change.
  const bool away = expect_committed(chunk, which, items, handles);
  if (!chunk.backward_begun) begin_backward(chunk);
  if (away) which.state = group_state::away;
  if (which.state == group_state::discarded) return index;
  if (which.state == group_state::away) {
    ahead_.forget(which.ahead);
    require_reload(chunk, index);
  }
  // All joins come first, so that the group may be restored again if one fails.
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].store == nullptr || items[i].in_hand) {
      if (const auto* kept = handles[i]->store_; kept != nullptr && kept->owner == this) {
        store_.note_filling(*kept);  // the lane that has the memory so far filled it
      }
      continue;
    }
    order_.join(lane, items[i].store->here.written, join_site::consumer);
  }
  // A tensor that never left is ready after the work that produced it, so that `lane` joins this
  // work. A lane that has joined a reload has joined it already.
  if (lane != which.lane) {
    order_.join_work(lane, which.lane, which.position, join_site::consumer);
  }
  return index;
}

TIDEPOOL_INLINE std::uint32_t engine::waiting_group(chunk_state& chunk, module_id module, int layer,
                                                    const char* call) {
  const auto index = chunk.find(module, layer);
  if (index != no_group) return index;
  refuse(call, chunk, module, layer,
         chunk.ever_had(module, layer) ? "it was restored before; restore each commit once"
                                       : "it was never committed in this chunk; commit it in"
                                         " forward");
}

// Refuses handles that cannot take the group back. Returns true if one of its tensors has to be
// reloaded.
[[gnu::always_inline]] inline bool engine::expect_committed(const chunk_state& chunk,
                                                            const group& which, saved* items,
                                                            handle_list handles) const {
  if (handles.size() != which.count) refuse_count(chunk, which, handles.size());
  const auto refused = [&](std::uint32_t argument, const char* why) {
    refuse_argument("restore", chunk, which, argument, why);
  };
  bool away = false;
  extent known;
  for (std::uint32_t i = 0; i < which.count; ++i) {
    auto& item = items[i];
    const auto& given = *handles[i];
    const bool is_new = known.widened_by(&given);
    const auto* const full = given.store_;  // null: the handle is empty
    // The handle is a view that was copied densely, but never released. The copy is dropped only
    // after all calls that can fail, because the handle may be reset after a failure.
    item.in_hand = item.store != nullptr && full != nullptr &&
                   item.store->part.of == full->number && item.store->part.what == given.part_;
    if (item.store == nullptr || item.in_hand) {
      // The tensor stayed in its handle, which must not hold other memory by now.
      if (!item.by_plan || (full != nullptr && full->number == item.number)) continue;
      refused(i, full != nullptr
                     ? "holds other memory, but its tensor stayed in the handle that was"
                       " committed; give each microbatch in flight handles of its own"
                     : "is empty, but its tensor stayed in the handle that was committed;"
                       " pass that one, and keep it until then");
    }
    const auto before = handles.begin() + i;
    if (!is_new && std::find(handles.begin(), before, handles[i]) != before) {
      refused(i, "is given twice; pass what was committed, in the same order");
    }
    if (full != nullptr && full != item.store) {
      refused(i, "holds other memory; reset it before its tensor comes back");
    }
    if (item.part.offset > 0 && !given.is_view_) {
      refused(i, "is a buffer, but what was committed is a view of a part; pass a view");
    }
    if (full == nullptr && given.saved_as_ != 0 && given.saved_as_ != item.store->number) {
      refuse_spare(chunk, which, i, given.saved_as_);
    }
    // A tensor that was on the device at the group's turn may have been evicted since.
    if (item.store->here.memory.data == nullptr && !item.store->is.discarded) away = true;
  }
  return away;
}

TIDEPOOL_INLINE void engine::begin_backward(chunk_state& chunk) {
  if (!chunk.forward_done) tell_pass(happened::pass_over, chunk, false);
  tell_pass(happened::pass_begun, chunk, true);
  chunk.begin_backward();
  live_.backward_begins(chunk);
  if (learner_.follows <= followed::trial) learner_.backward_begins(chunk.ordinal);
}

TIDEPOOL_INLINE void engine::hand_over(chunk_state& chunk, std::uint32_t index, lane_id lane,
                                       handle_list handles) {
  auto& which = chunk.groups[index];
  auto* items = chunk.saved_of(which);
  ahead_.forget(which.ahead);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].in_hand) forget_save(*std::exchange(items[i].store, nullptr));
    auto* store = items[i].store;
    if (store == nullptr) {  // the tensor stayed; this stream uses it from now on
      if (*handles[i] && handles[i]->store_->owner == this) {
        auto& stayed = *handles[i]->store_;
        if (stayed.handed.to != lane) {  // `to` waited for earlier users of the memory
          stayed.used.add(order_.past(stayed.handed.to, stayed.handed.at));
        }
        if (stayed.saves == 0) stayed.is.counted = false;  // as in `forget_save`
        hand_to(stayed, handles[i]->lane_ = lane);  // `lane` has joined the commit in `fetch`
        if (heard_.any()) heard_.tell({.what = happened::stayed, .tensor = &stayed});
      }
      continue;
    }
    forget_idle(*store);
    store->is.discarded = false;
    if (!*handles[i]) handles[i]->store_ = share(*store);
    handles[i]->saved_as_ = 0;
    hand_to(*store, handles[i]->lane_ = lane);
    // A buffer shows all of its storage, even if a part was committed, because it has no width.
    handles[i]->part_ =
        handles[i]->is_view_ ? items[i].part : rectangle{0, store->bytes, 1, store->bytes};
    forget_save(*store);
    if (heard_.any()) heard_.tell({.what = happened::came_back, .tensor = store});
  }
  if (which.kept > 0) forget_kept(chunk, which);
  if (!which.awaited) forgotten_.remove(chunk.ordinal, index);
  chunk.mark_restored(which);
  if (heard_.any())
    heard_.tell({.what = happened::restored, .lane = lane, .chunk = &chunk, .index = index});
  reload_ahead();
  if (dev_->can().host_works) dev_->worked(bytes_of(handles), lane);
}

TIDEPOOL_INLINE void engine::wait_for(const handle_base& saved, lane_id lane) {
  if (saved.store_ == nullptr) throw misuse_error("wait_for: this handle holds no memory");
  const auto& store = *saved.store_;
  order_.join(lane, store.here.written, join_site::consumer);
  if (lane != store.handed.to) {
    order_.join_work(lane, store.handed.to, store.handed.at, join_site::consumer);
  }
}

TIDEPOOL_INLINE void engine::expect_full(int layer, std::size_t argument,
                                         const handle_base& given) {
  if (given.saved_as_ != 0 && given.store_ == nullptr) throw_left_empty(layer, argument);
}

}  // namespace tidepool::detail
