// Which group the engine's work is about, for profilers.
#pragma once

#include "tidepool/options.hpp"
#include "tidepool/trace/nvtx.hpp"

namespace tidepool::inline v0_2_0::detail {

// A range for profilers; without NVTX no function is called.
template <bool CompiledIn = trace::nvtx_compiled_in>
struct named_range {
  const trace::nvtx_names& names;
  trace::nvtx_action what;
  module_id module;
  int layer;
};

template <>
struct named_range<true> : trace::nvtx_range {
  named_range(const trace::nvtx_names& names, trace::nvtx_action what, module_id module, int layer)
      : nvtx_range(names, what, static_cast<std::size_t>(module), layer) {}
};

}  // namespace tidepool::detail
