// How the engine learns of a step, and follows a plan.
#pragma once

#include "tidepool/engine/engine.hpp"
#include "tidepool/rules/policy.hpp"

namespace tidepool::inline v0_2_0::detail {

TIDEPOOL_INLINE auto engine::end_step() -> stage {
  if (spare_.size() != chunks_.size()) throw_still_open();
  close_step();
  const auto over = learner_.end_step();
  if (!over) return learn();
  const bool anew = over == stage::starved || over == stage::outgrown;
  anew ? warm_up_anew() : start_recording();
  return *over;
}

// The step's counts, and its memory: the next one may begin.
TIDEPOOL_INLINE void engine::close_step() {
  ++counters_.steps;
  store_.device_source().coalesce();
  // A plan finds the neighbour's memory in pieces of what a step without it had there.
  if (store_.has(place_kind::peer)) {
    if (auto& blocks = store_.at(place_kind::peer).blocks) blocks->coalesce();  // or given back
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

// Whatever fails, the next step counts as the first, not as more of this one.
TIDEPOOL_INLINE auto engine::learn() -> stage {
  try {
    auto& step = learner_.step();
    if (recorder_ == nullptr) {
      auto stays = plan::actions_of(plan::megatron_policy(step, opts_));
      adopt(std::move(step), std::move(stays), {}, followed::by_rule);
      return stage::warm_up;
    }
    recorder_->check();
    if (!learner_.wants_record(recorder_->waited_for_others())) {
      start_recording();
      return stage::step;
    }
    auto drains = recorder_->finish(step);
    step.modules = names_;
    step.stream_ordered = store_.gives_back();
    return learner_.learn(recorder_->sizes(), std::move(drains));
  } catch (...) {
    record_again();
    throw;
  }
}

TIDEPOOL_INLINE void engine::apply(plan::profile step, const decision& what, followed by) {
  if (!what.made.expected.runs) step.peer_link.reset();  // what leaves goes to the nearest place
  adopt(std::move(step), what.made.what, what.placement, by);
  // Pieces count in an arena.
  keeps_.keep_at_most(what.keep_at_most, opts_.memory == memory_kind::arena ? what.free_piece : 0);
  opts_.reload_ahead = what.made.reload_ahead;
  opts_.reload_ahead_bytes.reset();
  if (what.made.reload_ahead_bytes > 0) opts_.reload_ahead_bytes = what.made.reload_ahead_bytes;
  if (!what.made.expected.runs) without_a_plan();
  if (by == followed::trial) start_recording();
}

TIDEPOOL_INLINE void engine::adopt(plan::profile step, plan::actions what, plan::placement where,
                                   followed by) {
  // What may fail comes first, and leaves what was followed before.
  step.modules = names_;
  live_.expect_order(step);
  placement_.adopt(std::move(where));
  keeps_.settle(std::move(what), by != followed::by_rule && step.peer_link.has_value());
  // What was forecast for shapes that repeat does run; with others what stays breaks memory up.
  const bool repeats = learner_.settle(std::move(step), by);
  store_.device_source().set_fit(repeats ? fit_policy::ready_first : fit_policy::spare_largest);
  if (by != followed::trial) recorder_.reset();
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

TIDEPOOL_INLINE void engine::record_again() noexcept {
  keeps_.settle({});
  keeps_.keep_at_most(residency::unlimited, 0);
  placement_.adopt({});
  learner_.record_again();
  without_a_plan();
  if (recorder_ != nullptr) recorder_->forget();
}

TIDEPOOL_INLINE void engine::warm_up_anew() {
  if (opts_.policy == policy_kind::automatic && recorder_ == nullptr) {
    recorder_ = std::make_unique<recorder>(*dev_);
  }
  record_again();
}

TIDEPOOL_INLINE void engine::without_a_plan() noexcept {
  // Everything leaves in a step that comes before the first plan, or for which none was found: its
  // time is not that of a step with one, but it has to fit, also in the smallest memory of a plan.
  const bool automatic = opts_.policy == policy_kind::automatic;
  store_.device_source().set_fit(automatic ? fit_policy::compact : fit_policy::spare_largest);
}

[[gnu::cold]] TIDEPOOL_INLINE void engine::expect_group(const chunk_state& chunk, module_id module,
                                                        int layer, commit_kind how) const {
  const auto& planned = profile().chunks[chunk.ordinal].groups;
  const auto at = chunk.groups.size();
  if (at < planned.size() && planned[at].module == module && planned[at].layer == layer) {
    if (how == commit_kind::or_discard ||
        keeps_.planned(chunk.ordinal, at) != plan::action::recompute) {
      return;
    }
    refuse("commit", chunk, module, layer,
           "by the plan that is followed it is computed again, which this trainer does not offer"
           " here; commit it by commit_or_discard, or plan without recomputation");
  }
  refuse("commit", chunk, module, layer,
         "the plan that is followed has " +
             (at < planned.size()
                  ? "'" + std::string(names_[static_cast<std::size_t>(planned[at].module)]) +
                        "' of layer " + std::to_string(planned[at].layer)
                  : "no group") +
             " in this place; plan a profile of these steps");
}

}  // namespace tidepool::detail
