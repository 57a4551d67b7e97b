// The device under both kinds of programs. In `explore_checked` it checks the order of accesses as
// it does for a user, so that two judges see every program: both must find a race in it, or
// neither.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tidepool/device/finding.hpp"
#include "tidepool/device/virtual.hpp"
#if defined(TIDEPOOL_EXPLORE_CHECKED)
#include "tidepool/device/checked.hpp"
#endif

namespace explore {

#if defined(TIDEPOOL_EXPLORE_CHECKED)
using base_device = tidepool::checked_device<tidepool::virtual_device>;
#else
using base_device = tidepool::virtual_device;
#endif

/// Tells a checked device that the host reads.
template <class Device>
void tell_read([[maybe_unused]] Device& dev, [[maybe_unused]] const void* data,
               [[maybe_unused]] std::size_t bytes, [[maybe_unused]] std::string_view what) {
  if constexpr (requires { dev.host_reads(data, bytes, what); }) dev.host_reads(data, bytes, what);
}

/// Whether the judges disagree, in words; `races` is what the recording says.
template <class Device>
[[nodiscard]] std::string disagreement([[maybe_unused]] const Device& dev,
                                       [[maybe_unused]] bool races) {
  if constexpr (requires { dev.findings(); }) {
    if (dev.findings().empty() == !races) return {};
    return races ? "the checked device missed the race"
                 : "the checked device alone: " + dev.report();
  } else {
    return {};
  }
}

/// The joins that the findings of a checked device name as missing, one bit each. A finding about a
/// capture stands for the join that it is.
template <class Device>
[[nodiscard]] std::uint32_t joins_named([[maybe_unused]] const Device& dev) {
  std::uint32_t named = 0;
  if constexpr (requires { dev.findings(); }) {
    const auto name = [&named](tidepool::join_site site) {
      named |= std::uint32_t{1} << static_cast<unsigned>(site);
    };
    for (const auto& each : dev.findings()) {
      if (each.missing) name(*each.missing);
      if (each.kind == tidepool::finding_kind::foreign_capture) name(tidepool::join_site::fork);
      if (each.kind == tidepool::finding_kind::not_joined) name(tidepool::join_site::join_back);
    }
  }
  return named;
}

}  // namespace explore
