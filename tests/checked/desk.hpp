// A checked virtual device with streams, and kernels that say what they touch.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "rig.hpp"
#include "tidepool/device/checked.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool::test {

using checked = checked_device<virtual_device>;

/// Declare it before the offloader.
struct desk {
  explicit desk(const machine& model = {}) : dev(model) {
    dev.name_stream(compute.ref(), "compute");
    dev.name_stream(side.ref(), "side");
  }

  checked dev;
  checked::stream compute = dev.make_stream();
  checked::stream side = dev.make_stream();

  using stream_ref = checked::stream_ref;
  using buffer = tidepool::buffer<checked>;

  /// Kernels run nothing: who is right about bytes is not asked here.
  void write(const buffer& x, stream_ref on, std::string_view name = "produce") {
    dev.writes(x, on, name);
  }
  void read(const buffer& x, stream_ref on, std::string_view name = "consume") {
    dev.reads(x, on, name);
  }
  /// `to` waits for all that `from` has been given.
  void join(stream_ref from, stream_ref to) {
    auto mark = dev.make_event();
    dev.record(mark, from);
    dev.wait(to, mark);
  }
  [[nodiscard]] static bool about(const checked_access& access, access_kind kind,
                                  std::string_view stream) {
    return access.kind == kind && access.stream == stream;
  }
  /// Whether exactly this pair was found, whatever else was.
  [[nodiscard]] bool found(finding_kind kind, access_kind first, std::string_view on,
                           access_kind second, std::string_view then_on) const {
    for (const auto& each : dev.findings()) {
      if (each.kind == kind && about(each.first, first, on) && about(each.second, second, then_on))
        return true;
    }
    return false;
  }
};

inline constexpr std::string_view out_stream = "the offload stream";
inline constexpr std::string_view in_stream = "the reload stream";

}  // namespace tidepool::test
