// The engine learns from steps and follows plans.
#pragma once

#include <cstdint>

#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/packing.hpp"

namespace tidepool::inline v0_3_0::detail {

TIDEPOOL_INLINE auto engine::end_step() -> stage {
  if (spare_.size() != chunks_.size()) throw_still_open();
  close_step();
  if (rows_ != nullptr) rows_->step_ended();
  const auto over = learner_.end_step();
  if (!over) return learn();
  const bool anew = over == stage::starved || over == stage::outgrown;
  anew ? warm_up_anew() : start_recording();
  return *over;
}

// Closes the counts and the memory of a step, so that the next step may begin.
TIDEPOOL_INLINE void engine::close_step() {
  ++counters_.steps;
  store_.device_source().coalesce();
  // Otherwise a plan would find the neighbour's memory in pieces that steps before the plan have
  // left.
  if (store_.has(place_kind::peer)) {
    if (auto& blocks = store_.at(place_kind::peer).blocks) blocks->coalesce();  // null: returned
  }
  store_.borrowed().give_back();
  live_.step_ended();
  placement_.step_ended();
  for (std::size_t m = 0; m < counters_.modules.size(); ++m) {
    auto& count = counters_.modules[m];
    count.step_bytes = count.bytes_offloaded - bytes_before_step_[m];
    bytes_before_step_[m] = count.bytes_offloaded;
  }
}

// After any failure the next step is the first again, because it must not count as a part of this
// step.
TIDEPOOL_INLINE auto engine::learn() -> stage {
  try {
    if (recorder_ == nullptr) {
      auto& step = learner_.step();
      auto stays = decider_.by_rule(step);
      adopt(std::move(step), std::move(stays), {}, followed::by_rule);
      return stage::warm_up;
    }
    const auto over = recorder_->learn();
    if (over == stage::step) start_recording();
    return over;
  } catch (...) {
    record_again();
    throw;
  }
}

TIDEPOOL_INLINE void engine::apply(plan::profile step, const decision& what, followed by) {
  if (!what.made.expected.runs) step.peer_link.reset();  // offloads go to the nearest place
  adopt(std::move(step), what.made.what, what.placement, by);
  decider_.limit(what);
  if (packed_by_plan(opts_)) {
    const bool packs = what.made.expected.runs && what.made.packs;
    store_.set_packing(packs ? ~std::uint64_t{0} : 0);
  }
  if (!what.made.expected.runs) without_a_plan();
  if (by == followed::trial) start_recording();
}

TIDEPOOL_INLINE void engine::adopt(plan::profile step, plan::actions what, plan::placement where,
                                   followed by) {
  // Calls that may fail come first, so that a failure leaves the plan that was followed before.
  step.modules = names_;
  live_.expect_order(step);
  // If shapes repeat, the step runs as forecast. If they vary, tensors that stay would break memory
  // into pieces.
  const bool repeats = decider_.follow(std::move(step), std::move(what), std::move(where), by);
  store_.device_source().set_fit(repeats ? fit_policy::ready_first : fit_policy::spare_largest);
  if (by == followed::trial || recorder_ == nullptr) return;
  heard_.remove(*std::exchange(recorder_, nullptr));
}

TIDEPOOL_INLINE void engine::keep_at_most(std::size_t bytes, std::size_t free_piece) {
  decider_.keep_at_most(bytes, free_piece);
}

TIDEPOOL_INLINE void engine::follow(plan::profile step, const decision& what) {
  if (learner_.begun() != 0) {
    throw misuse_error(
        "follow: a step is under way; call it before the first chunk of a step, or"
        " after end_step");
  }
  forgotten_groups learnt;
  learnt.learn(step);
  apply(std::move(step), what, followed::unproven);
  forgotten_ = std::move(learnt);
}

TIDEPOOL_INLINE void engine::start_recording() noexcept {
  if (recorder_ != nullptr) recorder_->start(last_lane_);
}

TIDEPOOL_INLINE void engine::record_again() noexcept {
  decider_.record_again();
  without_a_plan();
  if (packed_by_plan(opts_)) store_.set_packing(~std::uint64_t{0});
  if (recorder_ != nullptr) recorder_->forget();
}

TIDEPOOL_INLINE void engine::warm_up_anew() {
  if (opts_.policy == policy_kind::automatic) listen_to_steps();
  record_again();
}

TIDEPOOL_INLINE void engine::time_again() noexcept {
  learner_.time_again();
  listen_to_steps();
  start_recording();
}

TIDEPOOL_INLINE void engine::without_a_plan() noexcept {
  // In a step before the first plan, or without a plan, everything leaves. Its time matters less
  // than room: it has to fit the smallest memory that a plan may be made for.
  const bool automatic = opts_.policy == policy_kind::automatic;
  store_.device_source().set_fit(automatic ? fit_policy::compact : fit_policy::spare_largest);
}

}  // namespace tidepool::detail
