// What a step that is recorded is told: commits, and who holds what beyond them.
#pragma once

#include <algorithm>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

// Beyond the commit that saved `saved` for it. Of a part that leaves nobody can say when the whole
// goes, which no group may save.
[[gnu::cold]] TIDEPOOL_INLINE void engine::note_held(const storage& held, const storage* saved) {
  saved == &held ? void(recorder_->outlives(held.number)) : learner_.shapes_vary();
}

TIDEPOOL_INLINE void engine::start_recording() noexcept {
  if (recorder_ != nullptr) recorder_->start(last_lane_);
}

// True where the commit that comes is noted, by `committed`, once it cannot fail any more.
[[gnu::cold]] TIDEPOOL_INLINE bool engine::expect_commit(const chunk_state& chunk, module_id module,
                                                         int layer, commit_kind how) {
  if (learner_.held_to_plan()) expect_group(chunk, module, layer, how);
  return learner_.expect_commit(chunk.ordinal, chunk.groups.size());
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::record_commit(chunk_state& chunk, const verdict& decided,
                                                         std::size_t from, lane_id lane,
                                                         handle_list handles) {
  const bool stays = decided.stays();
  const auto wanted = decided.wanted;
  const auto index = static_cast<std::uint32_t>(chunk.groups.size() - 1);
  const auto* items = chunk.saved_of(chunk.groups[index]);
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
      if (!recorder_->saved(store.number, chunk.ordinal, index, i, beside_others)) {
        learner_.shapes_vary();
      }
    }
  }
  recorder_->called(from, plan::event_kind::commit, index, chunk.ordinal, lane);
  if (stays) note_outliving(lane, handles, wanted == plan::action::keep);
}

// Which handles go beyond the commit of a group that stays, as those of one that leaves would.
// `counted`: it is among the `stays` of its storages, which one that stays for others is not.
[[gnu::cold]] TIDEPOOL_INLINE void engine::note_outliving(lane_id lane, handle_list handles,
                                                          bool counted) {
  for (const auto* each : handles) {
    auto& store = *each->store_;
    const auto its_own = counted ? 0 : std::ranges::count(handles, &store, &handle_base::store_);
    const bool beyond = store.handles > store.stays + static_cast<std::uint32_t>(its_own);
    const bool before = recorder_->outlives(store.number, beyond);
    if (before && !beyond) record_drop(store, lane);
    if (beyond && !counted) learner_.shapes_vary();  // its own hide when the others go
  }
}

// What is offloaded by hand stays in its handles until they are released, by hand as well.
[[gnu::cold]] TIDEPOOL_INLINE void engine::note_held_by_hand(const saved* item,
                                                             handle_list handles) {
  for (const auto* each : handles) note_held(*each->store_, (item++)->store);
}

// Nobody holds it any more but the groups that saved it.
[[gnu::cold]] TIDEPOOL_INLINE void engine::record_drop(storage& store, lane_id lane) noexcept {
  if (!recorder_->drop(store.number, lane)) learner_.shapes_vary();
}

// What it alone still holds is released, in the eyes of a plan, without having come back.
[[gnu::cold]] TIDEPOOL_INLINE void engine::record_forget(chunk_state& chunk,
                                                         const group& which) noexcept {
  const auto index = static_cast<std::size_t>(&which - &chunk.groups[0]);
  recorder_->forgotten(chunk.ordinal, index);
  const auto* items = chunk.saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    const auto* store = items[i].store;
    if (store == nullptr || store->saves > 1 || store->handles > 0) continue;
    recorder_->released(store->number, last_lane_);
  }
}

}  // namespace tidepool::detail
