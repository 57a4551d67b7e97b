// Decides for each group of a step whether it leaves, and where its memory should be placed. It
// follows the group's layer, Megatron's rule, or a plan. It knows no device; the engine asks it
// once for each commit.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "tidepool/core/decision.hpp"
#include "tidepool/decide/followed_placement.hpp"
#include "tidepool/decide/forgotten_groups.hpp"
#include "tidepool/decide/policy.hpp"
#include "tidepool/decide/residency.hpp"
#include "tidepool/decide/step_learner.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/step_plan.hpp"

namespace tidepool::inline v0_3_0::detail {

// The decision about a group: the action that was wanted, and the action that is possible.
struct verdict {
  plan::action wanted = plan::action::offload;
  plan::action what = plan::action::offload;
  place_kind to{};       // where the group goes, if it leaves
  bool offered = false;  // the trainer may be asked to compute it again
  bool by_plan = false;  // kept for its place in the step, not for its layer
  bool awaited = true;   // a restore is expected; see `forgotten_groups`
  bool noted = false;    // the step notes it, by `committed`, once it cannot fail any more
  [[nodiscard]] bool stays() const { return what == plan::action::keep; }
};

// `Group` describes a commit. The decider asks it only for facts that the decision needs:
//
//     chunk, number        its place in the step
//     module, layer, by_hand, offers
//     nearest, places()    where it may go
//     bytes()              of its handles
//     largest_free()       the longest piece of free memory
//     discardable()        a drop of its handles frees their memory, which no other group needs
//     unknown_to_plans()   it takes memory that no plan knows of
//     stays_anyway()       other groups keep all of it on the device
//     refuse(why), name_of(module)
class decider {
 public:
  explicit decider(const options& opts)
      : steps(opts), opts_(&opts), keeps_(opts.offload_layers), limits_(by_options()) {}

  step_learner steps;          // kind of the present step
  followed_placement where;    // places that a plan gives to memory
  forgotten_groups forgotten;  // groups that are not restored

  // Returns false if every group that offers no recomputation leaves for the nearest place, as a
  // new `verdict` says.
  [[nodiscard]] bool has_a_say() const {
    return steps.follows < followed::by_rule || forgotten.any || !keeps_.everything_leaves;
  }
  // Decides about a group. Changes nothing, except that a step that is noted gets room for the
  // group.
  template <class Group>
  [[nodiscard]] verdict decide(const Group& group) {
    verdict result;
    result.to = group.nearest;
    if (steps.follows < followed::by_rule) {
      if (steps.held_to_plan()) expect(group);
      result.noted = steps.expect_commit(group.chunk, group.number);
    }
    result.awaited = !forgotten.any || !forgotten.has(group.chunk, group.number);
    if (group.by_hand) return result;  // the trainer releases its handles: all must leave
    result.offered = group.offers && opts_->recompute_by_plan && group.discardable();
    if (!keeps_.everything_leaves) choose(group, result);
    return result;
  }
  void stays(std::size_t bytes) { keeps_.add(bytes); }
  void stays_no_more(std::size_t bytes) { keeps_.take(bytes); }

  [[nodiscard]] const residency& keeps() const { return keeps_; }
  [[nodiscard]] const reload_limits& limits() const { return limits_; }

  // ---- what the steps to come follow ----

  // The actions that Megatron's rule gives to a step.
  [[nodiscard]] plan::actions by_rule(const plan::profile& step) const {
    return plan::actions_of(plan::megatron_policy(step, *opts_));
  }
  // Follows a plan that was made for `step`. Returns false if shapes may vary, see
  // `step_learner::settle`.
  bool follow(plan::profile step, plan::actions what, plan::placement places, followed by) {
    where.adopt(std::move(places));  // first: a failure leaves the plan that was followed before
    keeps_.settle(std::move(what), by != followed::by_rule && step.peer_link.has_value());
    return steps.settle(std::move(step), by);
  }
  // Sets the limits of the plan that is followed.
  void limit(const decision& what) {
    keep_at_most(what.keep_at_most, what.free_piece);
    limits_ = {what.made.reload_ahead, {}};
    if (what.made.reload_ahead_bytes > 0) limits_.bytes = what.made.reload_ahead_bytes;
  }
  // Limits what stays by plan, see `decision`. A free piece counts only in an arena.
  void keep_at_most(std::size_t bytes, std::size_t free_piece) {
    keeps_.keep_at_most(bytes, opts_->memory == memory_kind::arena ? free_piece : 0);
  }
  // Drops the plan: the next step is the first.
  void record_again() noexcept {
    limits_ = by_options();
    keeps_.settle({});
    keeps_.keep_at_most(residency::unlimited, 0);
    where.adopt({});
    steps.record_again();
  }

 private:
  [[nodiscard]] reload_limits by_options() const {
    return {opts_->reload_ahead, opts_->reload_ahead_bytes};
  }

  // Chooses by layer, rule or plan, as far as the group allows.
  template <class Group>
  [[gnu::cold]] void choose(const Group& group, verdict& result) const {
    using plan::action;
    auto what = keeps_.of(group.chunk, group.number, group.layer, group.bytes(), [&] {
      return where.hold() ? std::numeric_limits<std::size_t>::max() : group.largest_free();
    });
    result.by_plan = keeps_.planned(group.chunk, group.number) == action::keep;
    const bool by_plan = !steps.by_rule() && what == action::keep && result.by_plan;
    if (by_plan && group.unknown_to_plans()) what = action::offload;
    result.to = keeps_.place_of(what, group.places());
    result.wanted = result.what = what == action::offload_to_peer ? action::offload : what;
    if (result.what == action::recompute && !result.offered) result.what = action::offload;
    if (result.what == action::offload && group.stays_anyway()) result.what = action::keep;
  }

  // Refuses a group that is not the plan's group in this place.
  template <class Group>
  [[gnu::cold]] void expect(const Group& group) const {
    const auto& planned = steps.profile().chunks[group.chunk].groups;
    const auto at = group.number;
    if (at < planned.size() && planned[at].module == group.module &&
        planned[at].layer == group.layer) {
      if (group.offers || keeps_.planned(group.chunk, at) != plan::action::recompute) return;
      group.refuse(
          "by the plan that is followed it is computed again, which this trainer does not offer"
          " here; commit it by commit_or_discard, or plan without recomputation");
    }
    group.refuse("the plan that is followed has " +
                 (at < planned.size() ? "'" + group.name_of(planned[at].module) + "' of layer " +
                                            std::to_string(planned[at].layer)
                                      : "no group") +
                 " in this place; plan a profile of these steps");
  }

  const options* opts_;
  residency keeps_;
  reload_limits limits_;  // limits of the options, or of the plan
};

}  // namespace tidepool::detail
