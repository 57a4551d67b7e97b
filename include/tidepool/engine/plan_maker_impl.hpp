// The bodies of plan_maker.hpp.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "tidepool/decide/policy.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/plan_maker.hpp"
#include "tidepool/error.hpp"
#include "tidepool/trace/silent.hpp"

namespace tidepool::inline v0_3_0::detail {

TIDEPOOL_INLINE void plan_maker::learn_of(stage over) {
  if (auto* plans = owner_->learns()) {
    if (const auto news = plans->watch(); !news.empty()) report_(news);
  }
  switch (over) {
    case stage::step:
      return;
    case stage::first:
    case stage::recorded:
      return static_cast<void>(owner_->learns()->plan(over));
    case stage::given_up:
      return report_(
          "plan: nothing is learnt of this step, since a chunk was dropped before its backward"
          " pass was over; the next step takes its place. Finish each chunk, and begin those of"
          " evaluations forward_only");
    case stage::short_step:
      return report_(
          "plan: nothing is learnt of this step, since it had fewer chunks or groups than one"
          " before it; a later one takes its place");
    case stage::starved:
      plan_.reset();
      return report_(
          "plan: the step ran out of device memory under the plan, which is given up; the next"
          " step is the first of the warm-up again, in which everything leaves");
    case stage::outgrown:
      plan_.reset();
      return report_(
          "plan: the step had chunks or groups that were not planned for, more than any before"
          " it; they left, and the next step is the first of the warm-up again");
    case stage::timed: {
      auto what = owner_->learns()->plan(over);
      if (!what) return;
      plan_ = std::move(what->made);
      if (!what->words.empty()) report_(what->words);
      break;
    }
    case stage::warm_up:
      report_margin();
      break;
  }
  for (const auto& message : trace::silent_messages(owner_->counters())) report_(message);
}

// Reports modules whose only groups the margin keeps, as in a network whose modules occur once
// each: they offload nothing after the first step. Modules that are enabled only by `all` are
// reported if no other module offloads.
TIDEPOOL_INLINE void plan_maker::report_margin() {
  const auto counted = owner_->counters().modules;
  const auto kept = kept_by_margin(owner_->profile(), owner_->settings());
  const auto left =
      std::ranges::count_if(counted, [](const auto& each) { return each.groups_offloaded > 0; });
  std::string names;
  for (const auto module : kept) {
    const auto& each = counted[static_cast<std::size_t>(module)];
    if (each.by_all && static_cast<std::size_t>(left) > kept.size()) continue;
    names += (names.empty() ? "'" : "', '") + each.name;
  }
  if (names.empty()) return;
  report_("tidepool: from now on nothing of " + names +
          "' is offloaded: --margin keeps the last group that a pass has of each module, and these"
          " have no other. To offload them take --no-margin (margin = false in code); backward may"
          " then wait for their reloads");
}

TIDEPOOL_INLINE void plan_maker::follow(const plan::step_plan& made, const plan::profile& recorded,
                                        std::uint64_t enabled) {
  if (owner_->learns() == nullptr) throw_no_planner("follow: a plan from elsewhere");
  auto kept = std::make_optional(made);
  owner_->learns()->follow(made, recorded, enabled);
  plan_ = std::move(kept);  // no call may fail once the plan is followed
}

TIDEPOOL_INLINE void plan_maker::throw_no_planner(const char* who) {
  throw option_error("tidepool: " + std::string(who) +
                     " needs a planner, and this offloader was given none; #include"
                     " <tidepool/plan.hpp> and construct it as offloader(dev, opts, {.planner ="
                     " tidepool::planner()})");
}

}  // namespace tidepool::detail
