/// A file as a place that groups are offloaded to: `offloader off(dev, opts, {.file =
/// tidepool::file_place()})`. The header is separate, so that only programs that use a file compile
/// the file code.
#pragma once

#include "tidepool/core/linkage.hpp"
#include "tidepool/engine/offload_place.hpp"

namespace tidepool::inline v0_3_0 {

/// Opens the file of `place_kind::file`; to be given as `parts::file`. The place has a ring of
/// pinned memory, a thread, and a file: the system's, or the one that the device's `open_file`
/// returns.
[[nodiscard]] detail::file_opener file_place();

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/places/detail/file_ring.hpp"
#endif
