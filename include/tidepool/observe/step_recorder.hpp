/// Records a step from the happenings of the engine, so that a plan can be made of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/core/happening.hpp"
#include "tidepool/decide/decider.hpp"
#include "tidepool/decide/step_learner.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/engine/handle.hpp"
#include "tidepool/observe/recorded_steps.hpp"
#include "tidepool/observe/recorder.hpp"

namespace tidepool::inline v0_3_0::detail {

// If no event can describe how memory is held, it tells the learner that shapes vary.
class step_recorder {
 public:
  // `learner` must outlive this object.
  step_recorder(hardware& dev, step_learner& learner, const options& opts)
      : record(dev),
        kept(dev.can().simulates_time ? opts.timed_step.value_or(2) : opts.timed_step),
        learner_(&learner),
        least_elements_(opts.min_tensor_elements) {}

  void on(const happening& what) noexcept {
    switch (what.what) {
      case happened::call_begun:
        return begin(record.arrive(what.lane));
      case happened::call_over:
        return end();
      case happened::allocated:
        return allocated(*what.tensor, what.lane);
      case happened::committed:
        return committed(what);
      case happened::outlives:
        return outlives(*what.tensor, what.saved_as);
      case happened::handle_gone:
        return handle_gone(*what.tensor, what.lane);
      case happened::restored:
        return record.called(from(), plan::event_kind::restore, what.index, what.chunk->ordinal,
                             what.lane);
      case happened::came_back:
        if (record.outlives(what.tensor->number, false)) learner_->shapes_vary();
        return handed_over(*what.tensor);
      case happened::stayed:
        return handed_over(*what.tensor);
      case happened::kept_no_more:
        record.outlives(what.tensor->number, false);
        return handed_over(*what.tensor);
      case happened::copied:
        return record.copied(what.lane);
      case happened::read_again:
        if (!learner_->measuring()) learner_->shapes_vary();  // no event describes the read
        return;
      case happened::recompute_begun:
        return begin(record.recompute_begins(what.lane));
      case happened::recomputed:
        record.recomputed(from(), what.chunk->ordinal, what.index, what.lane);
        return end();
      case happened::recompute_failed:
        record.recompute_failed();
        return end();
      case happened::forgotten:
        return forgotten(*what.chunk, what.index);
      case happened::forward_ended:
        return record.forward_ended(what.chunk->ordinal);
      default:  // happenings of traces
        return;
    }
  }

  recorder record;
  plan::detail::warm_up_steps kept;

 private:
  void begin(std::size_t mark) noexcept {
    record.attempt([&] { begun_.push_back(mark); });
  }
  // The start of the innermost call or recomputing; 0 for a record that failed.
  [[nodiscard]] std::size_t from() const { return begun_.empty() ? 0 : begun_.back(); }
  void end() noexcept {
    if (!begun_.empty()) begun_.pop_back();
  }

  // Storages of 0 bytes, and those in memory of the trainer's own, are left out, because plans do
  // not place them.
  void allocated(const storage& fresh, lane_id lane) noexcept {
    if (fresh.source != nullptr || fresh.bytes == 0) return;
    record.allocated(from(), fresh.number, fresh.bytes, lane);
  }

  void committed(const happening& now) noexcept {
    const auto& decided = *now.decided;
    if (decided.offered) {
      auto& noted = learner_->step().chunks[now.chunk->ordinal].groups[now.index];
      noted.recompute_us =
          kept.recompute_us(now.chunk->ordinal, now.index, noted.module, noted.layer);
    }
    const bool stays = decided.stays();
    const bool wanted_to_stay = decided.wanted == plan::action::keep;
    const auto* const items = now.chunk->saved_of(now.chunk->groups[now.index]);
    for (std::size_t i = 0; i < now.handles.size(); ++i) {
      const auto& held = *now.handles[i]->held();
      const bool leaves = now.handles[i]->leaves(least_elements_);
      // A small or opted-out tensor counts among the `stays` of its storage as well.
      if (wanted_to_stay && !leaves && !record.stayed_unsaved(held.number)) {
        learner_->shapes_vary();
      }
      if (stays ? !leaves : items[i].store == nullptr) continue;
      const auto& store = stays ? held : *items[i].store;
      std::uint32_t itself = 0;
      for (std::size_t k = 0; k < now.handles.size(); ++k) {
        const auto* const other = !stays           ? items[k].store
                                  : wanted_to_stay ? now.handles[k]->held()
                                                   : nullptr;
        itself += other == &store ? 1 : 0;
      }
      // No earlier event names the handle that holds a tensor that came back.
      const bool beside_others =
          !record.was_handed_over(store.number) && store.saves + store.stays > itself;
      record.holds(store.number, store.is.bfloat16, store.is.counted ? store.moved() : 0);
      if (!record.saved(store.number, now.chunk->ordinal, now.index, i, beside_others)) {
        learner_->shapes_vary();
      }
    }
    record.called(from(), plan::event_kind::commit, now.index, now.chunk->ordinal, now.lane);
    if (stays) note_outliving(now.lane, now.handles, wanted_to_stay);
  }

  // Notes handles beyond the commit of a group that stays, as for a group that leaves. `counted`:
  // the group is among the `stays` of its storages; a group that stays because others keep its
  // tensors is not.
  void note_outliving(lane_id lane, handle_list handles, bool counted) noexcept {
    for (const auto* each : handles) {
      const auto& store = *each->held();
      const auto its_own = counted ? 0 : std::ranges::count(handles, &store, &handle_base::held);
      const bool beyond = store.handles > store.stays + static_cast<std::uint32_t>(its_own);
      const bool before = record.outlives(store.number, beyond);
      if (before && !beyond) drop(store, lane);
      if (beyond && !counted) learner_->shapes_vary();  // no event shows it when the others go
    }
  }

  // If only a part leaves, perhaps no group saves the whole storage, and then no event shows its
  // release.
  void outlives(const storage& held, const storage* saved) noexcept {
    saved == &held ? void(record.outlives(held.number)) : learner_->shapes_vary();
  }
  void handed_over(const storage& store) noexcept {
    record.handed_over(store.number, store.saves + store.stays > 0);
  }

  void handle_gone(const storage& store, lane_id lane) noexcept {
    if (store.handles == store.stays && record.is_held(store.number)) drop(store, lane);
    if (store.handles == 0 && store.saves == 0) record.released(store.number, lane);
  }
  // Notes that from now on only the groups that saved the storage hold it.
  void drop(const storage& store, lane_id lane) noexcept {
    if (!record.drop(store.number, lane)) learner_->shapes_vary();
  }

  // For a plan, storages that only this group still holds are released here and do not return.
  void forgotten(chunk_state& chunk, std::uint32_t index) noexcept {
    record.forgotten(chunk.ordinal, index);
    const auto& which = chunk.groups[index];
    const auto* const items = chunk.saved_of(which);
    for (std::uint32_t i = 0; i < which.count; ++i) {
      const auto* store = items[i].store;
      if (store == nullptr || store->saves > 1 || store->handles > 0) continue;
      record.released(store->number, record.latest());
    }
  }

  step_learner* learner_;
  std::size_t least_elements_;      // smaller tensors stay
  std::vector<std::size_t> begun_;  // start marks of calls under way
};

}  // namespace tidepool::detail
