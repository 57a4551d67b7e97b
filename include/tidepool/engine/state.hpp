// The engine's part in state that lives on the host, and what brings a single storage back. The
// state counts as one save of its storage, so that its host copy stays.
#pragma once

#include <utility>

#include "tidepool/core/text.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/shortage.hpp"

namespace tidepool::inline v0_2_0::detail {

TIDEPOOL_INLINE auto engine::make_state(std::size_t bytes, std::string_view name) -> storage& {
  const auto subject = "host_state of " + std::string(name);
  settle();
  auto& store = store_.create(*this, bytes, bytes);
  try {
    if (!store_.place_copy(store, place_kind::host)) {
      const auto& host = *store_.at(place_kind::host).blocks;
      throw out_of_budget(subject + ": host_budget: " + text::size_text(bytes) +
                              " more do not fit; " + text::size_text(host.used()) + " of " +
                              text::size_text(host.budget()) + " are in use" +
                              in_brackets(counters_.host_budget) + ". Raise " +
                              raised("--host-budget", host.used() + bytes, host.budget()) +
                              ", or keep part of it on the device",
                          bytes, host.budget());
    }
  } catch (...) {
    store_.destroy(store);
    throw;
  }
  store.saves = 1;
  store.of_host_state = true;
  ++references;
  return store;
}

[[nodiscard]] inline span_label label_of_state(const storage& store, std::string_view name) {
  return {trace::span_kind::reload, name, -1, -1, store.bytes};
}

inline void require_away(const storage& store, const char* call, std::string_view name) {
  if (store.handles == 0) return;
  throw misuse_error(std::string(call) + " of " + std::string(name) +
                     ": it is on the device already; write_back or reset its buffer first");
}

TIDEPOOL_INLINE granted engine::create_state(storage& store, std::string_view name, lane_id lane) {
  require_away(store, "create", name);
  const told_subject subject(*dev_, name);
  forget_idle(store);
  if (store.on_device)
    take_back(store, store_.reload_lane(place_kind::host));  // fetched ahead and never used
  place_or_throw(store, lane, "create");
  return {share(store), lane};
}

// Starts the copy in of one storage; false when there is no device memory for it.
TIDEPOOL_INLINE bool engine::bring_one(storage& store, const span_label& label) {
  auto& from = store_.at(store.place);
  const auto copies = from.reload;
  store_.await_offload(store);
  if (!place_again(store, copies)) return false;
  try {
    const auto traced = trace_.begin(copies);
    store_.queue_in(store);
    store_.issue(from.in, copies);
    store.reloaded = order_.record(copies);
    trace_.end(traced, copies, label);
  } catch (...) {
    store_.settle(copies);
    store_.displace(store, {}, copies);
    throw;
  }
  return true;
}

// The same for `lane`, which waits for it; empty when there is no device memory for it. It may be
// there already, ahead of its use.
TIDEPOOL_INLINE granted engine::fetch_one(storage& store, lane_id lane, const span_label& label) {
  const bool was_there = static_cast<bool>(store.on_device);
  if (!take_or_evict([&] { return was_there || bring_one(store, label); })) return {};
  try {
    order_.join(lane, store.reloaded, join_site::consumer);
  } catch (...) {  // what was fetched ahead may stay so
    if (!was_there) take_back(store, store_.reload_lane(store.place));
    throw;
  }
  forget_idle(store);
  hand_to(store, lane);
  return {share(store), lane};
}

TIDEPOOL_INLINE bool engine::prefetch_state(storage& store, std::string_view name) {
  if (store.on_device) return false;
  const told_subject subject(*dev_, name);
  settle();
  idle_.make_room();
  store_.budget().keep();
  if (!bring_one(store, label_of_state(store, name))) return false;
  counters_.state_fetched += store.bytes;
  store.idle = idle_.push_back(&store);
  return true;
}

TIDEPOOL_INLINE granted engine::fetch_state(storage& store, std::string_view name, lane_id lane) {
  require_away(store, "fetch", name);
  const told_subject subject(*dev_, name);
  const auto more = store.on_device ? 0 : store.bytes;
  auto here = fetch_one(store, lane, label_of_state(store, name));
  if (here.store == nullptr) {
    throw_out_of_device(store.bytes, "fetch of " + std::string(name), nullptr);
  }
  counters_.state_fetched += more;
  return here;
}

// Forward reads what a group saved; it is held until it is given up. The group is committed as
// before, and its restore takes the handle full.
TIDEPOOL_INLINE granted engine::read_again(chunk_state& chunk, module_id module, int layer,
                                           std::size_t argument, lane_id lane) {
  if (chunk.info.release) refuse_released("load", chunk, module, layer);
  const auto& name = names_[static_cast<std::size_t>(module)];
  const told_subject subject(*dev_, name, layer, chunk.info.microbatch);
  const auto& which = chunk.groups[waiting_group(chunk, module, layer, "load")];
  auto& store = *chunk.saved_of(which)[argument].store;
  auto& count = counters_.modules[static_cast<std::size_t>(module)];
  auto here = fetch_one(
      store, lane, {trace::span_kind::reload, name, layer, chunk.info.microbatch, store.bytes});
  if (here.store == nullptr) {
    throw_out_of_device(store.bytes, "load of a tensor of " + name_of_group(chunk, module, layer),
                        store.source);
  }
  count.bytes_reloaded += store.bytes;
  store_.at(store.place).bytes_reloaded += store.bytes;
  if (recorder_ == nullptr) return here;
  recorder_->copied(store_.reload_lane(store.place));
  if (!learner_.measuring()) learner_.shapes_vary();  // no event tells of it
  return here;
}

TIDEPOOL_INLINE void engine::write_state(storage& store, std::string_view name,
                                         handle_base& changed, lane_id lane, bool& written) {
  if (changed.store_ != &store) {
    throw misuse_error("write_back of " + std::string(name) +
                       ": this is not the buffer that its create or fetch returned");
  }
  const told_subject subject(*dev_, name);
  const auto copies = store_.offload_lane(place_kind::host);
  if (order_.capturing() && !written) {  // a capture that fails would leave it without contents
    throw misuse_error("write_back of " + std::string(name) +
                       ": the first contents are written inside a capture; write them once before");
  }
  const auto ready = order_.record(lane);
  note_use(store, lane, ready);  // now, since it may fail
  bool copying = false;
  try {
    order_.join(copies, ready, join_site::producer);
    order_.join(copies, store.reloaded, join_site::host_reuse);  // it may have read the host copy
    const auto traced = trace_.begin(copies);
    copying = !order_.capturing();
    auto& host = store_.at(place_kind::host);
    store_.queue_out(store, store, host);
    store_.issue(host.out, copies);
    store.offloaded = order_.record(copies);
    trace_.end(traced, copies, {trace::span_kind::offload, name, -1, -1, store.bytes});
  } catch (...) {
    store_.settle(copies);
    if (copying) written = false;  // of some pieces the host has the old, of some the new
    throw;
  }
  note_use(store, lane, store.offloaded);
  // The copy out stands for the copy in as well, behind which it is.
  store.reloaded = {};
  written = true;
  counters_.state_written += store.bytes;
  store_.note_group(store.bytes);
  changed.store_ = nullptr;
  forget_handle(store, lane);
}

TIDEPOOL_INLINE void engine::drop_state(storage& store) noexcept {
  bool settled = true;
  try {
    if (graphs_.replayed) meet_after_launch();
  } catch (...) {  // no event, so that the memory stays taken, as in drop_quietly
    settled = false;
  }
  store.of_host_state = false;
  if (settled) forget_save(store);
  release(this);
}

}  // namespace tidepool::detail
