// The engine's forward half: the beginning of a chunk, and commits.
#pragma once

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

template <device Device>
auto engine<Device>::begin(const chunk_info& info) -> chunk_state& {
  if (info.release && !info.forward_only) {
    throw misuse_error("begin of microbatch " + std::to_string(info.microbatch) +
                       ": release gives up at each commit what backward needs; add forward_only,"
                       " or leave release out");
  }
  if (spare_.empty()) {
    make_room(spare_, chunks_.size() + 1);
    spare_.push_back(&*chunks_.emplace_back(std::make_unique<chunk_state>()));
  }
  const auto begun = learner_.begun();
  if (!info.forward_only) {
    learner_.expect_chunk(info.model_chunk);
    live_.make_room(begun + 1);
  }
  coalesce_after_evaluation();  // nothing below may throw
  auto& fresh = *spare_.back();
  spare_.pop_back();
  fresh.start(info, info.forward_only ? 0 : begun);
  if (info.forward_only) {
    learner_.evaluation_begins();
    placement_.evaluation_begins(begun == 0);
  } else {
    live_.add(fresh);
    if (learner_.chunk_begins(info.model_chunk, info.microbatch)) start_recording();
    trace_pass(fresh, false, true);
  }
  ++references_;
  return fresh;
}

template <device Device>
void engine<Device>::end_forward(chunk_state& chunk) {
  if (chunk.info().forward_only) return;
  settle();
  if (!chunk.forward_done()) trace_pass(chunk, false, false);
  chunk.end_forward();
  if (recorder_ != nullptr) recorder_->forward_ended(chunk.ordinal());
  reload_ahead();
}

template <device Device>
auto engine<Device>::decide(const chunk_state& chunk, int layer, std::span<handle* const> handles,
                            commit_kind how) const -> verdict {
  // By hand everything leaves: its handles are released by hand too, and nothing may be lost.
  verdict decided;
  decided.to = store_.places().front();
  if (how == commit_kind::by_hand) return decided;
  decided.offered =
      how == commit_kind::or_discard && opts_.recompute_by_plan && discardable(handles);
  if (keeps_.everything_leaves()) return decided;
  const auto what = planned(chunk, layer, handles);
  decided.to = keeps_.place_of(what, store_.places());
  decided.wanted = decided.what =
      what == plan::action::offload_to_peer ? plan::action::offload : what;
  if (decided.what == plan::action::recompute && !decided.offered) {
    decided.what = plan::action::offload;
  }
  if (decided.what == plan::action::offload && stays_anyway(handles)) {
    decided.what = plan::action::keep;
  }
  return decided;
}

template <device Device>
void engine<Device>::commit(chunk_state& chunk, module_id module, int layer, lane_id lane,
                            std::span<handle* const> handles, commit_kind how) {
  if (chunk.info().forward_only) {
    if (chunk.info().release && how != commit_kind::by_hand) {
      release_saved(chunk, module, layer, lane, handles);
    }
    return;
  }
  const auto range = ranges_.commit(static_cast<std::size_t>(module), layer);
  [[maybe_unused]] const group_subject<Device> subject{*this, chunk, module, layer};
  if (chunk.forward_done()) {
    refuse("commit", chunk, module, layer,
           "the chunk's forward pass has ended; commit before end_forward and before the first"
           " restore");
  }
  if (learner_.held_to_plan()) expect_group(chunk, module, layer, how);
  const bool noted = learner_.expect_commit(chunk.ordinal(), chunk.group_count());
  const auto from = arrive(lane);
  const auto decided = decide(chunk, layer, handles, how);
  auto& which = chunk.add(module, layer);
  which.offered = decided.offered;
  if (forgotten_.any()) which.awaited = !forgotten_.has(chunk.ordinal(), chunk.group_count() - 1);
  which.place = decided.to;
  which.lane = lane;
  which.position = store_.order().next(lane);
  const bool by_hand = how == commit_kind::by_hand;
  tally seen;
  transfer(chunk, which, lane, handles, decided.what, !by_hand, seen);
  note_staying(chunk, which, decided, handles);
  if (noted) {
    learner_.committed(
        chunk.ordinal(), module, layer,
        decided.stays() ? bytes_that_could_leave(handles) : bytes_saved(chunk, which),
        which.offered);
  }
  if (recorder_ != nullptr) record_commit(chunk, decided, from, lane, handles);
  // What stays full was used here last.
  for (auto* each : handles) each->lane_ = lane;
  if (!by_hand) {
    empty_handles(chunk, which, lane, decided.what, handles);
  } else if (recorder_ != nullptr) {
    note_held_by_hand(chunk, which, handles);
  }
  count_commit(which, seen, decided.stays());
}

// The copies of a commit, and the cap on those in flight. A failure leaves nothing of the commit.
template <device Device>
void engine<Device>::transfer(chunk_state& chunk, group& which, lane_id lane,
                              std::span<handle* const> handles, plan::action what, bool choose,
                              tally& seen) {
  try {
    collect(chunk, which, handles, what, choose, seen);
  } catch (...) {
    undo(chunk);
    throw;
  }
  try {
    const auto done = offload(chunk, which, lane, handles);
    if (which.bytes > 0 && windows_[static_cast<std::size_t>(which.module)].capped()) {
      cap(which.module, lane, done, which.bytes);
    }
  } catch (...) {
    store_.settle(store_.offload_lane(which.place));
    undo(chunk);
    throw;
  }
}

template <device Device>
void engine<Device>::count_commit(const group& which, const tally& seen, bool stays) {
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

// Of a group that stays: what other groups, and its own restore, have to know.
template <device Device>
void engine<Device>::note_staying(chunk_state& chunk, group& which, const verdict& decided,
                                  std::span<handle* const> handles) {
  if (!decided.stays() && decided.wanted == plan::action::recompute) {
    note_recompute(chunk, which, decided.what);
  }
  if (decided.wanted == plan::action::keep) {
    which.kept = bytes_of(handles);
    keeps_.add(which.kept);
    auto* item = chunk.saved_of(which);
    const bool by_plan = keeps_.planned(chunk.ordinal(), chunk.group_count() - 1) == decided.wanted;
    for (const auto* each : handles) {
      auto& store = *each->store_;
      ++store.stays;
      item->stayed = &store;
      item->by_plan = by_plan;
      (item++)->number = store.number;
    }
  } else if (decided.stays() && opts_.offload_layers.empty()) {
    // For others that do; in the warm-up it left.
    auto* item = chunk.saved_of(which);
    for (const auto* each : handles) {
      item->by_plan = true;
      (item++)->number = each->store_->number;
    }
  }
}

// The handles of what leaves give their memory up.
template <device Device>
void engine<Device>::empty_handles(chunk_state& chunk, group& which, lane_id lane,
                                   plan::action what, std::span<handle* const> handles) {
  const auto* item = chunk.saved_of(which);
  for (auto* each : handles) {
    const auto* const saved = (item++)->store;
    if (saved == nullptr) continue;
    each->part_ = labels_[static_cast<std::size_t>(which.module)];
    each->layer_ = which.layer;
    each->saved_as_ = saved->number;
    auto& source = *std::exchange(each->store_, nullptr);
    source.discarded = what == plan::action::recompute;
    if (recorder_ != nullptr && source.handles > 1) note_held(source, saved);
    forget_handle(source, lane);
  }
  if (what == plan::action::recompute && which.leaving > 0) {
    which.state = group_state::discarded;
  }
}

// Without a backward pass, a commit is the last use.
template <device Device>
void engine<Device>::release_saved(chunk_state& chunk, module_id module, int layer, lane_id lane,
                                   std::span<handle* const> handles) {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const auto before = handles.begin() + static_cast<std::ptrdiff_t>(i);
    const char* why = why_not(*handles[i]);
    if (std::find(handles.begin(), before, handles[i]) != before) why = "is given twice";
    if (why == nullptr) continue;
    refuse("commit", chunk, module, layer, "argument " + std::to_string(i + 1) + " " + why);
  }
  const auto used = store_.order().record(lane);
  for (auto* each : handles) note_use(*each->store_, lane, used);
  for (auto* each : handles) {
    auto& store = *std::exchange(each->store_, nullptr);
    each->part_ = labels_[static_cast<std::size_t>(module)];
    each->layer_ = layer;
    each->saved_as_ = store.number;
    forget_handle(store, lane);
  }
}

// What is offloaded by hand stays in its handles until they are released, by hand as well.
template <device Device>
[[gnu::cold]] void engine<Device>::note_held_by_hand(chunk_state& chunk, const group& which,
                                                     std::span<handle* const> handles) {
  const auto* item = chunk.saved_of(which);
  for (const auto* each : handles) note_held(*each->store_, (item++)->store);
}

template <device Device>
[[gnu::cold]] void engine<Device>::record_commit(chunk_state& chunk, const verdict& decided,
                                                 std::size_t from, lane_id lane,
                                                 std::span<handle* const> handles) {
  const bool stays = decided.stays();
  const auto wanted = decided.wanted;
  const auto index = static_cast<std::uint32_t>(chunk.group_count() - 1);
  const auto* items = chunk.saved_of(chunk.at(index));
  tally unused;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    // Small or opted out: it counts among the `stays` of its storage all the same.
    if (wanted == plan::action::keep && !leaves(*handles[i], unused) &&
        !recorder_->stayed_unsaved(handles[i]->store_->number)) {
      learner_.shapes_vary();
    }
    if (stays ? leaves(*handles[i], unused) : items[i].store != nullptr) {
      const auto& store = stays ? *handles[i]->store_ : *items[i].store;
      std::uint32_t itself = 0;
      for (std::size_t k = 0; k < handles.size(); ++k) {
        const auto* const other = !stays                         ? items[k].store
                                  : wanted == plan::action::keep ? handles[k]->store_
                                                                 : nullptr;
        itself += other == &store ? 1 : 0;
      }
      // One that came back is a handle that no event before tells of.
      const bool beside_others =
          !recorder_->was_handed_over(store.number) && store.saves + store.stays > itself;
      if (!recorder_->saved(store.number, chunk.ordinal(), index, i, beside_others)) {
        learner_.shapes_vary();
      }
    }
  }
  recorder_->called(from, plan::event_kind::commit, index, chunk.ordinal(),
                    store_.order().stream(lane));
  if (stays) note_outliving(lane, handles, wanted == plan::action::keep);
}

// Which handles go beyond the commit of a group that stays, as those of one that leaves would.
// `counted`: it is among the `stays` of its storages, which one that stays for others is not.
template <device Device>
[[gnu::cold]] void engine<Device>::note_outliving(lane_id lane, std::span<handle* const> handles,
                                                  bool counted) {
  for (const auto* each : handles) {
    auto& store = *each->store_;
    const auto its_own = counted ? 0 : std::ranges::count(handles, &store, &handle::store_);
    const bool beyond = store.handles > store.stays + static_cast<std::uint32_t>(its_own);
    const bool before = recorder_->outlives(store.number, beyond);
    if (before && !beyond) record_drop(store, lane);
    if (beyond && !counted) learner_.shapes_vary();  // its own hide when the others go
  }
}

// Copies would free nothing: other groups keep all of it on the device.
template <device Device>
bool engine<Device>::stays_anyway(std::span<handle* const> handles) const {
  return !handles.empty() && std::all_of(handles.begin(), handles.end(), [](const handle* each) {
    return each->store_ != nullptr && each->store_->stays > 0;
  });
}

// What a group that stays by plan would take with it.
template <device Device>
[[gnu::cold]] std::size_t engine<Device>::bytes_that_could_leave(
    std::span<handle* const> handles) const {
  tally unused;
  std::size_t bytes = 0;
  for (const auto* each : handles) bytes += leaves(*each, unused) ? each->store_->bytes : 0;
  return bytes;
}

// Takes back a commit that failed; no copy of it is running.
template <device Device>
void engine<Device>::undo(chunk_state& chunk) noexcept {
  const auto& failed = chunk.at(static_cast<std::uint32_t>(chunk.group_count() - 1));
  auto* items = chunk.saved_of(failed);
  for (std::uint32_t i = 0; i < failed.count; ++i) {
    if (items[i].store != nullptr) forget_save(*items[i].store);
  }
  chunk.remove_last();
}

}  // namespace tidepool::detail
