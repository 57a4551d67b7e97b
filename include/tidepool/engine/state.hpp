// The engine's part in state that lives on the host. The state counts as one save of its storage,
// so that the copy on the host stays.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tidepool/core/linkage.hpp"
#include "tidepool/core/rollback.hpp"
#include "tidepool/core/text.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/shortage.hpp"

namespace tidepool::inline v0_3_0::detail {

struct state_calls {
  engine& of;

  [[nodiscard]] storage& make(std::size_t bytes, std::string_view name);
  [[nodiscard]] granted create(storage& store, std::string_view name, lane_id lane);
  bool prefetch(storage& store, std::string_view name);
  [[nodiscard]] granted fetch(storage& store, std::string_view name, lane_id lane);
  // `written` tells that the state has contents.
  void write(storage& store, std::string_view name, handle_base& changed, lane_id lane,
             bool& written);
  void drop(storage& store) noexcept;
};

#if TIDEPOOL_DEFINITIONS

TIDEPOOL_INLINE auto state_calls::make(std::size_t bytes, std::string_view name) -> storage& {
  const auto subject = "host_state of " + std::string(name);
  of.pass_gate();
  auto& store = of.store_.create(of, bytes, bytes);
  rollback unmade([&]() noexcept { of.store_.destroy(store); });
  if (!of.store_.place_copy(store, place_kind::host)) {
    const auto& host = *of.store_.at(place_kind::host).blocks;
    throw out_of_budget(
        subject + ": host_budget: " + text::size_text(bytes) + " more do not fit; " +
            text::size_text(host.used()) + " of " + text::size_text(host.budget()) + " are in use" +
            in_brackets(of.counters_.host_budget) + ". Raise " +
            raised("--host-budget", host, bytes) + ", or keep part of it on the device",
        bytes, host.budget());
  }
  unmade.keep();
  store.saves = 1;
  store.is.of_host_state = true;
  of.retain();
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

TIDEPOOL_INLINE granted state_calls::create(storage& store, std::string_view name, lane_id lane) {
  require_away(store, "create", name);
  const told_subject subject(*of.dev_, name);
  of.forget_idle(store);
  if (store.here.memory)
    of.take_back(store, of.store_.reload_lane(place_kind::host));  // fetched ahead and never used
  of.place_or_throw(store, lane, "create");
  return {of.share(store), lane};
}

TIDEPOOL_INLINE bool state_calls::prefetch(storage& store, std::string_view name) {
  if (store.here.memory) return false;
  const told_subject subject(*of.dev_, name);
  of.pass_gate();
  of.idle_.make_room();
  of.store_.budget().keep();
  if (!of.bring_one(store, label_of_state(store, name))) return false;
  of.counters_.state_fetched += store.bytes;
  store.idle = of.idle_.push_back(&store);
  return true;
}

TIDEPOOL_INLINE granted state_calls::fetch(storage& store, std::string_view name, lane_id lane) {
  require_away(store, "fetch", name);
  const told_subject subject(*of.dev_, name);
  const auto more = store.here.memory ? 0 : store.bytes;
  auto here = of.fetch_one(store, lane, label_of_state(store, name));
  if (here.store == nullptr) {
    of.throw_out_of_device(store.bytes, "fetch of " + std::string(name), nullptr);
  }
  of.counters_.state_fetched += more;
  return here;
}

TIDEPOOL_INLINE void state_calls::write(storage& store, std::string_view name, handle_base& changed,
                                        lane_id lane, bool& written) {
  if (changed.store_ != &store) {
    throw misuse_error("write_back of " + std::string(name) +
                       ": this is not the buffer that its create or fetch returned");
  }
  const told_subject subject(*of.dev_, name);
  const auto copies = of.store_.offload_lane(place_kind::host);
  if (of.order_.capturing() && !written) {  // a failure would leave the state without contents
    throw misuse_error("write_back of " + std::string(name) +
                       ": the first contents are written inside a capture; write them once before");
  }
  const auto ready = of.order_.record(lane);
  of.note_use(store, lane, ready);  // noted before the copy, which may fail
  auto& host = of.store_.at(place_kind::host);
  rollback settled([&]() noexcept { of.store_.settle(copies); });
  of.order_.join(copies, ready, join_site::producer);
  of.order_.join(copies, store.here.written,
                 join_site::host_reuse);  // the reload may have read the host copy
  // After a copy that failed, the host has old contents in some pieces and new ones in others.
  if (!of.order_.capturing()) written = false;
  store.there.written =
      of.store_.carry(host.out, copies, {trace::span_kind::offload, name, -1, -1, store.bytes},
                      [&] { of.store_.queue_out(store, store, host); });
  settled.keep();
  of.note_use(store, lane, store.there.written);
  // The copy out also stands for the copy in, because it comes after it.
  store.here.written = {};
  written = true;
  of.counters_.state_written += store.bytes;
  of.store_.note_group(store.bytes);
  changed.store_ = nullptr;
  of.forget_handle(store, lane);
}

TIDEPOOL_INLINE void state_calls::drop(storage& store) noexcept {
  bool settled = true;
  try {
    of.meet_graphs();
  } catch (...) {  // without an event the memory stays taken, as in `drop_quietly`
    settled = false;
  }
  store.is.of_host_state = false;
  if (settled) of.forget_save(store);
  engine::release(&of);
}

#endif

}  // namespace tidepool::detail
