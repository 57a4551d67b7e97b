// Which step this is, what is noted of it, and what its end means. No device: the engine tells it
// what happens, and asks.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/engine/room.hpp"
#include "tidepool/error.hpp"
#include "tidepool/options.hpp"
#include "tidepool/plan/detail/recorded_steps.hpp"
#include "tidepool/plan/profile.hpp"
#include "tidepool/rules/forgotten_calls.hpp"
#include "tidepool/rules/growth.hpp"
#include "tidepool/rules/policy.hpp"

namespace tidepool::inline v0_2_0::detail {

// What the end of a step was the end of.
enum class stage : std::uint8_t {
  step,
  warm_up,     // what stays is settled, or a plan from elsewhere is proved
  first,       // recorded: whether shapes vary is not known of it alone
  recorded,    // a plan of it is tried out in the steps to come
  timed,       // the last that is recorded
  given_up,    // nothing is learnt of it, since a chunk was given up
  short_step,  // nor of one that falls short of those before it
  starved,     // it did not fit under the plan; the warm-up begins anew
  outgrown,    // it was larger than the plan; likewise
};

// What a step follows. The table of what leads from one to another is in docs/architecture.md.
enum class followed : std::uint8_t {
  nothing,   // everything leaves, and the step is noted
  trial,     // a plan of earlier steps of the warm-up; the step is noted
  unproven,  // a plan from elsewhere, which this step is held to
  by_rule,   // Megatron's rule; from here on nobody asks what is committed
  planned,   // a plan that was made here, or has been proved
};

class step_learner {
 public:
  explicit step_learner(const options& opts)
      : automatic_(opts.policy == policy_kind::automatic),
        rule_keeps_(plan::may_keep(opts)),
        timed_step_(opts.timed_step) {}

  // ---- which step this is ----

  followed follows = followed::nothing;  // written here alone
  [[nodiscard]] bool warming_up() const { return follows <= followed::trial; }
  [[nodiscard]] bool by_rule() const { return follows == followed::by_rule; }
  [[nodiscard]] bool unproven() const { return follows == followed::unproven; }
  // Offers are timed in the first step alone: the plan is made of a later one, whose calls then
  // have the order of the steps that follow the plan.
  [[nodiscard]] bool measuring() const { return automatic_ && follows == followed::nothing; }
  // Calls other than the plan's are refused.
  [[nodiscard]] bool held_to_plan() const { return unproven() && !now_.given_up; }
  // By a step that did not fit. What everything leaves in fits at least as well. Graphs are
  // captured when all is settled, and a plan from elsewhere is only left for one that is made here.
  [[nodiscard]] bool may_leave_plan() const {
    return automatic_ && follows != followed::nothing && !unproven() && !captured_;
  }
  // The one that is noted, or that the plan was made of.
  [[nodiscard]] const plan::profile& step() const { return step_; }
  [[nodiscard]] plan::profile& step() { return step_; }

  [[nodiscard]] std::size_t begun() const { return now_.begun; }  // forward passes
  // Evaluated since the latest chunk that trains, and no step has begun.
  [[nodiscard]] bool evaluated_between() const { return evaluated_ && now_.begun == 0; }

  forgotten_calls forgotten;  // by the trainer

  // ---- what happens in it ----

  void evaluation_begins() { evaluated_ = true; }

  // A chunk that trains is to begin: throws where the plan has another, and makes room for it, so
  // that neither its beginning nor that of its backward pass may fail.
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
  // True where it is the first that is noted, behind an evaluation that is no part of the step.
  bool chunk_begins(int model_chunk, int microbatch) {
    const bool anew = std::exchange(evaluated_, false) && warming_up() && step_.chunks.empty();
    if (warming_up()) {
      step_.chunks.push_back({model_chunk, {}, microbatch});
      step_.passes.push_back({now_.begun, false});
    }
    ++now_.begun;
    return anew;
  }
  // A commit is to come. True where it is noted, by `committed`, once it cannot fail any more.
  [[nodiscard]] bool expect_commit(std::size_t chunk, std::size_t groups_before) {
    if (!warming_up()) return false;
    make_room(step_.chunks[chunk].groups, groups_before + 1);
    return true;
  }
  void committed(std::size_t chunk, module_id module, int layer, std::size_t bytes, bool offered) {
    auto& groups = step_.chunks[chunk].groups;
    const double again_us = offered ? recompute_us(chunk, groups.size(), module, layer) : 0;
    groups.push_back({module, layer, bytes, again_us});
  }
  void backward_begins(std::size_t chunk) {
    if (warming_up()) step_.passes.push_back({chunk, true});
  }
  // A chunk of so many groups is to finish.
  void expect_no_more(std::size_t chunk, std::size_t groups) const {
    if (!held_to_plan() || groups == step_.chunks[chunk].groups.size()) return;
    refuse("finish: chunk " + std::to_string(chunk) + " of the step had " + std::to_string(groups) +
               " groups",
           std::to_string(step_.chunks[chunk].groups.size()));
  }
  // It is over, or is `dropped` in the middle; true where its pass was given up: `unfinished` tells
  // what the chunk itself knows of that.
  bool chunk_ends(std::size_t chunk, std::size_t groups, bool dropped, bool unfinished) {
    const auto& planned = step_.chunks;
    const auto most = chunk < planned.size() ? planned[chunk].groups.size() : 0;
    // One that lacks groups of the plan was refused by `finish`, and proves no plan.
    const bool given_up = dropped && (unfinished || (held_to_plan() && groups != most));
    growth_.chunk_ended(groups, chunk < planned.size() && groups <= most);
    now_.given_up = now_.given_up || given_up;
    now_.dropped = now_.dropped || dropped;
    return given_up;
  }
  // The latest is no part of the step: the next chunk takes its place.
  void forget_latest_chunk() noexcept {
    --now_.begun;
    if (!warming_up()) return;
    step_.chunks.pop_back();
    std::erase_if(step_.passes, [&](const auto& pass) { return pass.chunk == now_.begun; });
  }
  // Memory is held as no recorded event tells.
  void shapes_vary() noexcept { now_.varies = true; }
  // It has met the device budget.
  void starves() noexcept { now_.starved = true; }
  void captures() noexcept { captured_ = true; }

  // ---- its end ----

  // None where the step is to be learnt from: by the rule, or as `wants` and `learn` say. Where it
  // throws, the step is over all the same, and another plan may be followed.
  [[nodiscard]] std::optional<stage> end_step() {
    const auto over = std::exchange(now_, {});
    forgotten.step_ended();
    const auto size = growth_.step_ended(over.given_up);
    varied_ = varied_ || (over.varies && !over.given_up);
    if (over.starved && over.given_up && may_leave_plan()) return stage::starved;
    // An evaluation proves nothing, nor does a step without some of its chunks.
    const bool proves = unproven() && over.begun > 0 && !over.given_up;
    if (proves && over.begun != step_.chunks.size()) {
      refuse("end_step: the step had " + std::to_string(over.begun) + " chunks",
             std::to_string(step_.chunks.size()));
    }
    if (proves) follows = followed::planned;
    if (size.outgrown && plans_anew()) return stage::outgrown;
    // Only a step that trained teaches; an evaluation before it does not.
    const bool trained = warming_up() && !step_.chunks.empty() && !over.given_up;
    const bool short_step = trained && size.falls_short && growth_.waits();
    if (trained && !short_step) return std::nullopt;
    if (warming_up()) step_.clear();
    varied_ = varied_ || (short_step && size.varies);
    if (short_step) return stage::short_step;
    if (over.given_up && warming_up()) return stage::given_up;
    return proves ? stage::warm_up : stage::step;
  }

  // Of an automatic warm-up: whether its record is to be finished, which goes to `step()`.
  [[nodiscard]] bool wants_record(bool waited_for_others) {
    ++trained_;
    // A GPU at its power limit computes faster in a step that stands still more: a plan has to come
    // from a step much like those that follow it.
    const bool soon = std::has_single_bit(static_cast<unsigned>(trained_));
    // Other ranks follow new plans as well, and the waits for them become shorter each time.
    if (!between() || soon || waited_for_others) return true;
    step_.clear();
    return false;
  }
  // It is recorded, with storages of these sizes; `drains` are of its events, if anything is known.
  [[nodiscard]] stage learn(const std::vector<std::size_t>& sizes, std::vector<drain> drains = {}) {
    const bool first = trained_ == 1;
    if (first) {
      first_ = step_.chunks;
      first_sizes_ = sizes;
    }
    // One step cannot tell.
    step_.shapes_vary =
        first || varied_ || !same_shapes(first_, step_.chunks) || first_sizes_ != sizes;
    recorded_.add(step_, std::move(drains), first);
    recorded_.merge_into(step_);
    if (first) return stage::first;
    if (between()) return stage::recorded;
    first_.clear();
    recorded_.clear();
    return stage::timed;
  }

  // ---- what comes after it ----

  // What becomes of each group is settled, for steps like this one. False where shapes may vary, so
  // that memory may be in pieces where nobody planned for it.
  bool settle(plan::profile step, followed by) noexcept {
    const bool one_step = by == followed::trial && trained_ == 1;  // which cannot tell
    const bool repeats = by != followed::by_rule && !one_step && !step.shapes_vary;
    follows = by;
    step_ = std::move(step);
    if (by == followed::trial) step_.clear();
    if (by == followed::unproven) {
      now_ = {};  // what was, was no chunk of the step that is held to it
      growth_.forget_step();
    }
    return repeats;
  }
  // Whatever was, the next step is the first.
  void record_again() noexcept {
    follows = followed::nothing;
    trained_ = 0;
    varied_ = now_.varies = false;
    step_.clear();
    first_.clear();
    recorded_.clear();
    growth_.warm_up_begins();
  }

 private:
  // What is known of the step so far.
  struct facts {
    std::size_t begun = 0;
    bool given_up = false;  // a chunk of it was dropped in the middle
    bool dropped = false;   // or before its end, wherever it was
    bool starved = false;
    bool varies = false;  // memory is held as no recorded event tells
  };

  // Computing a group again, as the first step of an automatic warm-up measured it; 0: unknown.
  [[nodiscard]] double recompute_us(std::size_t chunk, std::size_t group, module_id module,
                                    int layer) const {
    if (chunk >= first_.size() || group >= first_[chunk].groups.size()) return 0;
    const auto& known = first_[chunk].groups[group];
    return known.module == module && known.layer == layer ? known.recompute_us : 0;
  }
  // Times differ from step to step.
  [[nodiscard]] static bool same_shapes(const std::vector<plan::chunk_profile>& a,
                                        const std::vector<plan::chunk_profile>& b) {
    const auto same_group = [](const plan::group_profile& x, const plan::group_profile& y) {
      return x.module == y.module && x.layer == y.layer && x.bytes == y.bytes;
    };
    return std::ranges::equal(a, b, [&](const auto& x, const auto& y) {
      return x.model_chunk == y.model_chunk && x.microbatch == y.microbatch &&
             std::ranges::equal(x.groups, y.groups, same_group);
    });
  }

  [[nodiscard]] bool between() const { return trained_ > 1 && trained_ < timed_step_; }
  // Groups that nobody planned for would all leave, for ever; by some rules all do.
  [[nodiscard]] bool plans_anew() const {
    // What a rule kept of smaller steps does not tell: half of one group is none.
    return !warming_up() && !captured_ && (automatic_ || (by_rule() && rule_keeps_));
  }

  [[noreturn, gnu::cold]] static void refuse(const std::string& what, const std::string& planned) {
    throw misuse_error(what + ", but the plan that is followed has " + planned +
                       "; plan a profile of these steps");
  }

  bool automatic_;
  bool rule_keeps_;
  int timed_step_;
  facts now_;
  plan::profile step_;
  growth growth_;
  bool evaluated_ = false;  // since the latest chunk that trains
  bool captured_ = false;   // a graph, at some time
  bool varied_ = false;     // a step of this warm-up did
  // Of an automatic warm-up.
  int trained_ = 0;                         // steps of it
  std::vector<plan::chunk_profile> first_;  // its first step
  std::vector<std::size_t> first_sizes_;    // and of all its storages
  plan::detail::recorded_steps recorded_;   // its latest
};

}  // namespace tidepool::detail
