// A step learner that begins anew, and what it makes room for: no engine, no device.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "heap_counter.hpp"
#include "tidepool/decide/step_learner.hpp"
#include "tidepool/observe/recorded_steps.hpp"

namespace {

using namespace tidepool;
using detail::followed;
using detail::stage;
using detail::step_learner;
using plan::detail::warm_up_steps;

constexpr auto module = static_cast<module_id>(0);

options automatic(int timed_step) {
  options opts;
  opts.policy = policy_kind::automatic;
  opts.timed_step = timed_step;
  return opts;
}

// One chunk of one group that may be computed again.
void pass(step_learner& steps) {
  steps.expect_chunk(0);
  static_cast<void>(steps.chunk_begins(0, 0));
  CHECK(steps.expect_commit(0, 0));
  steps.committed(0, module, 0, 64);
  steps.backward_begins(0);
  CHECK_FALSE(steps.chunk_ends(0, 1, false, false));
}

// The step is over; it computed for `us` before each of its calls, and so to make the group again.
stage learn(step_learner& steps, warm_up_steps& kept, double us) {
  CHECK_FALSE(steps.end_step());
  CHECK(kept.wants_record(false));
  auto& step = steps.step();
  step.events = {{plan::event_kind::commit, 0, 0, us, 0}, {plan::event_kind::restore, 0, 0, us, 0}};
  step.chunks[0].groups[0].recompute_us = us;
  return kept.learn(step, steps.varied(), {64});
}

}  // namespace

TEST_CASE("steps: a warm-up that begins anew knows nothing of the one before") {
  step_learner steps(automatic(3));
  warm_up_steps kept(3);
  SUBCASE("of which a step was learnt from") {
    pass(steps);
    steps.shapes_vary();
    CHECK(learn(steps, kept, 100) == stage::first);
  }
  SUBCASE("in which a handle went between steps") { steps.shapes_vary(); }
  steps.record_again();
  kept = warm_up_steps(3);
  CHECK(steps.measuring());
  pass(steps);
  CHECK(kept.recompute_us(0, 0, module, 0) == 0);
  CHECK(learn(steps, kept, 1000) == stage::first);
  CHECK(steps.step().events[1].compute_us == 1000);
  static_cast<void>(steps.settle(steps.step(), followed::trial));
  pass(steps);
  CHECK(kept.recompute_us(0, 0, module, 0) == 1000);
  CHECK(learn(steps, kept, 1000) == stage::recorded);
  CHECK_FALSE(steps.step().shapes_vary);
}

TEST_CASE("steps: one step alone cannot tell that shapes repeat, two can, and so can a plan") {
  step_learner steps(automatic(3));
  warm_up_steps kept(3);
  pass(steps);
  CHECK(learn(steps, kept, 100) == stage::first);
  const auto first = steps.step();
  CHECK_FALSE(steps.settle(first, followed::trial));
  SUBCASE("two steps") {
    pass(steps);
    CHECK(learn(steps, kept, 100) == stage::recorded);
    CHECK(steps.settle(steps.step(), followed::trial));
  }
  SUBCASE("a plan from elsewhere") {
    plan::profile elsewhere;
    elsewhere.chunks = first.chunks;
    CHECK(steps.settle(elsewhere, followed::unproven));
  }
}

TEST_CASE("steps: once a call is expected, noting it takes no memory, so that it cannot fail") {
  constexpr std::size_t many = 9;
  step_learner steps(automatic(3));
  const auto without_memory = [](auto&& call) {
    const auto before = test::heap_allocations();
    call();
    CHECK(test::heap_allocations() == before);
  };
  for (std::size_t chunk = 0; chunk < many; ++chunk) {
    steps.expect_chunk(0);
    without_memory([&] { static_cast<void>(steps.chunk_begins(0, static_cast<int>(chunk))); });
    for (std::size_t group = 0; group < many; ++group) {
      CHECK(steps.expect_commit(chunk, group));
      without_memory([&] { steps.committed(chunk, module, static_cast<int>(group), 64); });
    }
  }
  for (std::size_t chunk = many; chunk-- > 0;) {
    without_memory([&] { steps.backward_begins(chunk); });
  }
  CHECK(steps.step().passes.size() == 2 * many);
}
