// Where the memory of an offloader comes from, as its options say.
#pragma once

#include <memory>
#include <string>

#include "tidepool/core/page_allocator.hpp"
#include "tidepool/device/hardware.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/arena.hpp"
#include "tidepool/memory/pool.hpp"
#include "tidepool/memory/slots.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail {

// Memory of the device itself.
[[nodiscard]] inline std::unique_ptr<block_source> make_device_source(page_allocator& pages,
                                                                      const clocks& order,
                                                                      const options& opts) {
  switch (opts.memory) {
    case memory_kind::arena:
      return std::make_unique<arena>(
          pages, order, opts.device_budget.value());  // options without one are refused
    case memory_kind::slots:
      return std::make_unique<slots>(pages, opts.slots);
    case memory_kind::pool:
      break;
  }
  return std::make_unique<pool>(pages, order,
                                pool_limits{opts.device_step, opts.device_budget.value_or(0)});
}

// Refused where the machine does not have it, with the reason.
[[nodiscard]] inline std::unique_ptr<page_allocator> make_host_pages(hardware& dev,
                                                                     const options& opts) {
  if (const auto reason = dev.why_not(opts.host_memory); !reason.empty()) {
    throw option_error("tidepool: host_memory: this machine does not have the kind: " + reason +
                       "; take --host-memory out, or give --host-memory=pinned");
  }
  return dev.host_pages({opts.host_memory, opts.host_bind});
}

// The same of a neighbour's memory.
[[nodiscard]] inline std::unique_ptr<page_allocator> make_peer_pages(hardware& dev,
                                                                     const options& opts) {
  const auto reason = dev.why_no_peer(opts.peer_device);
  if (reason.empty()) return dev.peer_pages(opts.peer_device);
  throw option_error("tidepool: places: the memory of device " + std::to_string(opts.peer_device) +
                     " (--peer-device) cannot be had: " + reason +
                     "; name another device, or give --places=host");
}

}  // namespace tidepool::detail
