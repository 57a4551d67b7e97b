/// Which floors are measured: one for each amount that some case moves.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "results.hpp"

namespace bench {

/// A floor, with what it moves.
inline case_result floor_that_moves(const settings& run, double to_host, double to_peer) {
  const auto full = static_cast<double>(run.sizes.expert_bytes());
  const bool host = to_peer <= 0 || to_host >= 0.001 * full;
  char name[64];
  if (to_peer <= 0) {
    std::snprintf(name, sizeof name, "floor %.2f GiB", to_host / gibibyte);
  } else if (!host) {
    std::snprintf(name, sizeof name, "floor, neighbour %.2f GiB", to_peer / gibibyte);
  } else {
    std::snprintf(name, sizeof name, "floor, neighbour %.2f, host %.2f GiB", to_peer / gibibyte,
                  to_host / gibibyte);
  }
  case_result made;
  made.plan = plan_without(run, case_kind::floor, name);
  made.plan.share = host ? to_host / full : 0;
  made.plan.peer_share = to_peer / full;
  made.moved_bytes = to_host + to_peer;
  made.peer_bytes = to_peer;
  return made;
}

/// One for each amount that some case moves over each link; amounts within 3% of each other share
/// one. All that the experts save where no case moves anything.
template <class Entries>
[[nodiscard]] std::vector<case_result> plan_floors(const settings& run, const Entries& entries) {
  const auto near = 0.03 * static_cast<double>(run.sizes.expert_bytes());
  std::vector<case_result> floors;
  for (const auto& entry : entries) {
    const case_result& each = entry->result;
    if (!each.failure.empty() || each.moved_bytes <= 0) continue;
    const auto to_host = each.moved_bytes - each.peer_bytes;
    const bool known = std::any_of(floors.begin(), floors.end(), [&](const case_result& other) {
      return std::abs(other.moved_bytes - other.peer_bytes - to_host) < near &&
             std::abs(other.peer_bytes - each.peer_bytes) < near;
    });
    if (!known) floors.push_back(floor_that_moves(run, to_host, each.peer_bytes));
  }
  if (floors.empty()) {
    floors.push_back(floor_that_moves(run, static_cast<double>(run.sizes.expert_bytes()), 0));
  }
  return floors;
}

}  // namespace bench
