// What becomes of a group: whether it stays, by layer, rule or plan, and what that means to others.
#pragma once

#include <algorithm>
#include <limits>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

TIDEPOOL_INLINE std::size_t engine::bytes_of(handle_list handles) {
  std::size_t bytes = 0;
  for (const auto* each : handles) bytes += each->store_ == nullptr ? 0 : each->store_->bytes;
  return bytes;
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::decide(const chunk_state& chunk, int layer,
                                                  handle_list handles, commit_kind how,
                                                  verdict& decided) const {
  decided.offered =
      how == commit_kind::or_discard && opts_.recompute_by_plan && discardable(handles);
  if (keeps_.everything_leaves) return;
  const auto what = planned(chunk, layer, handles);
  decided.to = keeps_.place_of(what, places_);
  decided.wanted = decided.what =
      what == plan::action::offload_to_peer ? plan::action::offload : what;
  if (decided.what == plan::action::recompute && !decided.offered) {
    decided.what = plan::action::offload;
  }
  if (decided.what == plan::action::offload && stays_anyway(handles)) {
    decided.what = plan::action::keep;
  }
}

// What becomes of a group: what the plan says, or the rule.
TIDEPOOL_INLINE plan::action engine::planned(const chunk_state& chunk, int layer,
                                             handle_list handles) const {
  const auto what = keeps_.of(chunk.ordinal, chunk.groups.size(), layer, bytes_of(handles), [&] {
    return placement_.hold() ? std::numeric_limits<std::size_t>::max()
                             : store_.device_source().largest_free();
  });
  const bool by_plan = !learner_.by_rule() && what == plan::action::keep &&
                       keeps_.planned(chunk.ordinal, chunk.groups.size()) == plan::action::keep;
  return by_plan && takes_more_than_planned(handles) ? plan::action::offload : what;
}

// What stays for a part is the whole, and a block of the trainer's own is wanted by the next
// tensor: of neither does a plan know.
TIDEPOOL_INLINE bool engine::takes_more_than_planned(handle_list handles) {
  return std::any_of(handles.begin(), handles.end(), [](const handle_base* each) {
    const auto* store = each->store_;
    return store != nullptr &&
           (store->source != nullptr || (!each->whole_ && each->part_.bytes() != store->bytes));
  });
}

// Copies would free nothing: other groups keep all of it on the device.
TIDEPOOL_INLINE bool engine::stays_anyway(handle_list handles) const {
  return !handles.empty() &&
         std::all_of(handles.begin(), handles.end(), [](const handle_base* each) {
           return each->store_ != nullptr && each->store_->stays > 0;
         });
}

// Of a group that stays: what other groups, and its own restore, have to know.
TIDEPOOL_INLINE void engine::note_staying(chunk_state& chunk, group& which, const verdict& decided,
                                          handle_list handles) {
  if (!decided.stays() && decided.wanted == plan::action::recompute) {
    note_recompute(chunk, which, decided.what);
  }
  if (decided.wanted == plan::action::keep) {
    which.kept = bytes_of(handles);
    keeps_.add(which.kept);
    auto* item = chunk.saved_of(which);
    const bool by_plan = keeps_.planned(chunk.ordinal, chunk.groups.size() - 1) == decided.wanted;
    for (const auto* each : handles) {
      auto& store = *each->store_;
      ++store.stays;
      item->source = &store;
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

// What a group that stays by plan would take with it.
[[gnu::cold]] TIDEPOOL_INLINE std::size_t engine::bytes_that_could_leave(
    handle_list handles) const {
  tally unused;
  std::size_t bytes = 0;
  for (const auto* each : handles) bytes += leaves(*each, unused) ? each->store_->bytes : 0;
  return bytes;
}

}  // namespace tidepool::detail
