// Notes each step, knows its kind, and tells at its end how to go on. It knows no device: the
// engine reports to it, and asks it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/core/room.hpp"
#include "tidepool/decide/forgotten_calls.hpp"
#include "tidepool/decide/growth.hpp"
#include "tidepool/decide/policy.hpp"
#include "tidepool/error.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::detail {

// The kind of step that has ended.
enum class stage : std::uint8_t {
  step,
  warm_up,     // the rule has chosen the groups that stay, or a plan from elsewhere is proved
  first,       // recorded; one step alone cannot tell whether shapes vary
  recorded,    // a plan of it is tried out in the steps to come
  timed,       // the last step that is recorded
  given_up,    // nothing is learnt of it, because a chunk was given up
  short_step,  // nothing is learnt of it, because it falls short of steps before it
  starved,     // it did not fit under the plan; the warm-up begins anew
  outgrown,    // it was larger than the plan; the warm-up begins anew
};

// The plan or rule that a step follows.
enum class followed : std::uint8_t {
  nothing,   // everything leaves, and the step is noted
  trial,     // a plan of earlier steps of the warm-up; the step is noted
  unproven,  // a plan from elsewhere; calls that differ from it are refused
  by_rule,   // Megatron's rule; from here on commits are neither noted nor checked
  planned,   // a plan that was made here, or has been proved
};

class step_learner {
 public:
  explicit step_learner(const options& opts)
      : automatic_(opts.policy == policy_kind::automatic), rule_keeps_(plan::may_keep(opts)) {}

  // ---- which step this is ----

  followed follows = followed::nothing;  // written only in this class
  [[nodiscard]] bool warming_up() const { return follows <= followed::trial; }
  [[nodiscard]] bool by_rule() const { return follows == followed::by_rule; }
  [[nodiscard]] bool unproven() const { return follows == followed::unproven; }
  // True in the first step of an automatic policy, the only one in which offers are timed. The plan
  // is made of a later step, whose calls then have the order of the steps that follow the plan.
  [[nodiscard]] bool measuring() const {
    return automatic_ && follows == followed::nothing && !planning;
  }
  // True while a plan is made beside the steps of a warm-up. These steps are not learnt from.
  bool planning = false;
  // True if calls that differ from the plan are refused.
  [[nodiscard]] bool held_to_plan() const { return unproven() && !now_.given_up; }
  // True if a step that did not fit may leave the plan: a step in which everything leaves needs no
  // more memory. After a capture the plan cannot change any more. A plan from elsewhere is not left
  // in its first step.
  [[nodiscard]] bool may_leave_plan() const {
    return automatic_ && follows != followed::nothing && !unproven() && !captured_;
  }
  // The step that is noted, or that the plan was made of.
  [[nodiscard]] plan::profile& step() { return step_; }
  // The step that the plan was made of, also while it is timed again; else that which is noted.
  [[nodiscard]] const plan::profile& profile() const { return timed_ ? *timed_ : step_; }

  [[nodiscard]] std::size_t begun() const { return now_.begun; }  // forward passes so far
  // True after an evaluation since the latest chunk that trains, while no step has begun.
  [[nodiscard]] bool evaluated_between() const { return evaluated_ && now_.begun == 0; }

  forgotten_calls forgotten;  // calls that the trainer forgets

  // ---- what happens in a step ----

  void evaluation_begins() { evaluated_ = true; }

  // Expects the begin of a chunk that trains. Throws if the plan has another chunk. Makes room, so
  // that neither the begin of the chunk nor the begin of its backward pass can fail.
  void expect_chunk(int model_chunk) {
    if (held_to_plan()) {
      const auto& planned = step_.chunks;
      const bool more = now_.begun < planned.size();
      now_.given_up = now_.dropped && !more;  // the batch is run again, in the same step
      const bool meant = more && planned[now_.begun].model_chunk == model_chunk;
      if (!meant && !now_.given_up) {
        refuse("begin: chunk " + std::to_string(now_.begun) + " of the step is of model chunk " +
                   std::to_string(model_chunk),
               more ? "model chunk " + std::to_string(planned[now_.begun].model_chunk) + " there"
                    : "only " + std::to_string(planned.size()) + " chunks");
      }
    }
    if (!warming_up()) return;
    make_room(step_.chunks, now_.begun + 1);
    make_room(step_.passes, 2 * (now_.begun + 1));
  }
  // Notes the begin of a chunk. Returns true if it is the first noted chunk after an evaluation,
  // which is not part of the step.
  bool chunk_begins(int model_chunk, int microbatch) {
    const bool anew = std::exchange(evaluated_, false) && warming_up() && step_.chunks.empty();
    if (warming_up()) {
      step_.chunks.push_back({model_chunk, {}, microbatch});
      step_.passes.push_back({now_.begun, false});
    }
    ++now_.begun;
    return anew;
  }
  // Expects a commit. Returns true if `committed` has to note the commit once it cannot fail any
  // more.
  [[nodiscard]] bool expect_commit(std::size_t chunk, std::size_t groups_before) {
    if (!warming_up()) return false;
    make_room(step_.chunks[chunk].groups, groups_before + 1);
    return true;
  }
  void committed(std::size_t chunk, module_id module, int layer, std::size_t bytes) {
    step_.chunks[chunk].groups.push_back({module, layer, bytes, 0});
  }
  void backward_begins(std::size_t chunk) {
    if (warming_up()) step_.passes.push_back({chunk, true});
  }
  // Expects the finish of a chunk of `groups` groups. Throws if the plan has another number.
  void expect_no_more(std::size_t chunk, std::size_t groups) const {
    if (!held_to_plan() || groups == step_.chunks[chunk].groups.size()) return;
    refuse("finish: chunk " + std::to_string(chunk) + " of the step had " + std::to_string(groups) +
               " groups",
           std::to_string(step_.chunks[chunk].groups.size()));
  }
  // Notes the end of a chunk, which may be `dropped` in the middle. Returns true if its pass was
  // given up. `unfinished` is true if groups wait for a restore or backward has not begun.
  bool chunk_ends(std::size_t chunk, std::size_t groups, bool dropped, bool unfinished) {
    const auto& planned = step_.chunks;
    const auto most = chunk < planned.size() ? planned[chunk].groups.size() : 0;
    // `finish` refused a chunk that lacks groups of the plan, so that the chunk proves no plan.
    const bool given_up = dropped && (unfinished || (held_to_plan() && groups != most));
    growth_.chunk_ended(groups, !planning && chunk < planned.size() && groups <= most);
    now_.given_up = now_.given_up || given_up;
    now_.dropped = now_.dropped || dropped;
    return given_up;
  }
  // Forgets the latest chunk, so that the next chunk takes its place in the step.
  void forget_latest_chunk() noexcept {
    --now_.begun;
    if (!warming_up()) return;
    step_.chunks.pop_back();
    std::erase_if(step_.passes, [&](const auto& pass) { return pass.chunk == now_.begun; });
  }
  // Notes that memory is held in a way that no recorded event shows.
  void shapes_vary() noexcept { now_.varies = true; }
  // True if shapes varied in an earlier step of this warm-up.
  [[nodiscard]] bool varied() const { return varied_; }
  // Notes that the step has met the device budget.
  void starves() noexcept { now_.starved = true; }
  void captures() noexcept { captured_ = true; }

  // ---- the end of a step ----

  // Ends the step. Returns none if the rule or a planner has to learn from it. If it throws, the
  // step is over as well, and another plan may be followed.
  [[nodiscard]] std::optional<stage> end_step() {
    const auto over = std::exchange(now_, {});
    forgotten.step_ended();
    const auto size = growth_.step_ended(over.given_up);
    varied_ = varied_ || (over.varies && !over.given_up);
    if (over.starved && over.given_up && may_leave_plan()) return stage::starved;
    // A plan is proved only by a step that trained and gave up none of its chunks.
    const bool proves = unproven() && over.begun > 0 && !over.given_up;
    if (proves && over.begun != step_.chunks.size()) {
      refuse("end_step: the step had " + std::to_string(over.begun) + " chunks",
             std::to_string(step_.chunks.size()));
    }
    if (proves) follows = followed::planned;
    if (size.outgrown && plans_anew()) return stage::outgrown;
    // Only a step that trained is learnt from, not an evaluation before it.
    const bool trained = warming_up() && !step_.chunks.empty() && !over.given_up;
    const bool short_step = trained && size.falls_short && !planning && growth_.waits();
    if (trained && !short_step) return std::nullopt;
    if (warming_up()) step_.clear();
    varied_ = varied_ || (short_step && size.varies);
    if (short_step) return stage::short_step;
    if (over.given_up && warming_up() && !planning) return stage::given_up;
    return proves ? stage::warm_up : stage::step;
  }

  // ---- what the steps to come follow ----

  // Follows a rule or plan for steps like `step`. Returns false if shapes may vary, because memory
  // may then be in pieces that no plan foresaw.
  bool settle(plan::profile step, followed by) noexcept {
    const bool repeats = by != followed::by_rule && !step.shapes_vary;
    planning = false;
    timed_.reset();
    follows = by;
    step_ = std::move(step);
    if (by == followed::trial) step_.clear();
    if (by == followed::unproven) {
      now_ = {};  // earlier chunks do not belong to the step that is held to the plan
      growth_.forget_step();
    }
    return repeats;
  }
  // Has the next steps noted, while the plan goes on.
  void time_again() noexcept {
    follows = followed::trial;
    timed_ = std::exchange(step_, {});
  }
  // Makes the next step the first, whatever was followed before.
  void record_again() noexcept {
    follows = followed::nothing;
    varied_ = now_.varies = planning = false;
    timed_.reset();
    step_.clear();
    growth_.warm_up_begins();
  }

 private:
  // The facts that are known of the step so far.
  struct facts {
    std::size_t begun = 0;
    bool given_up = false;  // the pass of a chunk was given up
    bool dropped = false;   // a chunk was dropped before its finish
    bool starved = false;
    bool varies = false;  // memory is held in a way that no recorded event shows
  };

  // True if a plan that was outgrown is made anew, because groups without a plan would leave for
  // ever. A rule by which all groups leave needs no new plan.
  [[nodiscard]] bool plans_anew() const {
    // `rule_keeps_` is asked, not the groups that the rule kept in smaller steps, because half of
    // one group is none.
    return planning || (!warming_up() && !captured_ && (automatic_ || (by_rule() && rule_keeps_)));
  }

  [[noreturn, gnu::cold]] static void refuse(const std::string& what, const std::string& planned) {
    throw misuse_error(what + ", but the plan that is followed has " + planned +
                       "; plan a profile of these steps");
  }

  bool automatic_;
  bool rule_keeps_;
  facts now_;
  plan::profile step_;
  std::optional<plan::profile> timed_;  // of the plan, while the steps under it are timed again
  growth growth_;
  bool evaluated_ = false;  // an evaluation has begun since the latest chunk that trains
  bool captured_ = false;   // a graph was captured at some time
  bool varied_ = false;     // shapes varied in a step of this warm-up
};

}  // namespace tidepool::detail
