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

// The host is always among them: state lives there.
template <device Device>
class place_list {
 public:
  place_list(Device& dev, lanes<Device>& order, tracer<Device>& trace, const options& opts) {
    places_[0]
        .emplace(dev, order)
        .open(make_host_pages(dev, opts), order,
              {opts.host_step, host_budget(opts), rounding::none});
    for (const auto kind : opts.places) open(dev, order, kind, opts);
    std::vector<std::string> names;
    for (std::size_t k = 0; k < place_kinds; ++k) {
      if (!places_[k]) continue;
      lanes_.push_back(offload_lanes_[k] = places_[k]->offload);
      lanes_.push_back(reload_lanes_[k] = places_[k]->reload);
      // Those of the host have no name behind them.
      const auto of = k == 0 ? std::string() : " " + std::string(name_of(place_kind(k)));
      names.insert(names.end(), {"offload" + of, "reload" + of});
    }
    if (lanes_.size() > 2) trace.name_copy_lanes(std::move(names));
  }

  [[nodiscard]] lane_id offload_lane(place_kind to) const { return offload_lanes_[index_of(to)]; }
  [[nodiscard]] lane_id reload_lane(place_kind from) const { return reload_lanes_[index_of(from)]; }
  // Those of every place; the host's come first.
  [[nodiscard]] const std::vector<lane_id>& copy_lanes() const { return lanes_; }
  [[nodiscard]] bool has(place_kind which) const { return places_[index_of(which)].has_value(); }
  [[nodiscard]] offload_place<Device>& at(place_kind which) { return *places_[index_of(which)]; }
  [[nodiscard]] const offload_place<Device>& at(place_kind which) const {
    return *places_[index_of(which)];
  }

 private:
  static constexpr std::size_t index_of(place_kind which) {
    return static_cast<std::size_t>(which);
  }

  void open(Device& dev, lanes<Device>& order, place_kind which, const options& opts) {
    if (which == place_kind::host) return;
    auto& place = places_[index_of(which)].emplace(dev, order);
    if (which == place_kind::peer) {
      place.open_peer(make_peer_pages(dev, opts), order,
                      {opts.host_step, opts.peer_budget.value_or(0), rounding::none},
                      opts.peer_device);
    } else {
      place.open_file(dev, order, opts, make_backing_file(dev, opts), make_host_pages(dev, opts));
    }
  }

  std::array<std::optional<offload_place<Device>>, place_kinds> places_;  // by kind
  std::array<lane_id, place_kinds> offload_lanes_{};
  std::array<lane_id, place_kinds> reload_lanes_{};
  std::vector<lane_id> lanes_;  // of all places
};

}  // namespace tidepool::detail
