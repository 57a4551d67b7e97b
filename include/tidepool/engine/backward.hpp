// The engine's backward half: restore, and the end of a chunk.
#pragma once

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

template <device Device>
void engine<Device>::restore(chunk_state& chunk, module_id module, int layer, lane_id lane,
                             std::span<handle* const> handles) {
  if (chunk.info().forward_only) {
    if (chunk.info().release) refuse_released("restore", chunk, module, layer);
    return;
  }
  const auto range = ranges_.restore(static_cast<std::size_t>(module), layer);
  [[maybe_unused]] const group_subject<Device> subject{*this, chunk, module, layer};
  const auto from = arrive(lane);
  const auto index = fetch(chunk, module, layer, lane, handles);
  if (chunk.at(index).state == group_state::discarded) {
    refuse("restore", chunk, module, layer,
           "by plan it was discarded, to be computed again; give restore_or_recompute the function"
           " that does");
  }
  hand_over(chunk, index, lane, handles, from);
}

// Makes what its handles will be filled with ready for `lane`; of what was discarded nothing is.
template <device Device>
std::uint32_t engine<Device>::fetch(chunk_state& chunk, module_id module, int layer, lane_id lane,
                                    std::span<handle* const> handles) {
  const auto index = waiting_group(chunk, module, layer, "restore");
  auto& which = chunk.at(index);
  // All is looked at before anything changes.
  const bool away = expect_committed(chunk, which, handles);
  begin_backward(chunk);
  if (away) which.state = group_state::away;
  if (which.state == group_state::discarded) return index;
  if (which.state == group_state::away) {
    ahead_.forget(which.ahead);
    require_reload(chunk, index);
  }
  // All joins first: should one fail, the group may be restored again.
  const auto* items = chunk.saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    const auto* store = items[i].returning();
    if (store != nullptr) store_.order().join(lane, store->reloaded, join_site::consumer);
  }
  // What never left comes after the work that produced it; behind a reload that is known already.
  if (lane != which.lane) {
    store_.order().join_work(lane, which.lane, which.position, join_site::consumer);
  }
  return index;
}

// Refuses handles that a group cannot come back into.
template <device Device>
[[gnu::always_inline]] inline bool engine<Device>::expect_committed(
    chunk_state& chunk, const group& which, std::span<handle* const> handles) const {
  if (handles.size() != which.count) {
    refuse_count(chunk, which, handles.size());
  }
  bool away = false;
  auto* items = chunk.saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    // Its copy is given up once nothing can fail any more: until then the handle may be reset.
    items[i].in_hand = is_kept_part(*handles[i], items[i]);
    const auto* store = items[i].returning();
    if (store == nullptr) {
      // It stayed in the hand of its handle, which must not have been given other memory since.
      const bool its_own = *handles[i] && handles[i]->store_->number == items[i].number;
      if (items[i].by_plan && !its_own) {
        refuse_argument("restore", chunk, which, i,
                        *handles[i]
                            ? "holds other memory, but its tensor stayed in the handle that was"
                              " committed; give each microbatch in flight handles of its own"
                            : "is empty, but its tensor stayed in the handle that was committed;"
                              " pass that one, and keep it until then");
      }
      continue;
    }
    if (std::find(handles.begin(), handles.begin() + i, handles[i]) != handles.begin() + i) {
      refuse_argument("restore", chunk, which, i,
                      "is given twice; pass what was committed, in the same order");
    }
    if (*handles[i] && handles[i]->store_ != store) {
      refuse_argument("restore", chunk, which, i,
                      "holds other memory; reset it before its tensor comes back");
    }
    if (items[i].part.offset > 0 && !handles[i]->is_view_) {
      refuse_argument("restore", chunk, which, i,
                      "is a buffer, but what was committed is a view of a part; pass a view");
    }
    if (!*handles[i] && handles[i]->saved_as_ != 0 && handles[i]->saved_as_ != store->number) {
      refuse_spare(chunk, which, i, handles[i]->saved_as_);
    }
    // What was on the device when the group's turn came may have had to give way since.
    if (!store->on_device && !store->discarded) away = true;
  }
  return away;
}

// A handle that another commit emptied is the one that is meant only by mistake: a wrong layer, the
// arguments in another order, another microbatch.
template <device Device>
[[gnu::cold]] void engine<Device>::refuse_spare(chunk_state& chunk, const group& which,
                                                std::uint32_t argument,
                                                std::uint64_t saved_as) const {
  for (auto* other : live_.all()) {
    for (std::uint32_t i = 0; other != nullptr && i < other->group_count(); ++i) {
      const auto& each = other->at(i);
      if (each.state == group_state::restored) continue;
      const auto* items = other->saved_of(each);
      for (std::uint32_t j = 0; j < each.count; ++j) {
        if (items[j].store == nullptr || items[j].store->number != saved_as) continue;
        refuse_argument(
            "restore", chunk, which, argument,
            ("was emptied by the commit of " + name_of_group(*other, each.module, each.layer) +
             ", as argument " + std::to_string(j + 1) +
             (other != &chunk ? "; restore it in that one's chunk, or give each microbatch in"
                                " flight handles of its own"
              : &each != &which && each.module == which.module && each.layer == which.layer
                  ? ", but an earlier one than this restores; of one module and layer the last"
                    " commit comes back first"
                  : "; pass what was committed, in the same order") +
             ", or reset it first")
                .c_str());
      }
    }
  }
  refuse_argument("restore", chunk, which, argument,
                  "was emptied by a commit of a chunk that was dropped, of another offloader's, or"
                  " that another handle has restored; pass what this chunk committed, or reset it"
                  " first");
}

template <device Device>
void engine<Device>::hand_over(chunk_state& chunk, std::uint32_t index, lane_id lane,
                               std::span<handle* const> handles, std::size_t from) {
  auto& which = chunk.at(index);
  auto* items = chunk.saved_of(which);
  ahead_.forget(which.ahead);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].in_hand) forget_save(*std::exchange(items[i].store, nullptr));
    auto* store = items[i].store;
    if (store == nullptr) {  // stayed, and is used on this stream from now on like the others
      if (*handles[i] && handles[i]->store_->owner == this) {
        handles[i]->lane_ = lane;
        note_handed_over(*handles[i]->store_);
      }
      continue;
    }
    forget_idle(*store);
    store->discarded = false;
    if (recorder_ != nullptr && recorder_->outlives(store->number, false)) learner_.shapes_vary();
    if (!*handles[i]) handles[i]->store_ = share(*store);
    handles[i]->saved_as_ = 0;
    hand_to(*store, handles[i]->lane_ = lane);
    // A buffer tells no width: it shows its storage to the end, whatever of it was committed.
    handles[i]->part_ =
        handles[i]->is_view_ ? items[i].part : rectangle{0, store->bytes, 1, store->bytes};
    forget_save(*store);
    note_handed_over(*store);
  }
  if (which.kept > 0) forget_kept(chunk, which);
  if (!which.awaited) forgotten_.remove(chunk.ordinal(), index);
  chunk.mark_restored(which);
  if (recorder_ != nullptr) {
    recorder_->called(from, plan::event_kind::restore, index, chunk.ordinal(),
                      store_.order().stream(lane));
  }
  reload_ahead();
}

template <device Device>
std::uint32_t engine<Device>::waiting_group(chunk_state& chunk, module_id module, int layer,
                                            const char* call) {
  const auto index = chunk.find(module, layer);
  if (index != no_group) return index;
  refuse(call, chunk, module, layer,
         chunk.ever_had(module, layer) ? "it was restored before; restore each commit once"
                                       : "it was never committed in this chunk; commit it in"
                                         " forward");
}

template <device Device>
void engine<Device>::begin_backward(chunk_state& chunk) {
  if (chunk.backward_begun()) return;
  if (tracing_) {
    if (!chunk.forward_done()) trace_pass(chunk, false, false);
    trace_pass(chunk, true, true);
  }
  chunk.begin_backward();
  live_.look_again(chunk);
  learner_.backward_begins(chunk.ordinal());
}

template <device Device>
void engine<Device>::check_finished(const chunk_state& chunk) const {
  if (!chunk.discarded().empty()) {
    const auto& first = chunk.discarded().front();
    refuse_recompute("finish", chunk, first.what, first.layer,
                     "discarded and never computed again; call recompute in backward before the"
                     " tensor is read");
  }
  if (chunk.waiting() == 0) return learner_.expect_no_more(chunk.ordinal(), chunk.group_count());
  std::string first;
  for (std::uint32_t i = 0; i < chunk.group_count() && first.empty(); ++i) {
    const auto& each = chunk.at(i);
    if (each.state != group_state::restored) first = name_of_group(chunk, each.module, each.layer);
  }
  throw misuse_error(
      "finish: " + std::to_string(chunk.waiting()) +
      " groups were committed and never restored, the first of them " + first +
      "; restore every commit in backward, mark the chunk forward_only, or destroy it"
      " to give its pass up");
}

template <device Device>
void engine<Device>::wait_for(const handle& saved, lane_id lane) {
  if (saved.store_ == nullptr) throw misuse_error("wait_for: this handle holds no memory");
  const auto& store = *saved.store_;
  auto& order = store_.order();
  order.join(lane, store.reloaded, join_site::consumer);
  if (lane != store.handed_to) {
    order.join_work(lane, store.handed_to, store.handed_at, join_site::consumer);
  }
}

template <device Device>
void engine<Device>::forget_group(chunk_state& chunk, group& which) {
  if (which.kept > 0) forget_kept(chunk, which);
  ahead_.forget(which.ahead);
  auto* items = chunk.saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].store != nullptr) forget_save(*items[i].store);
  }
}

// What it alone still holds is released, in the eyes of a plan, without having come back.
template <device Device>
[[gnu::cold]] void engine<Device>::record_forget(chunk_state& chunk, const group& which) noexcept {
  const auto index = static_cast<std::size_t>(&which - &chunk.at(0));
  recorder_->forgotten(chunk.ordinal(), index);
  const auto* items = chunk.saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    const auto* store = items[i].store;
    if (store == nullptr || store->saves > 1 || store->handles > 0) continue;
    recorder_->released(store->number, store_.order().stream(last_lane_));
  }
}

template <device Device>
void engine<Device>::forget(chunk_state& chunk, module_id module, int layer) {
  if (chunk.info().forward_only) return;
  settle();
  const auto index = waiting_group(chunk, module, layer, "forget");
  auto& which = chunk.at(index);
  if (which.awaited) forgotten_.add(chunk.ordinal(), index);
  if (recorder_ != nullptr) record_forget(chunk, which);
  forget_group(chunk, which);
  chunk.mark_restored(which);
}

template <device Device>
void engine<Device>::end_chunk(chunk_state& chunk, bool finished) noexcept {
  if (!chunk.info().forward_only) {
    const bool unfinished =
        chunk.waiting() > 0 || !chunk.discarded().empty() || !chunk.backward_begun();
    const bool given_up =
        learner_.chunk_ends(chunk.ordinal(), chunk.group_count(), !finished, unfinished);
    for (std::uint32_t i = 0; i < chunk.group_count(); ++i) {
      auto& each = chunk.at(i);
      if (each.state != group_state::restored) forget_group(chunk, each);
    }
    live_.remove(chunk);
    if (chunk.backward_begun()) trace_pass(chunk, true, false);
    if (given_up && !chunk.backward_begun() && chunk.ordinal() + 1 == learner_.begun()) {
      learner_.forget_latest_chunk();
      live_.reuse_latest(chunk);
    } else {
      try {
        begin_backward(chunk);  // one that saved nothing takes its place in the order all the same
      } catch (...) {           // a warm-up without it only keeps less on the device
      }
    }
  } else {
    placement_.evaluation_ended();
  }
  spare_.push_back(&chunk);
  release(this);
}

}  // namespace tidepool::detail
