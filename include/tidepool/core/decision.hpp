/// The decision about the groups of a step, and the part of a planner that an offloader knows.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string>

#include "tidepool/core/placement.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0 {

/// A decision about the groups of the steps to come. Plain data.
struct decision {
  /// A `keep_at_most` that limits nothing.
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  /// Actions, limits of reloads ahead, and forecast; `expected.runs`: a plan was found.
  plan::step_plan made;
  plan::placement placement;  ///< places of each storage in an arena; empty: anywhere
  /// The most bytes that stay by plan at one time; further groups leave, because shapes may grow
  /// after the plan. A group also leaves if fewer than `free_piece` bytes are free in one piece.
  std::size_t keep_at_most = unlimited;
  std::size_t free_piece = 0;  ///< bytes, see `keep_at_most`; 0: any
  std::string words;           ///< text for the report; empty: nothing to say
};

namespace detail {

class engine;
class learning;

// The part of a planner that every program compiles; `plan_source` is the part that only programs
// with plans compile.
class planner_base {
 public:
  planner_base() = default;
  planner_base(const planner_base&) = delete;
  planner_base& operator=(const planner_base&) = delete;
  virtual ~planner_base() = default;

  // Makes the object that listens to `owner` and makes its plans. The planner outlives that object.
  [[nodiscard]] virtual std::unique_ptr<learning> learn(engine& owner) = 0;
};

}  // namespace detail
}  // namespace tidepool
