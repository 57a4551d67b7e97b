// The bodies of graph_gate.hpp.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "tidepool/core/rollback.hpp"
#include "tidepool/engine/graph_gate.hpp"
#include "tidepool/engine/misuse.hpp"

namespace tidepool::inline v0_3_0::detail {

[[noreturn, gnu::cold]] inline void throw_layout(const memory_layout& wanted,
                                                 const memory_layout& found) {
  throw misuse_error(
      "launch: the memory is not as it was when this graph was captured (" +
      difference(wanted, found) +
      "). Launch the graphs of a step in the order of their capture, all of them before any other"
      " call, and reset every handle that was allocated inside");
}

TIDEPOOL_INLINE memory_layout graph_gate::layout(bool reloads) const {
  memory_layout result;
  of_.store_.for_each([&](const storage& store) {
    if (store.bytes == 0) return;  // it has no address that a graph could have
    const bool again = store.handles == 0 && store.there.memory;
    result.push_back({store.number, again && !reloads ? nullptr : store.here.memory.data,
                      store.there.memory.data, store.bytes, !store.is.captured});
  });
  std::ranges::sort(result, {}, &storage_place::number);
  return result;
}

// Throws if this offloader, or this step, cannot be captured.
[[gnu::cold]] TIDEPOOL_INLINE void graph_gate::expect_capturable() const {
  if (of_.tracing()) {
    throw misuse_error("capture: a trace is being recorded; finish_trace() first");
  }
  if (of_.store_.has(place_kind::file)) {
    throw misuse_error(
        "capture: groups may go to a file, which the host reads and writes, and a graph cannot ask"
        " it to; run this step outside of graphs, or take file:/path out of --places");
  }
  if (of_.store_.device_source().gives_back()) {
    throw misuse_error(
        "capture: the memory of this offloader (parts::memory) goes back to an allocator that hands"
        " it to others, and a graph would go on writing to it; run this part of the step outside of"
        " graphs, or leave parts::memory out");
  }
  if (of_.learner_.warming_up()) {
    if (of_.opts_.policy == policy_kind::automatic) {
      throw misuse_error(
          "capture: the automatic policy has no plan yet, or times steps for another; run steps"
          " without capture and call end_step() after each, until this call succeeds");
    }
    throw misuse_error(
        "capture: the warm-up is not over, since no step has been run yet, or the latest was larger"
        " than any before it; run the same step once without capture and call end_step()");
  }
}

TIDEPOOL_INLINE void graph_gate::begin(lane_id origin) {
  if (of_.order_.capturing()) throw misuse_error("capture: another capture is under way");
  expect_capturable();
  const bool launched = truth_ != nullptr && agrees(layout(), *truth_);
  if (launched) {
    truth_ = nullptr;
    of_.store_.forget_gone();
  }
  // Evicts tensors that were fetched ahead, because a graph that uses or evicts them would not find
  // them at a launch. Tensors that an earlier capture fetched stay, if it has not run, because its
  // graph runs before this one. Tensors that a launch reloaded ahead stay, because the next launch
  // reloads them, too.
  while (truth_ == nullptr && (!launched || !of_.idle_.empty()) && of_.evict_one()) continue;
  auto before = std::make_shared<const memory_layout>(layout());
  // An equal layout stays the same object, so that a launch compares pointers first.
  const bool same = before_ != nullptr && *before_ == *before;
  if (!same) before_ = std::move(before);
  to_lender_before_ = of_.store_.bytes_to_lender();
  if (of_.rows_ != nullptr) of_.rows_->begin_capture();
  of_.dev_->begin_capture(origin);
  rollback abandoned([&]() noexcept { abandon(origin); });
  of_.order_.begin_capture(origin, of_.store_.copy_lanes());
  abandoned.keep();
}

TIDEPOOL_INLINE recorded_graph graph_gate::end(lane_id origin) {
  {
    rollback abandoned([&]() noexcept { abandon(origin); });
    of_.order_.join_back(origin, of_.store_.copy_lanes());
    abandoned.keep();
  }
  rollback broken([&]() noexcept { leave(); });
  recorded_graph result{of_.dev_->end_capture(origin), before_};
  of_.order_.end_capture();
  drop_orphans(false);
  of_.learner_.captures();
  of_.order_.made_graph();
  broken.keep();
  if (of_.rows_ != nullptr) result.rows = of_.rows_->end_capture(true);
  result.to_lender = of_.store_.bytes_to_lender() != to_lender_before_;
  result.latest = of_.store_.latest();
  result.after = std::make_shared<const memory_layout>(layout());
  if (*result.after == *before_) {
    result.after = before_;
  } else if (truth_ == nullptr) {
    truth_ = before_;  // its work has not run
  }
  return result;
}

// Ends a capture that failed. Its work never runs.
TIDEPOOL_INLINE void graph_gate::abandon(lane_id origin) noexcept {
  of_.dev_->abandons_capture();
  try {
    static_cast<void>(of_.dev_->end_capture(origin));
  } catch (...) {  // the capture was no longer valid; it is over all the same
  }
  leave();
}

TIDEPOOL_INLINE void graph_gate::leave() noexcept {
  if (of_.rows_ != nullptr) of_.rows_->end_capture(false);
  try {
    of_.order_.end_capture();
  } catch (...) {  // the lanes could not meet; they do before the next call, as after a launch
    replayed_on_ = static_cast<lane_id>(max_lanes);
    replayed_ = true;
  }
  drop_orphans(true);
  forget_reloads();
  // Handles of tensors that were saved or restored in the capture are wrong, because its work has
  // not run.
  if (truth_ == nullptr) truth_ = before_;
}

// Evicts tensors that were reloaded ahead, maybe inside a capture that has not run. Later calls
// reload them again.
TIDEPOOL_INLINE void graph_gate::forget_reloads() noexcept {
  const auto evicted = of_.counters_.evictions;
  try {
    while (of_.evict_one()) continue;
  } catch (...) {  // nothing here calls the device
  }
  of_.counters_.evictions = evicted;
}

// Keeps a storage whose handle goes while the capture can record no more events.
TIDEPOOL_INLINE bool graph_gate::keep_orphan(storage& store) noexcept {
  if (!of_.order_.capturing()) return false;
  try {
    orphans_.push_back(&store);
  } catch (...) {
    return false;
  }
  return true;
}

// Drops the storages whose handles went. After a failed capture their memory is free, because its
// work has not run and all lanes have met since. After a capture that succeeded the memory belongs
// to the graph, and stays taken.
TIDEPOOL_INLINE void graph_gate::drop_orphans(bool nothing_ran) noexcept {
  for (auto* store : std::exchange(orphans_, {})) {
    store->is.of_graph = !nothing_ran;
    of_.forget_handle(*store, of_.store_.offload_lane(store->place));
  }
}

TIDEPOOL_INLINE void graph_gate::launch(const recorded_graph& graph, lane_id lane) {
  const auto* const lent = of_.store_.lent();
  if (graph.to_lender && lent != nullptr) lent->before_launch(*graph.before);
  if (of_.order_.capturing()) {
    throw misuse_error("launch: a capture is under way; end it before a graph is launched");
  }
  expect_layout(graph.before);
  if (of_.rows_ != nullptr) of_.rows_->before_launch(graph.rows);
  // Between launches on one stream only the trainer's streams can have got work, so that the
  // offloader's own streams need not be joined again.
  of_.order_.gather(lane, join_site::launch, !replayed_ || replayed_on_ != lane);
  of_.dev_->replay(*graph.content, lane);
  if (of_.rows_ != nullptr) of_.rows_->launched(graph.rows);
  truth_ = graph.after;
  destroyed_at_launch_ = of_.store_.destroyed();
  of_.store_.note_launch(graph.latest);
  of_.store_.forget_gone();
  replayed_on_ = lane;
  replayed_ = true;
  if (!of_.opts_.poison) return;
  try {  // poison fills released memory at once, even in calls that do not meet the graph
    meet_after_launch();
  } catch (const error&) {  // the graph has been launched; the next call meets it
  }
}

// Throws unless memory is as it was when a capture began. A set of graphs that was left in the
// middle may begin anew, if the handles agree with that layout.
TIDEPOOL_INLINE void graph_gate::expect_layout(const shared_layout& before) {
  const bool as_wanted = truth_ != nullptr && (truth_ == before || *truth_ == *before);
  if (as_wanted && replayed_ && of_.store_.destroyed() == destroyed_at_launch_) return;
  const auto handles = layout();
  if (as_wanted && all_alive(*before, handles, of_.store_.gone())) return;
  const auto needed = layout(false);
  if (truth_ != nullptr && !agrees(needed, *truth_)) throw_layout(*before, *truth_);
  // Tensors that a capture reloaded are on the device according to their handles, although its
  // graph may not have run.
  const bool reloaded = truth_ == nullptr || agrees(handles, *truth_);
  if (reloaded && handles == *before) return;
  if (needed != *before) throw_layout(*before, reloaded ? handles : *truth_);
  forget_reloads();
}

// Makes eager work on every stream wait for the launches.
[[gnu::cold]] TIDEPOOL_INLINE void graph_gate::meet_after_launch() {
  of_.order_.meet(join_site::after_launch);
  replayed_ = false;
}

// Throws if a tensor is not where its handle says, because eager work would read memory that was
// never written.
[[gnu::cold]] TIDEPOOL_INLINE void graph_gate::expect_truth() {
  if (of_.order_.capturing()) return;
  if (const auto needed = layout(false); !agrees(needed, *truth_)) {
    throw misuse_error(
        "graphs: a tensor is not where its handle says (" + difference(needed, *truth_) +
        "): what was captured left it elsewhere and has not run, or the latest launch did. Launch"
        " the graphs of a step in the order of their capture, all of them before any other call, or"
        " give up the chunks and reset the handles of what was captured");
  }
  if (!agrees(layout(), *truth_)) forget_reloads();
  truth_ = nullptr;
  of_.store_.forget_gone();
}

}  // namespace tidepool::detail
