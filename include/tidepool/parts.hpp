/// `parts`: the planner, memory and places that an offloader gets beside its options.
#pragma once

#include <memory>

#include "tidepool/core/block.hpp"
#include "tidepool/core/decision.hpp"
#include "tidepool/engine/offload_place.hpp"

namespace tidepool::inline v0_3_0 {

/// Objects that an offloader is made with beside its options; each may be left out.
struct parts {
  /// The planner that decides: `planner()` of plan.hpp, or the trainer's own `plan_source`.
  std::unique_ptr<detail::planner_base> planner = nullptr;
  /// Memory for saved tensors in place of the offloader's own, such as `memory_on` makes. With it
  /// `options::memory` stays `pool`, and `options::device_budget` is a soft limit.
  std::unique_ptr<block_source> memory = nullptr;
  /// The way to `place_kind::file`: `file_place()` of places/file.hpp.
  detail::file_opener file = nullptr;
};

}  // namespace tidepool
