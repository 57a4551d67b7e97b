/// The machine that a virtual device simulates: memory, link and kernel order.
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
  /// False: memory is only counted and copies only take time, for forecasts of steps of any size.
  bool moves_bytes = true;
  /// 0: operations run in the order of the clock. Another seed: they run in a random order that
  /// streams and events allow, and the clock has no meaning.
  std::uint64_t order_seed = 0;
  /// Bytes of memory of the neighbour, which is device 1; 0: there is no neighbour.
  std::size_t peer_bytes = std::size_t{8} << 30;
  double peer_offload_rate = 396;  ///< device to neighbour, alone; all three rates are NVLink 4's
  double peer_reload_rate = 394;   ///< neighbour to device, alone
  double peer_both_rate = 782;     ///< both directions together, while both are busy
  double peer_latency_ns = 2000;   ///< of each copy to or from the neighbour, before its first byte
  /// Copies to the neighbour go over the link to the host, at its rates, and the three rates above
  /// have no effect.
  bool peer_shares_link = false;
  double pack_rate = 1300;    ///< tensor bytes that a stream packs; see packing in device.hpp
  double unpack_rate = 1600;  ///< tensor bytes that a stream unpacks
  std::size_t packs_from = std::size_t{64} << 10;  ///< least bytes that are packed; 0: none are
  /// Tensor bytes that one kernel unpacks, at most; a multiple of 16 KiB.
  std::size_t pack_piece = std::size_t{16} << 20;
};

}  // namespace tidepool
