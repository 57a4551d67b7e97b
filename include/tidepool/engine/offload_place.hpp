// A place that groups are offloaded to: a link, a budget, and blocks with fences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tidepool/core/join_site.hpp"
#include "tidepool/core/page_allocator.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/memory/lanes.hpp"
#include "tidepool/memory/pool.hpp"
#include "tidepool/options.hpp"
#include "tidepool/trace/counters.hpp"

namespace tidepool::inline v0_2_0::detail {

// Plain data; the rules are in storages.hpp, and are the same for all places. Whoever owns it
// settles both lanes before it goes.
template <device Device>
struct offload_place {
  offload_place(Device& dev, lanes<Device>& order)
      : out_stream(dev.make_stream()),
        in_stream(dev.make_stream()),
        offload(order.of(out_stream.ref())),
        reload(order.of(in_stream.ref())) {}

  // Takes no memory yet.
  void open(std::unique_ptr<page_allocator> from, const clocks& order, const pool_limits& limits) {
    pages = std::move(from);
    blocks.emplace(*pages, order, limits);
    blocks->allow_in_flight(limits.step);
  }
  // The same for memory of a neighbour.
  void open_peer(std::unique_ptr<page_allocator> from, const clocks& order,
                 const pool_limits& limits, int device) {
    name = "peer " + std::to_string(device);
    out = copy_direction::device_to_peer;
    in = copy_direction::peer_to_device;
    reuse = join_site::peer_reuse;
    open(std::move(from), order, limits);
  }

  [[nodiscard]] trace::place_counters counted() const {
    return {name, bytes_offloaded,      bytes_reloaded, blocks->budget(), blocks->reserved(),
            peak, blocks->allocations()};
  }

  std::string name = "host";
  copy_direction out = copy_direction::device_to_host;
  copy_direction in = copy_direction::host_to_device;
  join_site reuse = join_site::host_reuse;  // of a block, after the reload out of it
  typename Device::stream out_stream;
  typename Device::stream in_stream;
  lane_id offload;
  lane_id reload;
  std::unique_ptr<page_allocator> pages;
  std::optional<pool> blocks;
  std::size_t peak = 0;  // bytes in use
  std::uint64_t bytes_offloaded = 0;
  std::uint64_t bytes_reloaded = 0;
};

}  // namespace tidepool::detail
