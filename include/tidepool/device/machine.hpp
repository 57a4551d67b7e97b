/// A machine for the virtual device to be: memory, link and kernel order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool::inline v0_3_0 {

/// Rates are bytes per nanosecond, which is GB/s.
struct machine {
  std::size_t device_bytes = std::size_t{8} << 30;  ///< bytes of device memory
  std::size_t host_bytes = std::size_t{8} << 30;    ///< bytes of host memory
  double offload_rate = 55.2;                       ///< device to host, alone
  double reload_rate = 55.2;                        ///< host to device, alone
  double both_rate = 101.7;       ///< both directions together, while both are busy
  double copy_latency_ns = 2000;  ///< of each copy, before its first byte
  bool poison = true;             ///< fill device memory that is handed out or given back
  /// Off: memory is only counted and copies only take time, for forecasts of steps of any size.
  bool moves_bytes = true;
  /// 0: operations run as the clock says. Otherwise they run in a random order, one of those that
  /// streams and events allow, drawn from this seed; the clock then means nothing.
  std::uint64_t order_seed = 0;
  /// Bytes of a neighbour's memory; the neighbour is device 1, and 0 bytes are none.
  std::size_t peer_bytes = std::size_t{8} << 30;
  double peer_offload_rate = 396;  ///< device to neighbour, alone; all three as NVLink 4 has them
  double peer_reload_rate = 394;   ///< neighbour to device, alone
  double peer_both_rate = 782;     ///< both directions together, while both are busy
  double peer_latency_ns = 2000;   ///< of each copy to or from it, before its first byte
  /// Copies to the neighbour go over the link to the host, at its rates: the three above say
  /// nothing.
  bool peer_shares_link = false;
};

}  // namespace tidepool
