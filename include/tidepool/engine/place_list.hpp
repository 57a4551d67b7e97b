// The places of an offloader, and the streams to and from each place.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tidepool/engine/offload_place.hpp"
#include "tidepool/engine/sources.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/lanes.hpp"
#include "tidepool/memory/pinned.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail {

// The host is always a place, because state lives there. Plain data after its constructor, so that
// a commit reads it without calls.
struct place_list {
  place_list(hardware& dev, lanes& order, const options& opts, file_opener file)
      : nearest(opts.places) {
    all[0].emplace(order).open(make_host_pages(dev, opts), order,
                               {opts.host_step, host_budget(opts), rounding::none});
    if (!opts.pack.empty()) all[0]->unpack = order.add_own();
    for (const auto kind : opts.places) open(dev, order, kind, opts, file);
    for (std::size_t k = 0; k < place_kinds; ++k) {
      if (all[k]) note_lanes(k);
    }
  }

  // Adds memory of another process, before all other places. If there was a loan before, the place
  // keeps its streams.
  void borrow(lanes& order, std::unique_ptr<loan> from) {
    constexpr auto peer = static_cast<std::size_t>(place_kind::peer);
    nearest.reserve(place_kinds);
    if (!all[peer]) {
      order.own_more(2, [&] { all[peer].emplace(order); });
      note_lanes(peer);
      nearest.insert(nearest.begin(), place_kind::peer);
    }
    all[peer]->open_loan(std::move(from), order);
  }

  void note_lanes(std::size_t kind) {
    copy_lanes.push_back(offload_lanes[kind] = all[kind]->offload);
    copy_lanes.push_back(reload_lanes[kind] = all[kind]->reload);
    if (all[kind]->unpack != all[kind]->reload) copy_lanes.push_back(all[kind]->unpack);
  }

  void open(hardware& dev, lanes& order, place_kind which, const options& opts, file_opener file) {
    if (which == place_kind::host) return;
    auto& place = all[static_cast<std::size_t>(which)].emplace(order);
    if (which == place_kind::peer) {
      // The budget is taken at once, if the neighbour has it, because memory taken in steps would
      // be in small regions.
      const auto budget = opts.peer_budget.value_or(0);
      place.open_peer(make_peer_pages(dev, opts), order, {budget, budget, rounding::none},
                      opts.peer_device);
    } else if (file == nullptr) {
      throw option_error(
          "tidepool: places: a file needs the way to it, and this offloader was given none;"
          " #include <tidepool/places/file.hpp> and construct it as offloader(dev, opts, {.file ="
          " tidepool::file_place()}), or take the file out of --places");
    } else {
      file(place, dev, order, opts);
    }
  }

  [[nodiscard]] bool has(place_kind which) const {
    return all[static_cast<std::size_t>(which)].has_value();
  }

  std::vector<place_kind> nearest;  // places that groups go to, the nearest first
  std::array<std::optional<offload_place>, place_kinds> all;  // by kind
  std::array<lane_id, place_kinds> offload_lanes{};
  std::array<lane_id, place_kinds> reload_lanes{};
  std::vector<lane_id> copy_lanes;  // lanes of all places, the host's first
};

}  // namespace tidepool::detail
