// What becomes of a group, asked of the decider alone: no device, no engine.
#include "tidepool/decide/decider.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace plan = tidepool::plan;
using plan::action;
using tidepool::module_id;
using tidepool::place_kind;
using tidepool::detail::decider;
using tidepool::detail::followed;

// A commit that is to come, and how often each costly question of it was asked.
struct group {
  std::size_t chunk = 0;
  std::size_t number = 0;
  module_id module{};
  int layer = 0;
  bool by_hand = false;
  bool offers = false;
  place_kind nearest = place_kind::peer;
  bool frees = true;
  bool odd = false;
  bool held = false;
  std::size_t free = 1000;
  std::vector<place_kind> all{place_kind::peer, place_kind::host};
  int* questions = nullptr;

  void count() const {
    if (questions != nullptr) ++*questions;
  }
  [[nodiscard]] const std::vector<place_kind>& places() const { return all; }
  [[nodiscard]] std::size_t bytes() const { return count(), 100; }
  [[nodiscard]] std::size_t largest_free() const { return count(), free; }
  [[nodiscard]] bool discardable() const { return count(), frees; }
  [[nodiscard]] bool unknown_to_plans() const { return count(), odd; }
  [[nodiscard]] bool stays_anyway() const { return count(), held; }
  [[noreturn]] void refuse(const std::string& why) const { throw std::runtime_error(why); }
  [[nodiscard]] std::string name_of(module_id other) const {
    return "m" + std::to_string(static_cast<int>(other));
  }
};

plan::profile step_of(std::size_t groups, bool neighbour = true) {
  plan::profile step;
  step.chunks.resize(1);
  for (std::size_t i = 0; i < groups; ++i) {
    step.chunks[0].groups.push_back({module_id{}, static_cast<int>(i), 100});
  }
  step.passes = {{0, false}, {0, true}};
  if (neighbour) step.peer_link.emplace();
  return step;
}

tidepool::decision planned(std::vector<action> what) {
  tidepool::decision made;
  made.made.what = {std::move(what)};
  return made;
}

tidepool::options automatic() {
  tidepool::options opts;
  opts.policy = tidepool::policy_kind::automatic;
  return opts;
}

group at(std::size_t number) {
  group each;
  each.number = number;
  each.layer = static_cast<int>(number);
  return each;
}

}  // namespace

TEST_CASE(
    "decider: in a first step all leaves to the nearest place, and nothing is asked for that") {
  const auto opts = automatic();
  decider which(opts);
  static_cast<void>(which.steps.chunk_begins(0, 0));
  int asked = 0;
  auto each = at(0);
  each.questions = &asked;
  const auto result = which.decide(each);
  CHECK(result.what == action::offload);
  CHECK(result.to == place_kind::peer);
  CHECK(result.noted);
  CHECK(result.awaited);
  CHECK_FALSE(result.offered);
  // That is known only once something is settled; then a commit asks nothing.
  which.follow(step_of(1, false), {{action::offload}}, {}, followed::planned);
  asked = 0;
  CHECK(which.decide(each).what == action::offload);
  CHECK(asked == 0);
}

TEST_CASE("decider: a plan is followed as far as each group lets it") {
  const auto opts = automatic();
  decider which(opts);
  which.follow(step_of(5),
               {{action::keep, action::offload, action::offload_to_peer, action::recompute,
                 action::offload}},
               {}, followed::planned);
  CHECK(which.decide(at(0)).stays());
  CHECK(which.decide(at(0)).by_plan);
  auto odd = at(0);
  odd.odd = true;  // a part, or a block of the trainer's
  CHECK_FALSE(which.decide(odd).stays());
  CHECK(which.decide(at(1)).to == place_kind::host);
  CHECK(which.decide(at(2)).to == place_kind::peer);
  CHECK(which.decide(at(2)).what == action::offload);
  auto held = at(1);
  held.held = true;
  CHECK(which.decide(held).stays());
  CHECK(which.decide(held).wanted == action::offload);
  // Nobody planned for a sixth.
  CHECK(which.decide(at(5)).what == action::offload);

  auto again = at(3);
  CHECK(which.decide(again).what == action::offload);  // not offered
  again.offers = true;
  CHECK(which.decide(again).what == action::recompute);
  again.frees = false;
  CHECK(which.decide(again).what == action::offload);
  CHECK(which.decide(again).wanted == action::recompute);
  auto by_hand = at(0);
  by_hand.by_hand = true;
  CHECK(which.decide(by_hand).what == action::offload);
}

TEST_CASE("decider: what stays is limited, and given back") {
  const auto opts = automatic();
  decider which(opts);
  auto made = planned({action::keep, action::keep});
  made.keep_at_most = 150;
  which.follow(step_of(2), made.made.what, {}, followed::planned);
  which.limit(made);
  CHECK(which.decide(at(0)).stays());
  which.stays(100);
  CHECK_FALSE(which.decide(at(1)).stays());
  which.stays_no_more(100);
  CHECK(which.decide(at(1)).stays());
}

TEST_CASE("decider: a rule keeps by place, a layer that is not named keeps by itself") {
  tidepool::options opts;
  opts.fraction = 0.5;
  opts.margin = false;
  decider which(opts);
  which.follow(step_of(2), which.by_rule(step_of(2)), {}, followed::by_rule);
  CHECK_FALSE(which.decide(at(0)).stays());
  CHECK(which.decide(at(1)).stays());
  auto odd = at(1);
  odd.odd = true;  // a rule does not mind
  CHECK(which.decide(odd).stays());

  opts.fraction = 1;
  opts.offload_layers = {1};
  decider by_layer(opts);
  static_cast<void>(by_layer.steps.chunk_begins(0, 0));
  CHECK(by_layer.decide(at(0)).stays());
  CHECK_FALSE(by_layer.decide(at(0)).by_plan);
  CHECK_FALSE(by_layer.decide(at(1)).stays());
}

TEST_CASE("decider: a plan from elsewhere refuses groups that are not its own") {
  const auto opts = automatic();
  decider which(opts);
  which.follow(step_of(2), {{action::offload, action::recompute}}, {}, followed::unproven);
  CHECK_NOTHROW(static_cast<void>(which.decide(at(0))));
  CHECK_THROWS_WITH(static_cast<void>(which.decide(at(1))),
                    doctest::Contains("does not offer here; commit it by commit_or_discard"));
  auto offered = at(1);
  offered.offers = true;
  CHECK(which.decide(offered).what == action::recompute);
  auto other = at(0);
  other.layer = 4;
  CHECK_THROWS_WITH(static_cast<void>(which.decide(other)),
                    doctest::Contains("has 'm0' of layer 0 in this place"));
  CHECK_THROWS_WITH(static_cast<void>(which.decide(at(2))),
                    doctest::Contains("has no group in this place"));
}

TEST_CASE("decider: limits of reloads ahead are the plan's while it is followed") {
  auto opts = automatic();
  opts.reload_ahead = 3;
  opts.reload_ahead_bytes = 77;
  decider which(opts);
  CHECK(which.limits() == tidepool::reload_limits{3, 77});
  auto made = planned({action::offload});
  made.made.reload_ahead = 9;
  which.follow(step_of(1), made.made.what, {}, followed::planned);
  which.limit(made);
  CHECK(which.limits() == tidepool::reload_limits{9, {}});
  which.record_again();
  CHECK(which.limits() == tidepool::reload_limits{3, 77});
  static_cast<void>(which.steps.chunk_begins(0, 0));
  CHECK(which.decide(at(0)).what == action::offload);
}

TEST_CASE("decider: a group that nobody restores is not awaited") {
  const auto opts = automatic();
  decider which(opts);
  which.follow(step_of(2), {{action::offload, action::offload}}, {}, followed::planned);
  which.forgotten.add(0, 1);
  CHECK(which.decide(at(0)).awaited);
  CHECK_FALSE(which.decide(at(1)).awaited);
}
