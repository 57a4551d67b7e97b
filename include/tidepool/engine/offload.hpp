// The engine's offloads: what of a commit leaves, how it leaves, and what caps it.
#pragma once

#include <numeric>

#include "tidepool/engine/engine.hpp"

namespace tidepool::inline v0_2_0::detail {

// What becomes of a group: what the plan says, or the rule.
template <device Device>
plan::action engine<Device>::planned(const chunk_state& chunk, int layer,
                                     std::span<handle* const> handles) const {
  const auto what = keeps_.of(chunk.ordinal(), chunk.group_count(), layer, bytes_of(handles), [&] {
    return placement_.hold() ? std::numeric_limits<std::size_t>::max()
                             : store_.device_source().largest_free();
  });
  const bool by_plan = !learner_.by_rule() && what == plan::action::keep &&
                       keeps_.planned(chunk.ordinal(), chunk.group_count()) == plan::action::keep;
  return by_plan && takes_more_than_planned(handles) ? plan::action::offload : what;
}

// What stays for a part is the whole, and a block of the trainer's own is wanted by the next
// tensor: of neither does a plan know.
template <device Device>
bool engine<Device>::takes_more_than_planned(std::span<handle* const> handles) {
  return std::any_of(handles.begin(), handles.end(), [](const handle* each) {
    const auto* store = each->store_;
    return store != nullptr &&
           (store->source != nullptr || (!each->whole_ && each->part_.bytes() != store->bytes));
  });
}

// Why a handle cannot be committed; null where it can.
template <device Device>
const char* engine<Device>::why_not(const handle& given) const {
  const auto* store = given.store_;
  return store == nullptr       ? "holds no memory; was it committed or moved away before?"
         : store->owner != this ? "belongs to another offloader; commit it in a chunk of its own"
         : store->of_host_state
             ? "belongs to a host_state; write_back it, or reset it when it was only read"
             : nullptr;
}

// Decides which arguments leave and finds them room in a place; copies nothing.
template <device Device>
void engine<Device>::collect(chunk_state& chunk, group& into, std::span<handle* const> handles,
                             plan::action what, bool choose, tally& seen) {
  const bool stays = what == plan::action::keep;
  for (const auto* each : handles) {
    if (const auto* why = why_not(*each)) refuse_argument("commit", chunk, into, into.count, why);
    if (each->store_->borrowed && store_.order().capturing()) {
      refuse_argument("commit", chunk, into, into.count,
                      "lies in memory that goes back to its owner, which a graph would go on"
                      " reading; commit it outside of the capture");
    }
    each->store_->module = static_cast<int>(into.module);
    if (stays || (choose && !leaves(*each, seen))) {
      chunk.add_saved(into, {});
      continue;
    }
    if (std::find(handles.begin(), handles.begin() + into.count, each) !=
        handles.begin() + into.count) {
      refuse_argument("commit", chunk, into, into.count,
                      "is given twice; give each handle once, or share() it");
    }
    auto& store = saved_as(*each);
    const bool shared = static_cast<bool>(store.copy);
    ++store.saves;
    const bool dense = &store != each->store_;
    chunk.add_saved(into, {&store, dense ? each->part_.dense() : each->part_, !shared});
    store.module = static_cast<int>(into.module);
    if (what == plan::action::recompute) {
      store.wanted = false;
      store.offloaded = {};
      store.reloaded = {};
      continue;
    }
    if (shared) {
      ++seen.shared;
      continue;
    }
    if (!store_.place_copy(store, into.place) && !move_on(chunk, into)) {
      throw_out_of_places(chunk, into, store.bytes);
    }
    store.wanted = false;
    store.offloaded = {};
    store.reloaded = {};
    into.bytes += store.bytes;
    ++seen.offloaded;
  }
}

// The place of a group has no block for one more storage: all that it saves first moves on to the
// next place that has room. Nothing has been copied yet.
template <device Device>
[[gnu::cold]] bool engine<Device>::move_on(chunk_state& chunk, group& into) {
  const auto* const items = chunk.saved_of(into);
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
  const auto& places = store_.places();
  auto next = std::find(places.begin(), places.end(), into.place);
  while (++next != places.end()) {
    into.place = *next;
    if (all_moved()) return true;
  }
  return false;
}

template <device Device>
bool engine<Device>::leaves(const handle& candidate, tally& seen) const {
  const auto& store = *candidate.store_;
  if (store.keep) return false;
  const auto bytes = candidate.part_.bytes();
  const auto elements = bytes == store.bytes ? store.elements : elements_of(store, bytes);
  if (elements < opts_.min_tensor_elements) {
    ++seen.small;
    return false;
  }
  return true;
}

// Of a part; the product of both would overflow from 4 GiB on.
template <device Device>
std::size_t engine<Device>::elements_of(const storage& whole, std::size_t bytes) {
  const auto common = std::gcd(whole.elements, whole.bytes);
  return bytes / (whole.bytes / common) * (whole.elements / common);
}

// The storage that is saved for a handle: its own, or a dense copy of its rectangle.
template <device Device>
detail::storage& engine<Device>::saved_as(const handle& given) {
  auto& whole = *given.store_;
  if (whole.copy || given.part_.bytes() == whole.bytes || given.whole_) return whole;
  if (auto* part = store_.copied_part(whole, given.part_)) return *part;
  const auto bytes = given.part_.bytes();
  auto& part = store_.create(*this, bytes, elements_of(whole, bytes));
  part.part = given.part_;
  part.origin = whole.number;
  return part;
}

// Bytes that a group needs away from the device, whoever copied them.
template <device Device>
std::size_t engine<Device>::bytes_saved(chunk_state& chunk, const group& which) {
  const auto* items = chunk.saved_of(which);
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < which.count; ++i) {
    if (items[i].store != nullptr) bytes += items[i].store->bytes;
  }
  return bytes;
}

// Issues the copies of a collected group; every argument that leaves is free to go afterwards.
template <device Device>
ticket engine<Device>::offload(chunk_state& chunk, group& which, lane_id lane,
                               std::span<handle* const> handles) {
  const auto* items = chunk.saved_of(which);
  const auto leaves = [&](std::size_t i) { return items[i].store != nullptr; };
  auto& order = store_.order();
  if (which.leaving == 0) {
    // A restore on another stream may ask for this position, and could not record it then.
    if (order.capturing()) static_cast<void>(order.record(lane));
    return {};
  }

  const auto ready = order.record(lane);
  auto done = ready;
  if (which.bytes > 0) {
    const auto range = ranges_.offload(static_cast<std::size_t>(which.module), which.layer);
    auto& place = store_.at(which.place);
    const auto copies = place.offload;
    order.join(copies, ready, join_site::producer);
    const auto traced = store_.trace().begin(copies, order.stream(copies));
    for (std::size_t i = 0; i < which.count; ++i) {
      if (!items[i].copies) continue;
      const auto& store = *items[i].store;
      const auto& source = *handles[i]->store_;
      const bool whole = &store == &source;
      store_.copy_out(store, source,
                      whole ? rectangle{0, store.bytes, 1, store.bytes} : handles[i]->part_, place);
    }
    store_.issue_offloads(place);
    done = order.record(copies);
    store_.trace().end(traced, copies, order.stream(copies),
                       {trace::span_kind::offload, names_[static_cast<std::size_t>(which.module)],
                        which.layer, chunk.info().microbatch, which.bytes});
  }
  for (std::size_t i = 0; i < which.count; ++i) {
    if (!leaves(i)) continue;
    if (items[i].copies) items[i].store->offloaded = done;
    auto& source = *handles[i]->store_;
    note_use(source, lane, done);  // behind `ready`, too
  }
  return done;
}

// The offload that `done` ends is in flight; joins the module's oldest until no more are than the
// caps allow. Where a join fails, those before it are made all the same, but this one is not there.
template <device Device>
void engine<Device>::cap(module_id module, lane_id lane, const ticket& done, std::size_t bytes) {
  auto& flying = windows_[static_cast<std::size_t>(module)];
  flying.push(done, bytes);
  try {
    for (; flying.over(); flying.pop()) {
      if (store_.order().join(lane, flying.oldest(), join_site::cap)) {
        ++counters_.modules[static_cast<std::size_t>(module)].cap_joins;
      }
    }
  } catch (...) {
    flying.take_back();
    throw;
  }
}

}  // namespace tidepool::detail
