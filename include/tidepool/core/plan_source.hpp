/// Who decides what becomes of each group of a step, and what was decided. No template, no planner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "tidepool/core/placement.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_2_0 {

/// What becomes of the groups of the steps to come. Plain data.
struct decision {
  /// A `keep_at_most` that limits nothing.
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  plan::step_plan made;  ///< actions, limits of reloads ahead, forecast; `expected.runs`: found
  plan::placement placement;  ///< of each storage in an arena; empty: anywhere
  /// Groups that should stay by plan leave all the same once so many bytes have stayed, and unless
  /// so many are free in one piece (0: that does not count): shapes may grow after the plan.
  std::size_t keep_at_most = unlimited;
  std::size_t free_piece = 0;  ///< bytes; see `keep_at_most`
  std::string words;           ///< for the report; empty: nothing to say
};

/// A step as the engine recorded it.
struct recorded_step {
  plan::profile step;  ///< chunks, passes, and events where the step was timed
  /// The first of a warm-up: whether shapes vary is not known yet.
  bool first = false;
};

/// A plan from elsewhere, made fit for one offloader.
struct followed_plan {
  plan::profile step;  ///< that it was made for, with the offloader's modules
  decision what;       ///< the plan, as the engine will follow it
};

/// Makes decisions. An offloader is given one by who wants plans: `tidepool::planner()` of
/// plan.hpp, or one of the trainer's own. Touches no device; may block the host while it searches.
class plan_source {
 public:
  plan_source() = default;
  plan_source(const plan_source&) = delete;
  plan_source& operator=(const plan_source&) = delete;
  virtual ~plan_source() = default;

  /// A decision for steps like this one, under the budget and the limits of `opts`.
  [[nodiscard]] virtual decision make(const recorded_step& recorded, const options& opts) = 0;

  /// Checks a plan from elsewhere against what it was made for and against an offloader: its
  /// modules, of which those with a bit in `enabled` may leave, and its options. Throws
  /// `plan::profile_error`.
  [[nodiscard]] virtual followed_plan follow(const plan::step_plan& made,
                                             const plan::profile& recorded,
                                             std::span<const std::string> names,
                                             std::uint64_t enabled, const options& opts) = 0;
};

}  // namespace tidepool
