/// The virtual device as `caps` and `bench_inflight` use it.
#pragma once

#include <limits>
#include <tidepool/device/virtual.hpp>

namespace caps {

/// Memory is only counted and copies only take time, so that groups may have any size.
struct virtual_machine {
  tidepool::virtual_device dev{model()};

  void busy(tidepool::virtual_device::stream_ref on, double ns) { dev.launch(on, ns, {}); }

  static tidepool::machine model() {
    tidepool::machine link;
    link.device_bytes = link.host_bytes = std::numeric_limits<std::size_t>::max() / 4;
    link.moves_bytes = false;
    link.poison = false;
    return link;
  }
};

}  // namespace caps
