// What the engine learns of a step, and the plan that it follows.
#pragma once

#include <algorithm>
#include <bit>

#include "tidepool/engine/engine.hpp"
#include "tidepool/plan/detail/one_offs.hpp"

namespace tidepool::inline v0_2_0::detail {

// Times differ from step to step.
[[nodiscard]] inline bool same_shapes(const std::vector<plan::chunk_profile>& a,
                                      const std::vector<plan::chunk_profile>& b) {
  const auto same_group = [](const plan::group_profile& x, const plan::group_profile& y) {
    return x.module == y.module && x.layer == y.layer && x.bytes == y.bytes;
  };
  const auto same_chunk = [&](const plan::chunk_profile& x, const plan::chunk_profile& y) {
    return x.model_chunk == y.model_chunk && x.microbatch == y.microbatch &&
           std::ranges::equal(x.groups, y.groups, same_group);
  };
  return std::ranges::equal(a, b, same_chunk);
}

// The step's counts, and its memory: the next one may begin.
template <device Device>
auto engine<Device>::close_step() -> ended_step {
  ended_step step;
  step.chunks = begun_;
  step.given_up = std::exchange(given_up_, false);
  dropped_ = false;
  step.starved = std::exchange(starved_, false) && step.given_up && may_leave_plan();
  // An evaluation proves nothing, nor does a step without some of its chunks.
  step.proves = unproven_ && step.chunks > 0 && !step.given_up;
  if (step.given_up) shapes_vary_ = shapes_varied_;
  shapes_varied_ = shapes_vary_;
  ++counters_.steps;
  store_.device_source().coalesce();
  store_.borrowed().give_back();
  begun_ = 0;
  backward_begun_ = 0;
  live_.step_ended();
  placement_.step_ended();
  for (std::size_t m = 0; m < counters_.modules.size(); ++m) {
    auto& count = counters_.modules[m];
    count.step_bytes = count.bytes_offloaded - bytes_before_step_[m];
    bytes_before_step_[m] = count.bytes_offloaded;
  }
  step.size = growth_.step_ended(step.given_up);
  return step;
}

template <device Device>
auto engine<Device>::end_step() -> stage {
  if (spare_.size() != chunks_.size()) throw_still_open();
  const auto step = close_step();
  // The step is over all the same, and another plan may be followed.
  if (step.proves && step.chunks != profile_.chunks.size()) {
    throw misuse_error("end_step: the step had " + std::to_string(step.chunks) +
                       " chunks, but the plan that is followed has " +
                       std::to_string(profile_.chunks.size()) + "; plan a profile of these steps");
  }
  unproven_ = unproven_ && !step.proves;
  if (step.starved) {
    warming_up() ? record_again() : warm_up_anew();
    return stage::starved;
  }
  if (step.size.outgrown && plans_anew()) {
    warm_up_anew();
    return stage::outgrown;
  }
  // Only a step that trained teaches; an evaluation before it does not.
  const bool trained = warming_up() && !profile_.chunks.empty() && !step.given_up;
  const bool short_step = trained && step.size.falls_short && growth_.waits();
  if (short_step && step.size.varies) shapes_vary_ = shapes_varied_ = true;
  if (!trained || short_step) {
    if (recorder_ != nullptr) recorder_->start(store_.order().stream(last_lane_));
    if (warming_up()) profile_.clear();
    if (short_step) return stage::short_step;
    if (step.given_up) return warming_up() ? stage::given_up : stage::step;
    return step.proves ? stage::warm_up : stage::step;
  }
  // Whatever fails, the next step counts as the first, not as more of this one.
  try {
    if (opts_.policy != policy_kind::megatron) return learn();
    auto stays = plan::megatron_policy(profile_, opts_);
    by_rule_ = true;
    adopt(std::move(profile_), plan::actions_of(stays));
    return stage::warm_up;
  } catch (...) {
    record_again();
    throw;
  }
}

// Of a step of an automatic warm-up.
template <device Device>
auto engine<Device>::learn() -> stage {
  ++trained_steps_;
  const bool between = trained_steps_ > 1 && trained_steps_ < opts_.timed_step;
  // A GPU at its power limit computes faster in a step that stands still more: a plan has to come
  // from a step much like those that follow it.
  const bool soon = std::has_single_bit(static_cast<unsigned>(trained_steps_));
  recorder_->check();
  if (between && !soon && !recorder_->waited_for_others()) {
    recorder_->start(store_.order().stream(last_lane_));
    profile_.clear();
    return stage::step;
  }
  recorder_->finish(profile_);
  profile_.modules = names_;
  if (trained_steps_ == 1) {
    first_step_ = profile_.chunks;
    first_sizes_ = recorder_->sizes();
    recorded_ = profile_;
    profile_.shapes_vary = true;  // as far as one step can tell
    return stage::first;
  }
  profile_.shapes_vary = shapes_vary_ || !same_shapes(first_step_, profile_.chunks) ||
                         first_sizes_ != recorder_->sizes();
  plan::detail::leave_out_one_offs(profile_, std::exchange(recorded_, profile_));
  // Other ranks follow new plans as well, and the waits for them become shorter each time.
  if (between) return stage::recorded;
  first_step_.clear();
  recorded_.clear();
  return stage::timed;
}

template <device Device>
void engine<Device>::apply(plan::profile step, const decision& what) {
  // Pieces count in an arena.
  keeps_.keep_at_most(what.keep_at_most, opts_.memory == memory_kind::arena ? what.free_piece : 0);
  opts_.reload_ahead = what.made.reload_ahead;
  opts_.reload_ahead_bytes.reset();
  if (what.made.reload_ahead_bytes > 0) opts_.reload_ahead_bytes = what.made.reload_ahead_bytes;
  adopt(std::move(step), what.made.what, what.placement);
  if (!what.made.expected.runs) without_a_plan();
}

template <device Device>
void engine<Device>::try_out(plan::profile step, const decision& what) {
  auto going_on = std::move(recorder_);
  try {
    apply(std::move(step), what);
  } catch (...) {
    recorder_ = std::move(going_on);
    throw;
  }
  // One step cannot tell whether shapes vary.
  if (trained_steps_ == 1 && what.made.expected.runs) {
    store_.device_source().set_fit(fit_policy::spare_largest);
  }
  recorder_ = std::move(going_on);
  warming_up_ = true;
  profile_.clear();
  recorder_->start(store_.order().stream(last_lane_));
}

template <device Device>
void engine<Device>::record_again() noexcept {
  keeps_.settle({});
  placement_.adopt({});
  profile_.clear();
  first_step_.clear();
  recorded_.clear();
  trained_steps_ = 0;
  growth_.warm_up_begins();
  shapes_vary_ = shapes_varied_ = false;
  warming_up_ = true;
  without_a_plan();
  if (recorder_ != nullptr) recorder_->forget();
}

// Groups that nobody planned for would all leave, for ever; by some rules all do. Graphs are
// captured when all is settled, and a plan from elsewhere is only left for one that is made here.
template <device Device>
bool engine<Device>::plans_anew() const {
  // What it kept of smaller steps does not tell: half of one group is none.
  const bool rule_keeps = by_rule_ && plan::may_keep(opts_);
  return !warming_up() && !captured_ && (opts_.policy == policy_kind::automatic || rule_keeps);
}

// One that a step did not fit. What everything leaves in fits at least as well.
template <device Device>
bool engine<Device>::may_leave_plan() const {
  const bool under_plan = !warming_up() || trained_steps_ > 0;
  return opts_.policy == policy_kind::automatic && under_plan && !unproven_ && !captured_;
}

template <device Device>
void engine<Device>::warm_up_anew() {
  if (opts_.policy == policy_kind::automatic) {
    recorder_ = std::make_unique<recorder<Device>>(*dev_, next_recorded_);
  }
  keeps_.keep_at_most(residency::unlimited, 0);
  record_again();
}

// The next chunk takes its place in the step.
template <device Device>
void engine<Device>::forget_latest_chunk(const chunk_state& chunk) noexcept {
  --begun_;
  live_.reuse_latest(chunk);
  if (!warming_up()) return;
  profile_.chunks.pop_back();
  std::erase_if(profile_.passes, [&](const auto& pass) { return pass.chunk == begun_; });
}

template <device Device>
void engine<Device>::without_a_plan() noexcept {
  // Everything leaves in a step that comes before the first plan, or for which none was found: its
  // time is not that of a step with one, but it has to fit, also in the smallest memory of a plan.
  const bool automatic = opts_.policy == policy_kind::automatic;
  store_.device_source().set_fit(automatic ? fit_policy::compact : fit_policy::spare_largest);
}

template <device Device>
void engine<Device>::adopt(plan::profile step, plan::actions what, plan::placement where) {
  // What may fail comes first, and leaves what was followed before.
  step.modules = names_;
  live_.expect_order(step);
  placement_.adopt(std::move(where));
  profile_ = std::move(step);
  keeps_.settle(std::move(what));
  // What was forecast for shapes that repeat does run; with others what stays breaks memory up.
  const bool predicted = !by_rule_ && !profile_.shapes_vary;
  store_.device_source().set_fit(predicted ? fit_policy::ready_first : fit_policy::spare_largest);
  warming_up_ = false;
  if (recorder_ != nullptr) next_recorded_ = recorder_->next_storage();
  recorder_.reset();
}

template <device Device>
void engine<Device>::follow(plan::profile step, const decision& what) {
  if (begun_ != 0) {
    throw misuse_error(
        "follow: a step is under way; call it before the first chunk of a step, or"
        " after end_step");
  }
  by_rule_ = false;
  forgotten_.learn(step);
  apply(std::move(step), what);
  unproven_ = true;
  given_up_ = dropped_ = false;  // what was, was no chunk of the step that is held to it
  growth_.forget_step();
}

template <device Device>
[[gnu::cold]] void engine<Device>::expect_chunk(const chunk_info& info) const {
  const auto& planned = profile_.chunks;
  if (begun_ < planned.size() && planned[begun_].model_chunk == info.model_chunk) return;
  throw misuse_error("begin: chunk " + std::to_string(begun_) + " of the step is of model chunk " +
                     std::to_string(info.model_chunk) + ", but the plan that is followed has " +
                     (begun_ < planned.size()
                          ? "model chunk " + std::to_string(planned[begun_].model_chunk) + " there"
                          : "only " + std::to_string(planned.size()) + " chunks") +
                     "; plan a profile of these steps");
}

template <device Device>
[[gnu::cold]] void engine<Device>::expect_group(const chunk_state& chunk, module_id module,
                                                int layer, commit_kind how) const {
  const auto& planned = profile_.chunks[chunk.ordinal()].groups;
  const auto at = chunk.group_count();
  if (at < planned.size() && planned[at].module == module && planned[at].layer == layer) {
    if (how == commit_kind::or_discard ||
        keeps_.planned(chunk.ordinal(), at) != plan::action::recompute) {
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

template <device Device>
[[gnu::cold]] void engine<Device>::expect_no_more(const chunk_state& chunk) const {
  const auto& planned = profile_.chunks[chunk.ordinal()].groups;
  if (chunk.group_count() == planned.size()) return;
  throw misuse_error("finish: chunk " + std::to_string(chunk.ordinal()) + " of the step had " +
                     std::to_string(chunk.group_count()) +
                     " groups, but the plan that is followed has " +
                     std::to_string(planned.size()) + "; plan a profile of these steps");
}

}  // namespace tidepool::detail
