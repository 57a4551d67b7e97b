// Which group or state the engine's work is about, for a device that checks the order of accesses
// and for profilers.
#pragma once

#include <string_view>

#include "tidepool/device/device.hpp"
#include "tidepool/engine/group.hpp"
#include "tidepool/options.hpp"
#include "tidepool/trace/nvtx.hpp"

namespace tidepool::inline v0_2_0::detail {

template <device Device>
class engine;

// Told as long as it lives. Other devices are told nothing: no function is called.
template <device Device>
struct group_subject {
  engine<Device>& of;
  const chunk_state& chunk;
  module_id module;
  int layer;
};

template <order_checking_device Device>
struct group_subject<Device> {
  group_subject(engine<Device>& of, const chunk_state& chunk, module_id module, int layer)
      : told(of.device().at(of.names()[static_cast<std::size_t>(module)], layer,
                            chunk.info.microbatch)) {}

  typename Device::place told;
};

// The same of state that lives on the host, which has a name and no layer.
template <device Device>
struct state_subject {
  engine<Device>& of;
  std::string_view name;
};

template <order_checking_device Device>
struct state_subject<Device> {
  state_subject(engine<Device>& of, std::string_view name) : told(of.device().at(name, -1, -1)) {}

  typename Device::place told;
};

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
