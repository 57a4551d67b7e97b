/// Where a plan puts the blocks of a step. Plain data.
#pragma once

#include <cstddef>
#include <vector>

namespace tidepool::inline v0_2_0 {

/// An offset that is left to the source.
inline constexpr auto anywhere = static_cast<std::size_t>(-1);

namespace plan {

/// The places of one storage, in bytes from the begin of the arena.
struct places_of_storage {
  std::size_t bytes = 0;         ///< of the storage
  std::size_t first = anywhere;  ///< from its allocation on
  std::size_t again = anywhere;  ///< from its reload or its recomputation on

  friend bool operator==(const places_of_storage&, const places_of_storage&) = default;
};

/// For each storage of a profile; empty: nothing is planned.
using placement = std::vector<places_of_storage>;

}  // namespace plan
}  // namespace tidepool
