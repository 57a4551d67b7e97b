// The engine's part in recomputing: memory that forward gives up and backward asks for again.
#pragma once

#include "tidepool/engine.hpp"

namespace tidepool::detail {

template <device Device>
void engine<Device>::discard(chunk_state& chunk, std::size_t what, int layer, lane_id lane,
                             std::span<buffer<Device>* const> tensors) {
  const auto refused = [&](const std::string& why) {
    refuse_recompute("discard", chunk, what, layer, why);
  };
  if (chunk.forward_done()) {
    refused("the chunk's forward pass has ended; discard before end_forward");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto* store = tensors[i]->store_;
    const auto which = "argument " + std::to_string(i + 1);
    if (store == nullptr) refused(which + " holds no memory; was it discarded or moved before?");
    if (store->owner != this) refused(which + " belongs to another offloader");
    if (std::find(tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(i), tensors[i]) !=
        tensors.begin() + static_cast<std::ptrdiff_t>(i)) {
      refused(which + " is given twice");
    }
    if (store->resident) refused(which + " belongs to a host_state; write_back or reset it");
    if (store->saves > 0) {
      refused(which +
              " was committed too; commit what backward loads and discard what it computes,"
              " not both");
    }
    if (store->handles > 1) {
      refused(which +
              " has another owner (share() or a view), so that its memory would stay; reset"
              " that one first");
    }
  }
  auto& list = chunk.discarded();
  const auto call = list.empty() ? 0 : list.back().call + 1;
  list.reserve(list.size() + tensors.size());
  static_cast<void>(arrive(lane));
  const auto used = store_.order().record(lane);
  auto& count = counters_.recomputed[what];
  for (auto* each : tensors) {
    auto& store = *std::exchange(each->store_, nullptr);
    each->part_ = {};
    if (!chunk.info().forward_only) {
      list.push_back({call, what, layer, store.bytes, store.elements, store.source});
      ++count.tensors;
      count.bytes += store.bytes;
    }
    store.last_use.add(used);
    forget_handle(store, lane);
  }
}

// What the latest call discarded that was not computed again; empty when there is none.
template <device Device>
auto engine<Device>::discarded_last(chunk_state& chunk, std::size_t what, int layer) {
  auto& list = chunk.discarded();
  const auto newest = std::find_if(list.rbegin(), list.rend(), [&](const auto& each) {
    return each.what == what && each.layer == layer;
  });
  const auto last = newest.base();  // one behind it
  auto first = last;
  while (first != list.begin() && (first - 1)->call == newest->call) --first;
  return std::pair(first, last);
}

template <device Device>
bool engine<Device>::begin_recompute(chunk_state& chunk, std::size_t what, int layer,
                                     stream_ref stream, std::span<buffer<Device>* const> tensors) {
  if (chunk.info().forward_only) return false;
  const auto [first, last] = discarded_last(chunk, what, layer);
  const auto count = static_cast<std::size_t>(last - first);
  if (count != tensors.size()) {
    refuse_recompute("recompute", chunk, what, layer,
                     count == 0
                         ? "nothing of it was discarded, or it was computed again before"
                         : std::to_string(tensors.size()) + " arguments, but " +
                               std::to_string(count) + " were discarded; pass the same, in order");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto before = tensors.begin() + static_cast<std::ptrdiff_t>(i);
    const bool twice = std::find(tensors.begin(), before, tensors[i]) != before;
    if (!*tensors[i] && !twice) continue;
    refuse_recompute("recompute", chunk, what, layer,
                     "argument " + std::to_string(i + 1) +
                         (twice ? " is given twice"
                                : " holds other memory; reset it before its tensor is computed"
                                  " again"));
  }
  begin_backward(chunk);
  try {
    for (auto each = first; each != last; ++each) {
      *tensors[static_cast<std::size_t>(each - first)] =
          allocate(each->bytes, each->elements, stream, each->source);
    }
  } catch (...) {
    give_up(tensors);
    throw;
  }
  return true;
}

template <device Device>
void engine<Device>::end_recompute(chunk_state& chunk, std::size_t what, int layer) noexcept {
  const auto [first, last] = discarded_last(chunk, what, layer);
  chunk.discarded().erase(first, last);
}

template <device Device>
void engine<Device>::give_up(std::span<buffer<Device>* const> tensors) noexcept {
  for (auto* each : tensors) *each = {};
}

template <device Device>
[[gnu::cold]] void engine<Device>::refuse_recompute(const char* call, const chunk_state& chunk,
                                                    std::size_t what, int layer,
                                                    const std::string& why) const {
  throw misuse_error(std::string(call) + " of " + opts_.recompute_modules[what] + " of layer " +
                     std::to_string(layer) + ", microbatch " +
                     std::to_string(chunk.info().microbatch) + ": " + why);
}

}  // namespace tidepool::detail
