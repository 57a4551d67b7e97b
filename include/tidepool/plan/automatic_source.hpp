// The planner as an offloader's plan source: turns a recorded step into a decision (actions,
// placement, limits in bytes). It is the body of plan.hpp.
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
#include "tidepool/plan/keeping.hpp"
#include "tidepool/plan/refusal.hpp"

namespace tidepool::inline v0_3_0 {

namespace plan::detail {

class automatic_source final : public plan_source {
 public:
  [[nodiscard]] decision make(const recorded_step& recorded, const options& opts) override {
    auto made = automatic(recorded.step, opts);
    if (recorded.first && !made.expected.runs) {
      // The part that is left free for varying shapes may be too much for the budget.
      auto repeated = recorded.step;
      repeated.shapes_vary = false;
      made = automatic(repeated, opts);
    }
    auto repeats = recorded.step;
    if (recorded.first)
      repeats.shapes_vary = false;  // groups that stay long get places as if shapes did not vary
    auto result = decided(recorded.step, repeats, std::move(made), opts);
    result.words = in_words(result.made);
    return result;
  }

  [[nodiscard]] followed_plan follow(const step_plan& made, const profile& recorded,
                                     std::span<const std::string> names, std::uint64_t enabled,
                                     const options& opts) override {
    auto fit = fitted(made, recorded, names, enabled, opts.device_budget, opts.recompute_by_plan,
                      opts.peer_budget.value_or(0));
    subject{"plan"}.require(!made.packs || !opts.pack.empty(), {},
                            {"made for packed tensors, but this run packs none"},
                            "give --pack, or plan without packing");
    return {std::move(fit), decided(recorded, recorded, made, opts)};
  }

 private:
  // `recorded` says whether shapes vary, `placed` is the step that memory is laid out for.
  [[nodiscard]] static decision decided(const profile& recorded, const profile& placed,
                                        step_plan made, const options& opts) {
    decision result;
    if (recorded.shapes_vary && opts.device_budget) {
      // The budget's free part stays free, even if the plan could keep more in the recorded step.
      const auto most = made.device_budget > 0 ? made.device_budget : decision::unlimited;
      result.keep_at_most = std::min(kept_at_once(recorded, made.what), most);
      result.free_piece = free_piece(recorded);
    }
    if (!made.expected.runs) {
      for (auto& row : made.what) std::fill(row.begin(), row.end(), action::offload);
    }
    auto limits = opts;
    limits.reload_ahead = made.reload_ahead;
    limits.reload_ahead_bytes.reset();
    if (made.reload_ahead_bytes > 0) limits.reload_ahead_bytes = made.reload_ahead_bytes;
    const bool packs = made.packs || !tidepool::detail::packed_by_plan(opts);
    result.placement = best_places(packs ? placed : unpacked(placed), made.what, limits);
    result.made = std::move(made);
    return result;
  }
};

}  // namespace plan::detail

TIDEPOOL_INLINE std::unique_ptr<plan_source> planner() {
  return std::make_unique<plan::detail::automatic_source>();
}

}  // namespace tidepool
