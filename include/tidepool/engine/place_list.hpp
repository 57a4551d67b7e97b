// The places of an offloader, and the streams to and from each.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/engine/offload_place.hpp"
#include "tidepool/engine/sources.hpp"
#include "tidepool/memory/lanes.hpp"
#include "tidepool/memory/pinned.hpp"
#include "tidepool/memory/tracer.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_2_0::detail {

// The host is always among them: state lives there. Plain data behind its constructor, so that a
// commit need not come by here.
template <device Device>
struct place_list {
  place_list(Device& dev, lanes<Device>& order, tracer<Device>& trace, const options& opts) {
    all[0]
        .emplace(dev, order)
        .open(make_host_pages(dev, opts), order,
              {opts.host_step, host_budget(opts), rounding::none});
    for (const auto kind : opts.places) open(dev, order, kind, opts);
    std::vector<std::string> names;
    for (std::size_t k = 0; k < place_kinds; ++k) {
      if (!all[k]) continue;
      copy_lanes.push_back(offload_lanes[k] = all[k]->offload);
      copy_lanes.push_back(reload_lanes[k] = all[k]->reload);
      // Those of the host have no name behind them.
      const auto of = k == 0 ? std::string() : " " + std::string(name_of(place_kind(k)));
      names.insert(names.end(), {"offload" + of, "reload" + of});
    }
    if (copy_lanes.size() > 2) trace.name_copy_lanes(std::move(names));
  }

  void open(Device& dev, lanes<Device>& order, place_kind which, const options& opts) {
    if (which == place_kind::host) return;
    auto& place = all[static_cast<std::size_t>(which)].emplace(dev, order);
    if (which == place_kind::peer) {
      // At once, if it can be had: in regions, memory would be in pieces of what came first.
      const auto budget = opts.peer_budget.value_or(0);
      place.open_peer(make_peer_pages(dev, opts), order, {budget, budget, rounding::none},
                      opts.peer_device);
    } else {
      place.open_file(dev, order, opts, make_backing_file(dev, opts), make_host_pages(dev, opts));
    }
  }

  std::array<std::optional<offload_place<Device>>, place_kinds> all;  // by kind
  std::array<lane_id, place_kinds> offload_lanes{};
  std::array<lane_id, place_kinds> reload_lanes{};
  std::vector<lane_id> copy_lanes;  // of all places; the host's come first
};

}  // namespace tidepool::detail
