// What graphs have left where, between captures or launches and eager work.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tidepool/core/clocks.hpp"
#include "tidepool/engine/memory_layout.hpp"
#include "tidepool/engine/storage.hpp"

namespace tidepool::inline v0_2_0::detail {

// The rules are in capture.hpp.
struct graph_state {
  bool replayed = false;  // graphs have run since the last eager call
  lane_id replayed_on{};
  std::shared_ptr<const memory_layout> layout_before;  // of the latest capture
  std::shared_ptr<const memory_layout> truth;          // where contents are; null: as handles say
  std::uint64_t destroyed_at_launch = 0;               // storages, by the latest launch
  std::vector<storage*> orphans;  // whose handles went while a capture was broken
};

}  // namespace tidepool::detail
