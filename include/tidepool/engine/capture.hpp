// The engine under stream capture: a graph repeats the copies that were issued while it was made.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/misuse.hpp"

namespace tidepool::inline v0_2_0::detail {

// A graph knows addresses, not handles. Three rules follow:
//
// - a launch needs every storage, by number, where it was when the capture began: where the graph
//   launched before left it, or else where handles say;
// - an eager call that takes or reads memory needs what handles say to be true; what only graphs
//   know of is forgotten then;
// - giving up (a handle, a chunk, a state) needs nothing, so that there is always a way out.
//
// `reloads`: with what is on the device ahead of its use, and could be reloaded again.
TIDEPOOL_INLINE memory_layout engine::layout(bool reloads) const {
  memory_layout result;
  store_.for_each([&](const storage& store) {
    if (store.bytes == 0) return;  // a graph knows no address of it
    const bool again = store.handles == 0 && store.copy;
    result.push_back({store.number, again && !reloads ? nullptr : store.on_device.data,
                      store.copy.data, store.bytes, !store.captured});
  });
  std::ranges::sort(result, {}, &storage_place::number);
  return result;
}

TIDEPOOL_INLINE void engine::begin_capture(lane_id origin) {
  if (order_.capturing()) throw misuse_error("capture: another capture is under way");
  if (trace_.on) {
    throw misuse_error("capture: a trace is being recorded; finish_trace() first");
  }
  if (store_.has(place_kind::file)) {
    throw misuse_error(
        "capture: groups may go to a file, which the host reads and writes, and a graph cannot ask"
        " it to; run this step outside of graphs, or take file:/path out of --places");
  }
  if (store_.device_source().gives_back()) {
    throw misuse_error(
        "capture: the memory of this offloader (parts::memory) goes back to an allocator that hands"
        " it to others, and a graph would go on writing to it; run this part of the step outside of"
        " graphs, or leave parts::memory out");
  }
  if (learner_.warming_up()) {
    if (opts_.policy == policy_kind::automatic) {
      throw misuse_error("capture: the automatic policy has no plan yet; run " +
                         std::to_string(opts_.timed_step) +
                         " steps without capture (--timed-step) and call end_step() after each");
    }
    throw misuse_error(
        "capture: the warm-up is not over, since no step has been run yet, or the latest was larger"
        " than any before it; run the same step once without capture and call end_step(), so that"
        " all memory is in place");
  }
  const bool launched = graphs_.truth != nullptr && agrees(layout(), *graphs_.truth);
  if (launched) {
    graphs_.truth = nullptr;
    store_.forget_gone();
  }
  // A graph that uses up or evicts what was fetched ahead of it would find it there at no launch.
  // What a capture before fetched, and has not run, stays: its graph runs before this one. So does
  // what a launch has reloaded ahead, as the next launch will.
  while (graphs_.truth == nullptr && (!launched || !idle_.empty()) && evict_one()) continue;
  auto before = std::make_shared<const memory_layout>(layout());
  // The same object where nothing differs, so that a launch need not compare.
  const bool same = graphs_.layout_before != nullptr && *graphs_.layout_before == *before;
  if (!same) graphs_.layout_before = std::move(before);
  dev_->begin_capture(origin);
  try {
    order_.begin_capture(origin, store_.copy_lanes());
  } catch (...) {
    abandon_capture(origin);
    throw;
  }
}

TIDEPOOL_INLINE std::unique_ptr<captured_graph> engine::end_capture(lane_id origin) {
  try {
    order_.join_back(origin, store_.copy_lanes());
  } catch (...) {
    abandon_capture(origin);
    throw;
  }
  try {
    auto graph = dev_->end_capture(origin);
    order_.end_capture();
    drop_orphans(false);
    learner_.captures();
    order_.made_graph();
    return graph;
  } catch (...) {
    leave_capture();
    throw;
  }
}

// The capture failed: nothing of it will ever run.
TIDEPOOL_INLINE void engine::abandon_capture(lane_id origin) noexcept {
  dev_->abandons_capture();
  try {
    static_cast<void>(dev_->end_capture(origin));
  } catch (...) {  // it was no longer valid; it is over all the same
  }
  leave_capture();
}

TIDEPOOL_INLINE void engine::leave_capture() noexcept {
  try {
    order_.end_capture();
  } catch (...) {  // the lanes could not meet; they do before the next call, as after a launch
    graphs_.replayed_on = static_cast<lane_id>(max_lanes);
    graphs_.replayed = true;
  }
  drop_orphans(true);
  forget_reloads();
  // What was saved or restored in it is not where its handles say.
  if (graphs_.truth == nullptr) graphs_.truth = graphs_.layout_before;
}

// What was reloaded ahead may have been so inside a capture that has not run: it is reloaded again.
TIDEPOOL_INLINE void engine::forget_reloads() noexcept {
  const auto evicted = counters_.evictions;
  try {
    while (evict_one()) continue;
  } catch (...) {  // nothing here calls the device
  }
  counters_.evictions = evicted;
}

// A handle goes while a capture takes no more events.
TIDEPOOL_INLINE bool engine::keep_orphan(storage& store) noexcept {
  if (!order_.capturing()) return false;
  try {
    graphs_.orphans.push_back(&store);
  } catch (...) {
    return false;
  }
  return true;
}

// Of a capture that failed nothing has run, and all lanes have met since: the memory is free. Of
// one that succeeded it belongs to the graph, and stays taken.
TIDEPOOL_INLINE void engine::drop_orphans(bool nothing_ran) noexcept {
  for (auto* store : std::exchange(graphs_.orphans, {})) {
    store->of_graph = !nothing_ran;
    forget_handle(*store, store_.offload_lane(store->place));
  }
}

TIDEPOOL_INLINE std::shared_ptr<const memory_layout> engine::layout_after_capture() {
  auto after = std::make_shared<const memory_layout>(layout());
  if (*after == *graphs_.layout_before) return graphs_.layout_before;
  if (graphs_.truth == nullptr) graphs_.truth = graphs_.layout_before;  // nothing has run
  return after;
}

TIDEPOOL_INLINE void engine::replay(captured_graph& graph,
                                    const std::shared_ptr<const memory_layout>& before,
                                    const std::shared_ptr<const memory_layout>& after,
                                    lane_id lane) {
  if (order_.capturing()) {
    throw misuse_error("launch: a capture is under way; end it before a graph is launched");
  }
  expect_layout(before);
  // Between launches on one stream the offloader's own streams get nothing; the trainer's may.
  order_.gather(lane, join_site::launch, !graphs_.replayed || graphs_.replayed_on != lane);
  dev_->replay(graph, lane);
  graphs_.truth = after;
  graphs_.destroyed_at_launch = store_.destroyed();
  store_.forget_gone();
  graphs_.replayed_on = lane;
  graphs_.replayed = true;
  if (!opts_.poison) return;
  try {  // what is given back is filled at once, by calls that do not meet the graph, too
    meet_after_launch();
  } catch (const error&) {  // it has been launched; the next call meets
  }
}

// Throws unless memory is as it was when a capture began. A set of graphs that was left in the
// middle may begin anew, where handles know of nothing else.
TIDEPOOL_INLINE void engine::expect_layout(const std::shared_ptr<const memory_layout>& before) {
  const bool as_wanted =
      graphs_.truth != nullptr && (graphs_.truth == before || *graphs_.truth == *before);
  if (as_wanted && graphs_.replayed && store_.destroyed() == graphs_.destroyed_at_launch) return;
  const auto handles = layout();
  if (as_wanted && all_alive(*before, handles, store_.gone())) return;
  const auto needed = layout(false);
  if (graphs_.truth != nullptr && !agrees(needed, *graphs_.truth))
    throw_layout(*before, *graphs_.truth);
  // Reloads of a graph that has not run are on the device by their handles alone.
  const bool reloaded = graphs_.truth == nullptr || agrees(handles, *graphs_.truth);
  if (reloaded && handles == *before) return;
  if (needed != *before) throw_layout(*before, reloaded ? handles : *graphs_.truth);
  forget_reloads();
}

TIDEPOOL_INLINE void engine::meet_graphs(bool captured) {
  if (captured != order_.capturing()) throw_mixed_capture(order_.capturing());
  if (graphs_.replayed) meet_after_launch();
}

TIDEPOOL_INLINE void engine::expect_truth_for(bool captured) {
  meet_graphs(captured);
  if (graphs_.truth != nullptr) expect_truth();
}

TIDEPOOL_INLINE void engine::settle() {
  if (graphs_.replayed) meet_after_launch();
  if (graphs_.truth != nullptr) expect_truth();
}

// Eager work comes after launches, on every stream.
[[gnu::cold]] TIDEPOOL_INLINE void engine::meet_after_launch() {
  order_.meet(join_site::after_launch);
  graphs_.replayed = false;
}

// What is eager would read memory that nothing has been written to.
[[gnu::cold]] TIDEPOOL_INLINE void engine::expect_truth() {
  if (order_.capturing()) return;
  if (const auto needed = layout(false); !agrees(needed, *graphs_.truth)) {
    throw misuse_error(
        "graphs: a tensor is not where its handle says (" + difference(needed, *graphs_.truth) +
        "): what was captured left it elsewhere and has not run, or the latest launch did. Launch"
        " the graphs of a step in the order of their capture, all of them before any other call, or"
        " give up the chunks and reset the handles of what was captured");
  }
  if (!agrees(layout(), *graphs_.truth)) forget_reloads();
  graphs_.truth = nullptr;
  store_.forget_gone();
}

}  // namespace tidepool::detail
