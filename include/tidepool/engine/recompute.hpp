// The engine's part in recomputing: forward releases memory, and backward takes memory for the same
// tensors again, because the user named them (`options::recompute_modules`) or a plan chose them.
//
// A plan may choose to recompute a group, and then knows the storage before and after the gap. A
// plan does not know of recomputing by name: it sees a tensor that forward drops and another tensor
// that backward allocates, and places both like any other tensor.
#pragma once

#include <optional>

#include "tidepool/core/rollback.hpp"
#include "tidepool/engine/calls.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/traced_span.hpp"

namespace tidepool::inline v0_3_0::detail {

TIDEPOOL_INLINE std::size_t engine::recomputed(std::string_view name) const {
  const auto& all = opts_.recompute_modules;
  const auto found = std::ranges::find(all, name);
  return found == all.end() ? not_recomputed : static_cast<std::size_t>(found - all.begin());
}

TIDEPOOL_INLINE std::size_t engine::recomputed(module_id module) const {
  const auto index = static_cast<std::size_t>(module);
  const bool none = opts_.recompute_modules.empty() || index >= names_.size();
  return none ? not_recomputed : recomputed(names_[index]);
}

TIDEPOOL_INLINE std::optional<module_id> engine::module_named(std::string_view name) const {
  const auto found = std::ranges::find(names_, name);
  if (found == names_.end()) return std::nullopt;
  return static_cast<module_id>(found - names_.begin());
}

TIDEPOOL_INLINE void engine::discard(chunk_state& chunk, std::size_t what, int layer, lane_id lane,
                                     handle_list tensors) {
  const auto refused = [&](const std::string& why) {
    refuse_recompute("commit_or_discard", chunk, what, layer, why);
  };
  if (chunk.forward_done) {
    refused(
        "the chunk's forward pass has ended; commit before end_forward and before the first"
        " restore");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto before = tensors.begin() + static_cast<std::ptrdiff_t>(i);
    const char* why = why_not(*tensors[i]);
    if (why == nullptr && std::find(tensors.begin(), before, tensors[i]) != before) {
      why = "is given twice";
    } else if (why == nullptr && tensors[i]->store_->saves > 0) {
      why = "was committed too; commit what backward loads and discard what it computes, not both";
    } else if (why == nullptr && tensors[i]->store_->handles > 1) {
      why =
          "has another owner (share() or a view), so that its memory would stay; reset that one"
          " first";
    }
    if (why != nullptr) refused("argument " + std::to_string(i + 1) + " " + why);
  }
  auto& list = chunk.discarded;
  const auto call = list.empty() ? 0 : list.back().call + 1;
  list.reserve(list.size() + tensors.size());
  const told_call arrived(*this, lane);
  const auto used = order_.record(lane);
  for (const auto* each : tensors) note_use(*each->store_, lane, used);
  auto& count = counters_.recomputed[what];
  for (auto* each : tensors) {
    auto& store = *std::exchange(each->store_, nullptr);
    if (!chunk.info.forward_only) {
      list.push_back({call, what, layer, store.bytes, store.elements, store.source,
                      store.is.zeroed ? fill::zero : fill::none, store.is.bfloat16});
      ++count.tensors;
      count.bytes += store.bytes;
    }
    forget_handle(store, lane);
  }
}

// The tensors of the latest call whose tensors are still discarded; empty if there is none.
[[nodiscard]] inline auto discarded_last(chunk_state& chunk, std::size_t what, int layer) {
  auto& list = chunk.discarded;
  const auto newest = std::find_if(list.rbegin(), list.rend(), [&](const auto& each) {
    return each.what == what && each.layer == layer && !each.under_way;
  });
  const auto last = newest.base();  // one behind `newest`
  auto first = last;
  while (first != list.begin() && (first - 1)->call == newest->call) --first;
  return std::pair(first, last);
}

// The tensors of the recomputing that began last. Its call discarded its tensors first, because
// calls are computed again in reverse order.
[[nodiscard]] inline auto under_way(chunk_state& chunk, std::size_t what, int layer) {
  auto& list = chunk.discarded;
  const auto first = std::find_if(list.begin(), list.end(), [&](const auto& each) {
    return each.what == what && each.layer == layer && each.under_way;
  });
  auto last = first;
  while (last != list.end() && last->call == first->call) ++last;
  return std::pair(first, last);
}

TIDEPOOL_INLINE bool engine::begin_recompute(chunk_state& chunk, std::size_t what, int layer,
                                             lane_id lane, handle_list tensors) {
  if (chunk.info.forward_only) return false;
  const auto [first, last] = discarded_last(chunk, what, layer);
  const auto count = static_cast<std::size_t>(last - first);
  if (count != tensors.size()) {
    refuse_recompute("restore_or_recompute", chunk, what, layer,
                     count == 0
                         ? "nothing of it was discarded, or it was computed again before"
                         : std::to_string(tensors.size()) + " arguments, but " +
                               std::to_string(count) + " were discarded; pass the same, in order");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto before = tensors.begin() + static_cast<std::ptrdiff_t>(i);
    const bool twice = std::find(tensors.begin(), before, tensors[i]) != before;
    if (!*tensors[i] && !twice) continue;
    refuse_recompute("restore_or_recompute", chunk, what, layer,
                     "argument " + std::to_string(i + 1) +
                         (twice ? " is given twice"
                                : " holds other memory; reset it before its tensor is computed"
                                  " again"));
  }
  if (!chunk.backward_begun) begin_backward(chunk);
  try {
    for (auto each = first; each != last; ++each) {
      const auto made = allocate(each->bytes, each->elements, lane, each->source, each->contents);
      made.store->is.bfloat16 = each->bfloat16;
      tensors[static_cast<std::size_t>(each - first)]->fill(made);
    }
  } catch (...) {
    for (auto* each : tensors) each->fill({});
    throw;
  }
  for (auto each = first; each != last; ++each) each->under_way = true;
  return true;
}

TIDEPOOL_INLINE void engine::recompute(chunk_state& chunk, std::size_t what, int layer,
                                       lane_id lane, handle_list tensors, call_ref again) {
  if (!begin_recompute(chunk, what, layer, lane, tensors)) return;
  try {
    const traced_span span(
        *this, [lane] { return lane; },
        {trace::span_kind::compute, opts_.recompute_modules[what], layer, chunk.info.microbatch});
    again();
  } catch (...) {
    const auto [first, last] = under_way(chunk, what, layer);
    for (auto each = first; each != last; ++each) each->under_way = false;
    for (auto* each : tensors) each->fill({});
    throw;
  }
  const auto [first, last] = under_way(chunk, what, layer);
  chunk.discarded.erase(first, last);
}

// True if a drop of the handles would free their memory, and no other group or handle needs it.
TIDEPOOL_INLINE bool engine::discardable(handle_list handles) const {
  return !handles.empty() &&
         std::all_of(handles.begin(), handles.end(), [&](const handle_base* each) {
           const auto* store = each->store_;
           return store != nullptr && store->owner == this && store->handles == 1 &&
                  store->saves == 0 && store->stays == 0;
         });
}

TIDEPOOL_INLINE void engine::note_recompute(chunk_state& chunk, const group& which,
                                            plan::action what) {
  auto& count = counters_.modules[static_cast<std::size_t>(which.module)];
  if (what != plan::action::recompute) {
    ++count.groups_held;
  } else if (which.leaving > 0) {
    ++count.groups_recomputed;
    count.bytes_recomputed += bytes_saved(which, chunk.saved_of(which));
  }
}

TIDEPOOL_INLINE void engine::restore_or_recompute(chunk_state& chunk, module_id module, int layer,
                                                  lane_id lane, handle_list handles,
                                                  call_ref again) {
  if (chunk.info.forward_only) {
    if (chunk.info.release) refuse_released("restore_or_recompute", chunk, module, layer);
    return;
  }
  const work_on_group<> work(*this, trace::nvtx_action::restore, chunk, module, layer);
  const told_call call(*this, lane);
  const auto index = fetch(chunk, module, layer, lane, handles);
  const auto& which = chunk.groups[index];
  if (which.state == group_state::discarded || measures(chunk, which, handles)) {
    bool computing = false;
    rollback not_done([&]() noexcept {
      if (computing) heard_.tell({.what = happened::recompute_failed});
      take_back_lent(chunk, index, lane, handles);
    });
    lend(chunk, which, lane, handles);
    const traced_span span(*this, [lane] { return lane; },
                           {trace::span_kind::compute, names_[static_cast<std::size_t>(module)],
                            layer, chunk.info.microbatch});
    if (heard_.any()) heard_.tell({.what = happened::recompute_begun, .lane = lane});
    computing = true;
    again();
    computing = false;
    if (heard_.any())
      heard_.tell({.what = happened::recomputed, .lane = lane, .chunk = &chunk, .index = index});
    not_done.keep();
  }
  hand_over(chunk, index, lane, handles);
}

TIDEPOOL_INLINE bool engine::will_recompute(chunk_state& chunk, std::size_t what, int layer) {
  const auto [first, last] = discarded_last(chunk, what, layer);
  return first != last;
}

TIDEPOOL_INLINE bool engine::will_recompute(chunk_state& chunk, module_id module, int layer) const {
  const auto index = chunk.find(module, layer);
  if (index == no_group) return false;
  const auto& which = chunk.groups[index];
  return which.state == group_state::discarded || (which.offered && learner_.measuring());
}

// True if a group that came back is computed again, too: in the first recorded step, to measure the
// time of the function. By contract the function writes the same bits.
TIDEPOOL_INLINE bool engine::measures(chunk_state& chunk, const group& which,
                                      handle_list handles) const {
  if (!learner_.measuring() || !which.offered) return false;
  const auto* item = chunk.saved_of(which);
  return std::all_of(handles.begin(), handles.end(), [&](const handle_base* each) {
    const auto* saved = (item++)->store;
    if (saved != nullptr) return !*each && saved->handles == 0 && saved->saves == 1;
    return *each && each->store_->handles == 1 && each->store_->saves == 0;
  });
}

// Fills the handles of a group before the group counts as restored. Discarded tensors get memory.
TIDEPOOL_INLINE void engine::lend(chunk_state& chunk, const group& which, lane_id lane,
                                  handle_list handles) {
  const auto* items = chunk.saved_of(which);
  for (std::uint32_t i = 0; i < which.count; ++i) {
    auto* store = items[i].returning();
    if (store == nullptr) {  // the tensor stayed, but a copy for another group may still read it
      if (*handles[i]) {
        order_.join(lane, handles[i]->store_->used, join_site::device_reuse);
      }
      continue;
    }
    const bool away = !store->here.memory;
    if (!take_or_evict([&] { return store->here.memory || place_again(*store, lane); })) {
      throw_out_of_device(store->bytes,
                          "recompute of " + name_of_group(chunk, which.module, which.layer),
                          store->source);
    }
    if (away && store->is.zeroed) store_.zero(*store, lane);
    if (*handles[i]) continue;
    handles[i]->store_ = share(*store);
    handles[i]->part_ = {0, store->bytes, 1, store->bytes};
  }
}

// Takes back the memory of a group that could not be computed again, behind the work that was
// begun. The restore may be repeated.
TIDEPOOL_INLINE void engine::take_back_lent(chunk_state& chunk, std::uint32_t index, lane_id lane,
                                            handle_list handles) noexcept {
  auto& which = chunk.groups[index];
  const auto* items = chunk.saved_of(which);
  std::optional<ticket> used;
  try {
    used = order_.record(lane);
  } catch (...) {  // without an event the memory cannot be reused: it stays taken
  }
  for (std::uint32_t i = 0; i < which.count; ++i) {
    auto* store = items[i].returning();
    if (store == nullptr || !*handles[i]) continue;
    handles[i]->store_ = nullptr;
    handles[i]->part_ = labels_[static_cast<std::size_t>(which.module)];
    release(this);
    --store->handles;
    if (!used) {
      store_.lose(*store);
      continue;
    }
    note_use(*store, lane, *used);
    take_back(*store, lane);
  }
  if (which.state == group_state::discarded) return;
  ahead_.forget(which.ahead);
  reload_again(chunk, index);
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::refuse_recompute(const char* call,
                                                            const chunk_state& chunk,
                                                            std::size_t what, int layer,
                                                            const std::string& why) const {
  throw misuse_error(std::string(call) + " of " + opts_.recompute_modules[what] + " of layer " +
                     std::to_string(layer) + ", microbatch " +
                     std::to_string(chunk.info.microbatch) + ": " + why);
}

}  // namespace tidepool::detail
