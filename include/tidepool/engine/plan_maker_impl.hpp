// The bodies of plan_maker.hpp.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/plan_maker.hpp"
#include "tidepool/error.hpp"
#include "tidepool/rules/policy.hpp"
#include "tidepool/trace/summary.hpp"

namespace tidepool::inline v0_2_0::detail {

TIDEPOOL_INLINE void plan_maker::after(stage over) {
  switch (over) {
    case stage::step:
      return;
    case stage::first:
    case stage::recorded:
      return try_plan(over == stage::first);
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
    case stage::timed:
      settle_plan();
      break;
    case stage::warm_up:
      report_margin();
      break;
  }
  for (const auto& message : trace::silent_messages(owner_->counters())) report_(message);
}

// The margin keeps a module's only group, as of a network whose modules occur once each: nothing of
// it leaves after the first step. Of `all` that counts where nothing else leaves.
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

// `enabled` has a bit for each module that may leave.
TIDEPOOL_INLINE void plan_maker::follow(const plan::step_plan& made, const plan::profile& recorded,
                                        std::uint64_t enabled) {
  if (source_ == nullptr) throw_no_planner("follow: a plan from elsewhere");
  auto fit = source_->follow(made, recorded, owner_->names(), enabled, settings());
  auto kept = std::make_optional(made);
  owner_->follow(std::move(fit.step), fit.what);
  plan_ = std::move(kept);  // nothing may fail behind what is followed
  // Not all ranks may outgrow theirs, and those that do must not wait for the others.
  link_ = recorded.link;
  peer_link_ = recorded.peer_link;
  peer_shares_link_ = recorded.peer_shares_link;
  link_measured_ = true;
}

// What is borrowed now; null for nothing.
TIDEPOOL_INLINE const loan* plan_maker::lent() const {
  const auto& store = owner_->memory();
  return store.has(place_kind::peer) ? store.at(place_kind::peer).lent : nullptr;
}

template <class Make>
void plan_maker::decided(const Make& make) {
  try {
    make();
  } catch (...) {
    owner_->record_again();
    throw;
  }
}

// As a planner needs them: what is borrowed is the nearest place, with a budget.
TIDEPOOL_INLINE options plan_maker::settings() const {
  auto opts = owner_->settings();
  if (const auto* from = lent()) {
    opts.places.insert(opts.places.begin(), place_kind::peer);
    opts.peer_budget = from->size();
  }
  return opts;
}

TIDEPOOL_INLINE bool plan_maker::has_neighbour() const {
  const auto& places = owner_->settings().places;
  return lent() != nullptr || std::ranges::find(places, place_kind::peer) != places.end();
}

TIDEPOOL_INLINE void plan_maker::measure_links() {
  if (!link_measured_) {
    link_ = owner_->device().measure_link(meet_, owner_->counters().host_reserved / 4);
  }
  link_measured_ = true;
  if (!has_neighbour()) peer_link_.reset();  // the next lender's may be another
  if (!peer_link_) measure_peer();
}

// That meets nobody, and may come later.
TIDEPOOL_INLINE void plan_maker::measure_peer() {
  auto& dev = owner_->device();
  const auto& opts = owner_->settings();
  if (const auto* from = lent()) {
    if (owner_->memory().at(place_kind::peer).blocks->used() > 0) return;
    dev.synchronize();  // what was there may be on its way back
    peer_link_ = dev.measure_lent_link(from->memory(), from->size());
  } else if (std::ranges::find(opts.places, place_kind::peer) != opts.places.end()) {
    peer_link_ = dev.measure_peer_link(opts.peer_device);
  }
  peer_shares_link_ = peer_link_ && dev.peer_shares_link();
}

TIDEPOOL_INLINE void plan_maker::enter_links(plan::profile& step) const {
  step.link = link_;
  step.peer_link = has_neighbour() ? peer_link_ : std::nullopt;
  step.peer_shares_link = peer_shares_link_;
}

TIDEPOOL_INLINE void plan_maker::throw_no_planner(const char* who) {
  throw option_error("tidepool: " + std::string(who) +
                     " needs a planner, and this offloader was given none; #include"
                     " <tidepool/plan.hpp> and construct it as offloader(dev, opts, {.planner ="
                     " tidepool::planner()})");
}

// Empty ones stand for none.
TIDEPOOL_INLINE void plan_maker::on_report(std::function<void(std::string_view)> sink) {
  report_ = sink ? std::move(sink) : [](std::string_view) {};
}

TIDEPOOL_INLINE void plan_maker::on_measure(std::function<void()> meet) {
  meet_ = meet ? std::move(meet) : [] {};
}

TIDEPOOL_INLINE void plan_maker::try_plan(bool first) {
  decided([&] {
    recorded_step recorded{owner_->profile(), first};
    measure_links();
    enter_links(recorded.step);
    const auto made = source_->make(recorded, settings());
    // One step cannot tell. The plan leaves room for shapes that vary, and less stays once they do;
    // but what stays is there for long, and those that repeat find memory in pieces without places.
    if (first) recorded.step.shapes_vary = false;
    owner_->apply(std::move(recorded.step), made, followed::trial);
  });
}

TIDEPOOL_INLINE void plan_maker::settle_plan() {
  decision what;
  decided([&] {
    recorded_step recorded{owner_->profile(), false};
    enter_links(recorded.step);
    what = source_->make(recorded, settings());
    owner_->apply(std::move(recorded.step), what, followed::planned);
  });
  plan_ = what.made;
  if (!what.words.empty()) report_(what.words);
}

TIDEPOOL_INLINE void expect_parts(const options& opts, bool planner, bool memory) {
  if (opts.policy == policy_kind::automatic && !planner) {
    plan_maker::throw_no_planner("policy: automatic");
  }
  if (memory && opts.memory != memory_kind::pool) {
    throw option_error(
        "tidepool: memory: this offloader was given memory of the trainer's own (parts::memory),"
        " which --memory=arena and --memory=slots cannot be; take --memory out");
  }
}

}  // namespace tidepool::detail
