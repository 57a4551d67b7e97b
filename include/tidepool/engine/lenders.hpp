// What needs a lender: steps that copy to its memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "tidepool/engine/memory_layout.hpp"
#include "tidepool/engine/storages.hpp"
#include "tidepool/error.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_2_0::detail {

[[noreturn]] inline void throw_lender_gone(const char* call, const loan& lent) {
  throw lender_error(std::string(call) + ": " + lent.what_happened() +
                         "; nothing is lost. Graphs copy to that memory: make another offloader",
                     lent.lender());
}

// What has been offloaded to a neighbour so far, in captures as well.
[[nodiscard]] inline std::uint64_t bytes_to_neighbour(const storages& store) {
  return store.has(place_kind::peer) ? store.at(place_kind::peer).bytes_offloaded : 0;
}

// A graph that offloads to a lender is to be launched; `before` is what it finds in memory. Where
// something lies with the lender, that is the rest of a step, and comes back all the same.
inline void expect_lender(const storages& store, const memory_layout& before) {
  const auto& peer = store.at(place_kind::peer);
  if (peer.lent == nullptr || peer.lent->here()) return;
  const bool begun = std::ranges::any_of(
      before, [&](const storage_place& each) { return peer.lent->holds(each.copy); });
  if (!begun) throw_lender_gone("launch", *peer.lent);
}

}  // namespace tidepool::detail
