// Objects that tell of the begin of a call, and of its end when they are destroyed.
#pragma once

#include "tidepool/engine/engine.hpp"
#include "tidepool/trace/nvtx.hpp"

namespace tidepool::inline v0_3_0::detail {

// Tells that a call on a compute stream begins, and that it is over.
class told_call {
 public:
  told_call(engine& owner, lane_id lane) : owner_(&owner) {
    owner.last_lane_ = lane;
    if (owner.heard_.any()) owner.heard_.tell({.what = happened::call_begun, .lane = lane});
  }
  told_call(const told_call&) = delete;
  told_call& operator=(const told_call&) = delete;
  ~told_call() {
    if (owner_->heard_.any()) owner_->heard_.tell({.what = happened::call_over});
  }

 private:
  engine* owner_;
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

// Names the group that the engine works on, for profilers and for devices that report mistakes. It
// is a template, because files of one program may differ in whether they have NVTX.
template <bool Profiled = trace::nvtx_compiled_in>
class work_on_group {
 public:
  work_on_group(engine& owner, trace::nvtx_action what, const chunk_state& in, module_id module,
                int layer)
      : range_{owner.ranges_, what, module, layer},
        subject_(*owner.dev_, owner.names_[static_cast<std::size_t>(module)], layer,
                 in.info.microbatch) {}
  work_on_group(const work_on_group&) = delete;
  work_on_group& operator=(const work_on_group&) = delete;

 private:
  [[no_unique_address]] named_range<Profiled> range_;
  told_subject subject_;
};

}  // namespace tidepool::detail
