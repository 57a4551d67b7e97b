// Where the memory of an offloader comes from, as its options say.
#pragma once

#include <memory>
#include <string>

#include "tidepool/device/allocators.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/arena.hpp"
#include "tidepool/memory/backing_file.hpp"
#include "tidepool/memory/pool.hpp"
#include "tidepool/memory/slots.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_2_0::detail {

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
template <device Device>
[[nodiscard]] std::unique_ptr<page_allocator> make_host_pages(Device& dev, const options& opts) {
  if constexpr (requires { dev.why_not(opts.host_memory); }) {
    if (const std::string reason = dev.why_not(opts.host_memory); !reason.empty()) {
      throw option_error("tidepool: host_memory: this machine does not have the kind: " + reason +
                         "; take --host-memory out, or give --host-memory=pinned");
    }
  }
  return std::make_unique<host_allocator<Device>>(dev,
                                                  host_memory{opts.host_memory, opts.host_bind});
}

// The same of a neighbour's memory.
template <device Device>
[[nodiscard]] std::unique_ptr<page_allocator> make_peer_pages(Device& dev, const options& opts) {
  std::string reason;
  if constexpr (peer_device<Device>) {
    reason = dev.why_no_peer(opts.peer_device);
    if (reason.empty()) return std::make_unique<peer_allocator<Device>>(dev, opts.peer_device);
  } else {
    reason = "a device of the kind " + std::string(Device::name) + " has no neighbours";
  }
  throw option_error("tidepool: places: the memory of device " + std::to_string(opts.peer_device) +
                     " (--peer-device) cannot be had: " + reason +
                     "; name another device, or give --places=host");
}

// A file of the system's, unless the device has one of its own.
template <device Device>
[[nodiscard]] std::unique_ptr<backing_file> make_backing_file(Device& dev, const options& opts) {
  if constexpr (requires { dev.open_file(opts.file_path); }) {
    return dev.open_file(opts.file_path);
  } else {
    return open_backing_file(opts.file_path);
  }
}

}  // namespace tidepool::detail
