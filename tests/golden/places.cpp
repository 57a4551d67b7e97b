/// Recorded steps with a neighbour's memory: what is predicted of a plan is what a trainer then
/// takes, and no plan is slower for the neighbour.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tidepool/plan/automatic.hpp>

#include "cases.hpp"
#include "trainer.hpp"

namespace {

namespace plan = tidepool::plan;
using tidepool::place_kind;

/// An arena of a share of what is held at once; with a neighbour, if it has any bytes.
tidepool::options within(const plan::profile& step, std::size_t percent, std::size_t peer_percent) {
  const auto held = plan::planner(step).in_core().peak;
  tidepool::options opts;
  opts.memory = tidepool::memory_kind::arena;
  opts.device_budget = held / 100 * percent;
  opts.plan_effort = 60;
  if (peer_percent == 0) return opts;
  opts.places = {place_kind::peer, place_kind::host};
  opts.peer_budget = held / 100 * peer_percent;
  return opts;
}

std::size_t to_the_neighbour(const plan::step_plan& made) {
  return plan::detail::count_of(made.what, plan::action::offload_to_peer);
}

// For other ranks, which the trainer takes for computing.
bool waits(const plan::profile& step) {
  return std::any_of(step.events.begin(), step.events.end(),
                     [](const auto& each) { return each.wait_us > 0; });
}

plan::profile with_neighbour(plan::profile step) {
  step.peer_link = {396, 394, 782, 2};
  return step;
}

}  // namespace

TEST_CASE("golden places: a plan with a neighbour takes what was predicted, and no more room") {
  golden::recordings stored(TIDEPOOL_SOURCE_DIR "/tests/profiles");
  std::size_t with = 0;
  for (const auto& name : stored.names()) {
    const auto step = with_neighbour(stored.profile(name));
    if (!golden::trainer::can_do(step) || waits(step)) continue;
    for (const std::size_t percent : {55, 35}) {
      auto opts = within(step, percent, 12);
      const auto made = plan::automatic(step, opts);
      if (!made.expected.runs) continue;
      INFO(name, ", ", percent, " %, ", to_the_neighbour(made), " groups to the neighbour");
      if (to_the_neighbour(made) > 0) ++with;
      golden::trainer run(step, opts);
      run.off().follow(made, step);
      for (int i = 0; i < 3; ++i) run.run();
      CHECK(run.run() == doctest::Approx(made.expected.step_us).epsilon(0.01));
      for (const auto& place : run.off().counters().places) {
        if (place.name != "peer 1") continue;
        CHECK((place.bytes_offloaded > 0) == (to_the_neighbour(made) > 0));
        CHECK(place.peak <= *opts.peer_budget);
      }
    }
  }
  CHECK(with > 5);
}

TEST_CASE("golden places: the plans of a training count on the neighbour that it has") {
  golden::recordings stored(TIDEPOOL_SOURCE_DIR "/tests/profiles");
  const auto step = with_neighbour(stored.profile("bench_step_d2"));
  auto opts = within(step, 30, 15);
  opts.policy = tidepool::policy_kind::automatic;
  golden::trainer run(step, opts);
  for (int i = 0; i < 5; ++i) run.run();
  REQUIRE(run.off().current_plan());
  const auto& made = *run.off().current_plan();
  CHECK(to_the_neighbour(made) > 0);
  CHECK(made.peer_budget == opts.peer_budget);
  CHECK(run.run() == doctest::Approx(made.expected.step_us).epsilon(0.01));
}

TEST_CASE("golden places: no plan is slower for a neighbour, and some are much faster") {
  golden::recordings stored(TIDEPOOL_SOURCE_DIR "/tests/profiles");
  double most = 0;
  for (const auto& name : stored.names()) {
    const auto step = with_neighbour(stored.profile(name));
    for (const std::size_t percent : {50, 30}) {
      const auto alone = plan::automatic(step, within(step, percent, 0));
      const auto made = plan::automatic(step, within(step, percent, 15));
      INFO(name, ", ", percent, " %");
      CHECK((made.expected.runs || !alone.expected.runs));
      if (!alone.expected.runs || !made.expected.runs) continue;
      CHECK(made.expected.step_us <= alone.expected.step_us * 1.001);
      CHECK(made.expected.step_us >= made.bound_us * (1 - 1e-9));
      most = std::max(most, alone.expected.step_us / made.expected.step_us - 1);
    }
  }
  MESSAGE("at most " << 100 * most << " % faster");
  CHECK(most > 0.05);
}
