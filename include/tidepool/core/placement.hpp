/// The places that a plan gives to the blocks of a step. Plain data.
#pragma once

#include <cstddef>
#include <vector>

namespace tidepool::inline v0_3_0 {

/// An offset that is left to the source.
inline constexpr auto anywhere = static_cast<std::size_t>(-1);

namespace plan {

/// The places of one storage, in bytes from the begin of the arena.
struct places_of_storage {
  std::size_t bytes = 0;         ///< size of the storage
  std::size_t first = anywhere;  ///< offset from its allocation on
  std::size_t again = anywhere;  ///< offset from its reload or recomputation on

  friend bool operator==(const places_of_storage&, const places_of_storage&) = default;
};

/// The places that a step has its memory in.
struct placement {
  std::vector<places_of_storage> storages;  ///< each of a profile; empty: nothing is planned
  /// Bytes in use up to which a group is reloaded ahead of its use. Beyond, it would come before
  /// its turn, into a place that another has until then.
  std::size_t within = anywhere;

  /// True where nothing is planned.
  [[nodiscard]] bool empty() const { return storages.empty(); }

  friend bool operator==(const placement&, const placement&) = default;
};

}  // namespace plan
}  // namespace tidepool
