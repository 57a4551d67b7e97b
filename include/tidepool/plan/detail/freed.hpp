// Device memory that a simulated step has given back, and what a stream knows of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_2_0::plan::detail {

inline constexpr std::uint32_t by_compute = none;  // freed by compute, not by an offload

// Memory that is free after something.
struct freed_piece {
  std::size_t bytes = 0;
  double time = 0;          // when that has ended
  std::uint64_t order = 0;  // of calls
  std::uint32_t offload = by_compute;
  bool peer = false;  // to which it was
};

struct freed_queue {
  std::vector<freed_piece> pieces;
  std::size_t head = 0;

  void clear() { pieces.clear(), head = 0; }
  [[nodiscard]] bool empty() const { return head == pieces.size(); }
  [[nodiscard]] freed_piece& front() { return pieces[head]; }
};

// Work that a stream of reloads has waited for: offloads to each place, and compute.
struct joined_so_far {
  std::array<std::uint32_t, 2> offloads{};
  std::uint64_t compute = 0;

  void note(bool peer, std::uint32_t offload) {
    auto& latest = offloads[peer ? 1 : 0];
    latest = std::max(latest, offload);
  }
  [[nodiscard]] bool has(bool peer, std::uint32_t offload) const {
    return offload <= offloads[peer ? 1 : 0];
  }
};

}  // namespace tidepool::plan::detail
