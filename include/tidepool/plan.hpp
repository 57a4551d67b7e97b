/// The planner, for programs that want plans: `offloader off(dev, opts, {.planner = planner()})`.
#pragma once

#include <memory>

#include "tidepool/core/linkage.hpp"
#include "tidepool/core/plan_source.hpp"

namespace tidepool::inline v0_3_0 {

/// A planner for one offloader: times a few steps, plans, and lays memory out.
[[nodiscard]] std::unique_ptr<plan_source> planner();

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/plan/automatic_source.hpp"
#endif
