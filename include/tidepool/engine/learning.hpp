// The interface between the engine and the part that records steps and makes plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "tidepool/core/decision.hpp"
#include "tidepool/core/happening.hpp"
#include "tidepool/decide/step_learner.hpp"

namespace tidepool::inline v0_3_0::detail {

// Ranks with a schedule of their own, or ranks that do the same at the same time.
enum class waits_for : std::uint8_t { others, peers };

// Records steps and makes plans; an offloader without a planner has none. It listens during an
// automatic warm-up alone, because later steps are not recorded.
class learning : public observer {
 public:
  // A step begins; the step before it has ended on `lane`.
  virtual void start(lane_id lane) noexcept = 0;
  // Drops the record, because the next step is the first of a warm-up again.
  virtual void forget() noexcept = 0;
  // See `recorded_wait`.
  [[nodiscard]] virtual std::size_t wait_begins(const void* stream) noexcept = 0;
  virtual void waited(std::size_t from, const void* stream, waits_for whom,
                      std::uint32_t kind) noexcept = 0;

  // A step has trained. `stage::step` where no plan is to be made or adopted; otherwise `plan` is
  // called with what this returns, and has the engine follow what it decides. `plan` returns none
  // where it has a plan made beside the steps to come; `learn` tells again when it is to be
  // adopted.
  [[nodiscard]] virtual stage learn() = 0;
  [[nodiscard]] virtual std::optional<decision> plan(stage over) = 0;
  // Follows a plan from elsewhere; `enabled` has a bit for each module that may leave.
  virtual void follow(const plan::step_plan& made, const plan::profile& recorded,
                      std::uint64_t enabled) = 0;
  // `meet` will be called before each measurement of the link.
  virtual void on_measure(std::function<void()> meet) = 0;
  // `all` tells whether all ranks are ready to plan, or to adopt their plans.
  virtual void on_ready(std::function<bool(bool)> all) = 0;
};

}  // namespace tidepool::detail
