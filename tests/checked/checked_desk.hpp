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
#include "tidepool/graph.hpp"
#include "tidepool/host_state.hpp"
#include "tidepool/offloader.hpp"

namespace tidepool::test {

using checked = checked_device<virtual_device>;

/// `Device` is a `checked_device` or more. Declare it before the offloader.
template <class Device>
struct basic_desk {
  template <class... Model>
  explicit basic_desk(const Model&... model) : dev(model...) {
    dev.name_stream(compute.ref(), "compute");
    dev.name_stream(side.ref(), "side");
  }

  basic_desk(const basic_desk&) = delete;
  basic_desk& operator=(const basic_desk&) = delete;
  ~basic_desk() { dev.deallocate(own_); }

  using device = Device;
  using stream_ref = typename Device::stream_ref;
  using buffer = tidepool::buffer<Device>;
  using offloader = tidepool::offloader<Device, modules<"fc1">>;

  Device dev;
  typename Device::stream compute = dev.make_stream();
  typename Device::stream side = dev.make_stream();

  /// Work that no offloader knows of.
  void fill_own(stream_ref on) { dev.fill_bytes(own_, 0, own_bytes, on); }
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

 private:
  static constexpr std::size_t own_bytes = 256;
  void* own_ = dev.allocate(own_bytes);
};

using checked_desk = basic_desk<checked>;

inline constexpr std::string_view out_stream = "the offload stream";
inline constexpr std::string_view in_stream = "the reload stream";

}  // namespace tidepool::test
