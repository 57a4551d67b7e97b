// How late other ranks were in a recorded step, and how much of that another plan does not change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tidepool/engine/learning.hpp"

namespace tidepool::inline v0_3_0::detail {

struct rank_wait {
  std::size_t before;  // number of the call after it
  std::size_t from;    // marks
  std::size_t to;
  waits_for whom;
  std::uint32_t kind;
  double stays_us = 0;  // others were late, and will be
  double goes_us = 0;   // with the stalls of the peers
};

// Says how long each wait stays; `us` gives its time. The shortest wait of a kind is its time when
// no rank is late. Peers follow plans of the same kind, so they are taken to stand still as long as
// this rank: `still_us`. Beyond that they compute longer.
template <class Us>
void judge(std::vector<rank_wait>& waits, double still_us, const Us& us) {
  std::map<std::pair<waits_for, std::uint32_t>, double> shortest;
  for (auto& each : waits) {
    each.goes_us = us(each);
    auto& least = shortest.emplace(std::pair(each.whom, each.kind), each.goes_us).first->second;
    least = std::min(least, each.goes_us);
  }
  double by_peers_us = 0;
  for (auto& each : waits) {
    each.goes_us -= shortest.at({each.whom, each.kind});
    if (each.whom == waits_for::peers) by_peers_us += each.goes_us;
  }
  const auto part = by_peers_us > still_us ? 1 - still_us / by_peers_us : 0;
  for (auto& each : waits) {
    each.stays_us = each.goes_us * (each.whom == waits_for::peers ? part : 1);
    each.goes_us -= each.stays_us;
  }
}

}  // namespace tidepool::detail
