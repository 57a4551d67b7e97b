/// `parts`: the planner, memory, places and output that an offloader gets beside its options.
#pragma once

#include <memory>

#include "tidepool/core/block.hpp"
#include "tidepool/core/decision.hpp"
#include "tidepool/core/step_output.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/offload_place.hpp"
#include "tidepool/engine/plan_maker.hpp"
#include "tidepool/error.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0 {

/// Objects that an offloader is made with beside its options; each may be left out.
struct parts {
  /// The planner that decides: `planner()` of plan.hpp, or the trainer's own `plan_source`.
  std::unique_ptr<detail::planner_base> planner = nullptr;
  /// Memory for saved tensors in place of the offloader's own, such as `memory_on` makes. With it
  /// `options::memory` stays `pool`, and `options::device_budget` is a soft limit.
  std::unique_ptr<block_source> memory = nullptr;
  /// Opens `place_kind::file`: `file_place()` of places/file.hpp.
  detail::file_opener file = nullptr;
  /// Writes what `--summary` and `--trace-step` ask for: `trace_output()` of trace/output.hpp.
  std::unique_ptr<detail::step_output> output = nullptr;
};

namespace detail {

// Throws `option_error` if an offloader with `opts` needs a part that `with` lacks, or has one that
// cannot do what `opts` say.
inline void expect_parts(const options& opts, const parts& with) {
  if (opts.policy == policy_kind::automatic && with.planner == nullptr) {
    plan_maker::throw_no_planner("policy: automatic");
  }
  if (with.memory != nullptr && opts.memory != memory_kind::pool) {
    throw option_error(
        "tidepool: memory: this offloader was given memory of the trainer's own (parts::memory),"
        " which --memory=arena and --memory=slots cannot be; take --memory out");
  }
  if (with.output != nullptr) return with.output->check(opts);
  if (opts.summary || !opts.trace_step.empty() || !opts.trace_to.empty()) {
    throw option_error(
        "tidepool: --summary, --trace-step, --trace-to: this trainer has nothing that writes them;"
        " #include <tidepool/trace/output.hpp> and construct it as offloader(dev, opts, {.output ="
        " tidepool::trace_output()}), or take the options out");
  }
}

}  // namespace detail
}  // namespace tidepool
