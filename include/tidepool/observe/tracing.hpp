/// The traces of an offloader. `offloader::start_trace` and `finish_trace` need this header.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/core/linkage.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/observe/tracer.hpp"

namespace tidepool::inline v0_3_0::detail {

// Begins a trace; `origin` points to a stream of the engine's device, or is null. The tracer stays
// from trace to trace, because spans may outlive a trace, and its events are used again.
void begin_trace(engine& of, std::string title, const void* origin);
// Ends the trace; returns an empty record if no trace was begun.
[[nodiscard]] trace::record end_trace(engine& of);

#if TIDEPOOL_DEFINITIONS
TIDEPOOL_INLINE void begin_trace(engine& of, std::string title, const void* origin) {
  if (of.capturing()) {
    throw misuse_error(
        "start_trace: a capture is under way; start the trace before it or behind it");
  }
  auto& store = of.memory();
  auto& slot = of.tracer_slot();
  if (slot == nullptr) slot = std::make_unique<tracer>(of.device(), store.copy_lanes());
  auto& listening = static_cast<tracer&>(*slot);
  of.heard().remove(listening);
  listening.start(std::move(title), store.live(), store.live_without(), origin);
  of.heard().add(listening);
}

TIDEPOOL_INLINE trace::record end_trace(engine& of) {
  if (!of.tracing()) return {};
  auto& store = of.memory();
  auto& listening = static_cast<tracer&>(*of.tracer_slot());
  of.heard().remove(listening);
  std::vector<std::string> names(store.order().count());
  for (const auto kind : {place_kind::host, place_kind::peer, place_kind::file}) {
    if (!store.has(kind)) continue;
    const auto place = kind == place_kind::host ? "" : " " + std::string(name_of(kind));
    names[index_of(store.at(kind).unpack)] = "unpack" + place;
    names[index_of(store.offload_lane(kind))] = "offload" + place;
    names[index_of(store.reload_lane(kind))] = "reload" + place;
  }
  auto result = listening.finish(std::move(names), of.names());
  result.budget = of.settings().device_budget.value_or(0);
  return result;
}
#endif

}  // namespace tidepool::detail
