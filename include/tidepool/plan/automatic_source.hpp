// The body of plan.hpp: the planner as an offloader's plan source.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tidepool/plan.hpp"
#include "tidepool/plan/automatic.hpp"
#include "tidepool/plan/follow.hpp"

namespace tidepool::inline v0_3_0 {

namespace plan::detail {

class automatic_source final : public plan_source {
 public:
  [[nodiscard]] decision make(const recorded_step& recorded, const options& opts) override {
    auto made = automatic(recorded.step, opts);
    if (recorded.first && !made.expected.runs) {
      auto repeated = recorded.step;  // it may be too much that is left free for shapes that vary
      repeated.shapes_vary = false;
      made = automatic(repeated, opts);
    }
    auto repeats = recorded.step;
    if (recorded.first)
      repeats.shapes_vary = false;  // what stays for long is placed as if they did not
    auto result = decided(recorded.step, repeats, std::move(made), opts);
    result.words = in_words(result.made);
    return result;
  }

  [[nodiscard]] followed_plan follow(const step_plan& made, const profile& recorded,
                                     std::span<const std::string> names, std::uint64_t enabled,
                                     const options& opts) override {
    auto fit = fitted(made, recorded, names, enabled, opts.device_budget, opts.recompute_by_plan,
                      opts.peer_budget.value_or(0));
    return {std::move(fit), decided(recorded, recorded, made, opts)};
  }

 private:
  // `recorded` says whether shapes vary, `placed` what memory is laid out for.
  [[nodiscard]] static decision decided(const profile& recorded, const profile& placed,
                                        step_plan made, const options& opts) {
    decision result;
    if (recorded.shapes_vary && opts.device_budget) {
      // What was left free of the budget stays so, whatever the plan could keep in that one step.
      const auto most = made.device_budget > 0 ? made.device_budget : decision::unlimited;
      result.keep_at_most = std::min(kept_at_once(recorded, made), most);
      // Room for all that the step works with at once, wherever the pieces of it fall. With less,
      // models of many small tensors ran out of memory in pieces.
      result.free_piece = handed_out_at_once(recorded) * 2;
    }
    if (!made.expected.runs) {
      for (auto& row : made.what) std::fill(row.begin(), row.end(), action::offload);
    }
    auto limits = opts;
    limits.reload_ahead = made.reload_ahead;
    limits.reload_ahead_bytes.reset();
    if (made.reload_ahead_bytes > 0) limits.reload_ahead_bytes = made.reload_ahead_bytes;
    result.placement = best_places(placed, made.what, limits);
    result.made = std::move(made);
    return result;
  }
};

}  // namespace plan::detail

TIDEPOOL_INLINE std::unique_ptr<plan_source> planner() {
  return std::make_unique<plan::detail::automatic_source>();
}

}  // namespace tidepool
