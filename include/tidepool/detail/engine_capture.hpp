// The engine under stream capture: a graph repeats the copies that were issued while it was made.
#pragma once

#include <sstream>

#include "tidepool/engine.hpp"

namespace tidepool::detail {

inline std::string address_of(const void* pointer) {
  std::ostringstream text;
  text << pointer;
  return text.str();
}

// Where every storage lies. A graph knows addresses, not handles, so it may run only where this is
// as it was when its capture began, and leaves it as it was when the capture ended.
template <device Device>
memory_layout engine<Device>::layout() const {
  memory_layout result;
  store_.for_each([&](const storage& store) {
    result.push_back({&store, store.on_device.data, store.on_host.data, store.bytes});
  });
  return result;
}

template <device Device>
void engine<Device>::begin_capture(lane_id origin) {
  if (store_.order().capturing()) throw misuse_error("capture: another capture is under way");
  if (store_.trace().on()) {
    throw misuse_error("capture: a trace is being recorded; finish_trace() first");
  }
  if (warming_up()) {
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
  // A graph that uses up what was fetched ahead of it would find it there at no launch. What the
  // capture before fetched stays: its graph runs before this one.
  while (unlaunched_ == nullptr && !idle_.empty() && evict_one()) continue;
  layout_before_ = std::make_shared<const memory_layout>(layout());
  if (layout_now_ != nullptr && *layout_now_ == *layout_before_) layout_before_ = layout_now_;
  dev_->begin_capture(store_.order().stream(origin));
  try {
    store_.order().begin_capture(origin, {store_.offload_lane(), store_.reload_lane()});
  } catch (...) {
    abandon_capture(origin);
    throw;
  }
}

template <device Device>
auto engine<Device>::end_capture(lane_id origin) {
  auto& order = store_.order();
  try {
    order.join_back(origin, {store_.offload_lane(), store_.reload_lane()});
  } catch (...) {
    abandon_capture(origin);
    throw;
  }
  try {
    auto graph = dev_->end_capture(order.stream(origin));
    order.end_capture();
    drop_orphans(false);
    captured_ = true;
    return graph;
  } catch (...) {
    leave_capture();
    throw;
  }
}

// The capture failed: nothing of it will ever run.
template <device Device>
void engine<Device>::abandon_capture(lane_id origin) noexcept {
  try {
    static_cast<void>(dev_->end_capture(store_.order().stream(origin)));
  } catch (...) {  // it was no longer valid; it is over all the same
  }
  leave_capture();
}

template <device Device>
void engine<Device>::leave_capture() noexcept {
  try {
    store_.order().end_capture();
  } catch (...) {  // the lanes could not meet; they do before the next call, as after a launch
    layout_now_ = nullptr;
    replayed_on_ = static_cast<lane_id>(max_lanes);
    replayed_ = true;
  }
  drop_orphans(true);
  // What was reloaded ahead may have been so inside the capture: its copy will never run.
  const auto evicted = counters_.evictions;
  try {
    while (evict_one()) continue;
  } catch (...) {  // nothing here calls the device
  }
  counters_.evictions = evicted;
}

// A handle goes while a capture takes no more events.
template <device Device>
bool engine<Device>::keep_orphan(storage& store) noexcept {
  if (!store_.order().capturing()) return false;
  try {
    orphans_.push_back(&store);
  } catch (...) {
    return false;
  }
  return true;
}

// Of a capture that failed nothing has run, and all lanes have met since: the memory is free. Of
// one that succeeded it belongs to the graph, and stays taken.
template <device Device>
void engine<Device>::drop_orphans(bool nothing_ran) noexcept {
  for (auto* store : std::exchange(orphans_, {})) {
    store->of_graph = !nothing_ran;
    forget_handle(*store, store_.offload_lane());
  }
}

template <device Device>
std::shared_ptr<const memory_layout> engine<Device>::layout_after_capture() {
  layout_now_ = std::make_shared<const memory_layout>(layout());
  if (*layout_now_ == *layout_before_) {
    layout_now_ = layout_before_;
  } else if (unlaunched_ == nullptr) {
    unlaunched_ = layout_before_;
  }
  return layout_now_;
}

template <device Device>
template <class Graph>
void engine<Device>::replay(Graph& graph, const std::shared_ptr<const memory_layout>& before,
                            const std::shared_ptr<const memory_layout>& after, lane_id lane) {
  if (store_.order().capturing()) {
    throw misuse_error("launch: a capture is under way; end it before a graph is launched");
  }
  if (!replayed_ || layout_now_ == nullptr) {
    layout_now_ = std::make_shared<const memory_layout>(layout());
  }
  if (layout_now_ != before && *layout_now_ != *before) throw_layout(*before, *layout_now_);
  auto& order = store_.order();
  if (!replayed_ || replayed_on_ != lane) order.gather(lane, join_site::launch);
  dev_->replay(graph, order.stream(lane));
  layout_now_ = after;
  replayed_on_ = lane;
  replayed_ = true;
}

// Eager work comes after launches: what the graphs left must be what the handles say.
template <device Device>
void engine<Device>::settle_replays() {
  if (!replayed_) return;
  if (layout_now_ != nullptr) {
    const auto eager = layout();
    if (eager != *layout_now_) throw_layout(eager, *layout_now_);
  }
  store_.order().meet(join_site::after_launch);
  replayed_ = false;
}

// Handles tell of what a graph will have done, until captures after it bring back what there was:
// what is eager would read memory that nothing has been written to.
template <device Device>
[[gnu::cold]] void engine<Device>::expect_nothing_captured() {
  const auto now = layout();
  const bool as_before = std::ranges::all_of(now, [&](const storage_place& each) {
    return std::ranges::find(*unlaunched_, each) != unlaunched_->end();
  });
  if (!as_before) {
    throw misuse_error(
        "capture: what was captured left tensors elsewhere than they were, and has not run; capture"
        " the rest of the step as well and launch the graphs in that order, before any other call,"
        " or give up its chunks and handles");
  }
  unlaunched_ = nullptr;
}

template <device Device>
void engine<Device>::throw_mixed_capture() {
  throw misuse_error(
      store_.order().capturing()
          ? "capture: this stream takes no part in the capture under way; make it wait for an event"
            " of the captured stream first, or end the capture"
          : "this stream is being captured, but not by the offloader, so the copies would escape"
            " the graph; capture with offloader::capture, or commit after the graph has been "
            "launched");
}

template <device Device>
void engine<Device>::throw_layout(const memory_layout& wanted, const memory_layout& found) const {
  const auto other = std::find_if(wanted.begin(), wanted.end(), [&](const auto& each) {
    return std::find(found.begin(), found.end(), each) == found.end();
  });
  std::string which = "a tensor is alive that was not";
  if (other != wanted.end()) {
    which = "a tensor of " + std::to_string(other->bytes) + " bytes was " +
            (other->device == nullptr ? "away" : "on the device at " + address_of(other->device)) +
            " and is not now";
  }
  throw misuse_error(
      "launch: the memory is not as it was when this graph was captured (" + which +
      "). Launch the graphs of a step in the order of their capture, all of them before any other"
      " call, and reset every handle that was allocated inside");
}

}  // namespace tidepool::detail
