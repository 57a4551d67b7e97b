// The decider's questions about a group that is committed, and the notes on a group that stays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_3_0::detail {

TIDEPOOL_INLINE std::size_t engine::bytes_of(handle_list handles) {
  std::size_t bytes = 0;
  for (const auto* each : handles) bytes += each->store_ == nullptr ? 0 : each->store_->bytes;
  return bytes;
}

// Answers the decider's questions about a commit.
struct engine::asked {
  const engine& of;
  const chunk_state& in;
  module_id module;
  int layer;
  handle_list handles;
  commit_kind how;
  std::size_t chunk = in.ordinal;
  std::size_t number = in.groups.size();
  place_kind nearest = of.places_.front();
  bool by_hand = how == commit_kind::by_hand;
  bool offers = how == commit_kind::or_discard;

  [[nodiscard]] const std::vector<place_kind>& places() const { return of.places_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_of(handles); }
  [[nodiscard]] std::size_t largest_free() const {
    return of.store_.device_source().largest_free();
  }
  [[nodiscard]] bool discardable() const { return of.discardable(handles); }
  // True if a plan does not know the memory that would stay: a part keeps its whole storage on the
  // device, and the next tensor may need a block of the trainer's own source.
  [[nodiscard]] bool unknown_to_plans() const {
    return std::ranges::any_of(handles, [](const handle_base* each) {
      const auto* store = each->store_;
      return store != nullptr &&
             (store->source != nullptr || (!each->whole_ && each->part_.bytes() != store->bytes));
    });
  }
  [[nodiscard]] bool stays_anyway() const {
    return !handles.empty() && std::ranges::all_of(handles, [](const handle_base* each) {
      return each->store_ != nullptr && each->store_->stays > 0;
    });
  }
  [[noreturn]] void refuse(const std::string& why) const {
    of.refuse("commit", in, module, layer, why);
  }
  [[nodiscard]] const std::string& name_of(module_id other) const {
    return of.names_[static_cast<std::size_t>(other)];
  }
};

// Notes facts about a group that stays, for other groups and for its restore.
TIDEPOOL_INLINE void engine::note_staying(chunk_state& chunk, group& which, const verdict& decided,
                                          handle_list handles) {
  if (!decided.stays() && decided.wanted == plan::action::recompute) {
    note_recompute(chunk, which, decided.what);
  }
  if (decided.wanted == plan::action::keep) {
    which.kept = bytes_of(handles);
    decider_.stays(which.kept);
    auto* item = chunk.saved_of(which);
    for (const auto* each : handles) {
      auto& store = *each->store_;
      ++store.stays;
      item->source = &store;
      item->by_plan = decided.by_plan;
      (item++)->number = store.number;
    }
  } else if (decided.stays() && opts_.offload_layers.empty()) {
    // The group stays because other groups keep its tensors. In the warm-up it left.
    auto* item = chunk.saved_of(which);
    for (const auto* each : handles) {
      item->by_plan = true;
      (item++)->number = each->store_->number;
    }
  }
}

// The bytes that a group which stays by plan would offload otherwise.
[[gnu::cold]] TIDEPOOL_INLINE std::size_t engine::bytes_that_could_leave(
    handle_list handles) const {
  tally unused;
  std::size_t bytes = 0;
  for (const auto* each : handles) bytes += leaves(*each, unused) ? each->store_->bytes : 0;
  return bytes;
}

}  // namespace tidepool::detail
