// The interface between the engine and the part that records steps and makes plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tidepool/core/decision.hpp"
#include "tidepool/core/happening.hpp"
#include "tidepool/decide/step_learner.hpp"

namespace tidepool::inline v0_3_0::detail {

// Ranks with a schedule of their own, or ranks that do the same at the same time.
enum class waits_for : std::uint8_t { others, peers };

// Records steps and makes plans; an offloader without a planner has none. It listens only during an
// automatic warm-up, because later steps are not recorded.
class learning : public observer {
 public:
  // Notes that a step begins. The step before it has ended on `lane`.
  virtual void start(lane_id lane) noexcept = 0;
  // Drops the record, because the next step is the first of a warm-up again.
  virtual void forget() noexcept = 0;
  // Note the begin and the end of a wait; see `recorded_wait`.
  [[nodiscard]] virtual std::size_t wait_begins(const void* stream) noexcept = 0;
  virtual void waited(std::size_t from, const void* stream, waits_for whom,
                      std::uint32_t kind) noexcept = 0;

  // Called when a step has trained. Returns `stage::step` if no plan is to be made or adopted.
  // Otherwise the offloader calls `plan` with the result, and `plan` has the engine follow the
  // decision. `plan` returns none if its plan is made beside the steps to come; `learn` then
  // returns a stage again when that plan is to be adopted.
  [[nodiscard]] virtual stage learn() = 0;
  [[nodiscard]] virtual std::optional<decision> plan(stage over) = 0;
  // A step is over, whatever it followed. Returns a line for the trainer, if there is news of the
  // plan that is followed.
  [[nodiscard]] virtual std::string watch() = 0;
  // Follows a plan from elsewhere; `enabled` has a bit for each module that may leave.
  virtual void follow(const plan::step_plan& made, const plan::profile& recorded,
                      std::uint64_t enabled) = 0;
  // Sets `meet`, which is called before each measurement of the link.
  virtual void on_measure(std::function<void()> meet) = 0;
  // Sets `all`, which returns true if all ranks are ready to plan, or to adopt their plans.
  virtual void on_ready(std::function<bool(bool)> all) = 0;
};

}  // namespace tidepool::detail
