/// The interface of planners, which decide about each group of a step. This header has no planner
/// itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tidepool/core/decision.hpp"
#include "tidepool/core/linkage.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0 {

/// A step as the engine recorded it.
struct recorded_step {
  plan::profile step;  ///< chunks, passes, and events where the step was timed
  /// True for the first step of a warm-up, which cannot tell yet whether shapes vary.
  bool first = false;
};

/// A plan from elsewhere, made fit for one offloader.
struct followed_plan {
  plan::profile step;  ///< profile that it was made for, with the offloader's modules
  decision what;       ///< the plan, as the engine will follow it
};

/// Makes decisions. A trainer that wants plans gives its offloader one: `tidepool::planner()` of
/// plan.hpp, or one of its own. A plan source touches no device. It may take long.
class plan_source : public detail::planner_base {
 public:
  /// Makes a decision for steps like `recorded`, under the budget and the limits of `opts`. If
  /// plans are made beside the training (`options::adopt_after`), `make` runs on a thread of its
  /// own, one call at a time, and `follow` may be called meanwhile. `end_step` throws the exception
  /// of `make`.
  [[nodiscard]] virtual decision make(const recorded_step& recorded, const options& opts) = 0;

  /// Checks a plan from elsewhere against the profile that it was made for, and against the modules
  /// and options of an offloader. Modules with a bit in `enabled` may leave. Throws
  /// `plan::profile_error`.
  [[nodiscard]] virtual followed_plan follow(const plan::step_plan& made,
                                             const plan::profile& recorded,
                                             std::span<const std::string> names,
                                             std::uint64_t enabled, const options& opts) = 0;

 private:
  [[nodiscard]] std::unique_ptr<detail::learning> learn(detail::engine& owner) final;
};

}  // namespace tidepool

#if TIDEPOOL_DEFINITIONS
#include "tidepool/observe/plan_learner.hpp"
#endif
