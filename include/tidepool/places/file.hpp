/// A file as a place that groups are offloaded to, for who wants one:
/// `offloader off(dev, opts, {.file = tidepool::file_place()})`.
#pragma once

#include "tidepool/core/linkage.hpp"
#include "tidepool/engine/offload_place.hpp"

namespace tidepool::inline v0_3_0 {

/// The way to the file of `place_kind::file`, for `parts::file`: a ring of pinned memory, a thread,
/// and a file of the system's, or what the device's own `open_file` returns.
[[nodiscard]] detail::file_opener file_place();

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/places/detail/file_ring.hpp"
#endif
