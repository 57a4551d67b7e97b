/// All headers of common use; include single headers instead to save compile time.
#pragma once

#include "tidepool/device/cuda.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/fwd.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/host_state.hpp"
#include "tidepool/layers.hpp"
#include "tidepool/observe/tracing.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/rows.hpp"
#include "tidepool/trace/output.hpp"
#include "tidepool/trace/picture.hpp"
#include "tidepool/trace/profiler.hpp"
#include "tidepool/trace/report.hpp"
#include "tidepool/trace/summary.hpp"
#include "tidepool/trace/timeline.hpp"
#include "tidepool/version.hpp"

#if !TIDEPOOL_DEFINITIONS
namespace tidepool::inline v0_3_0::detail {
extern template class hardware_of<virtual_device>;  // in src.hpp
}  // namespace tidepool::detail
#endif
