// What the end of a step means, event by event: no engine, no device.
#include "tidepool/decide/step_learner.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "tidepool/observe/recorded_steps.hpp"

namespace {

using tidepool::misuse_error;
using tidepool::options;
using tidepool::policy_kind;
using tidepool::detail::followed;
using tidepool::detail::stage;
using tidepool::detail::step_learner;
using tidepool::plan::detail::warm_up_steps;

options automatic(int timed_step = 4) {
  options opts;
  opts.policy = policy_kind::automatic;
  opts.timed_step = timed_step;
  return opts;
}

constexpr auto module = static_cast<tidepool::module_id>(0);

/// What an engine tells of steps, and an automatic warm-up keeps of them.
class told : public step_learner {
 public:
  explicit told(const options& opts) : step_learner(opts), kept(opts.timed_step) {}

  warm_up_steps kept;

  void record_again() {
    step_learner::record_again();
    kept = warm_up_steps(4);
  }
  stage learn(const std::vector<std::size_t>& sizes) { return kept.learn(step(), varied(), sizes); }
  void forward(std::size_t groups = 2, int model_chunk = 0) {
    const auto chunk = begun();
    expect_chunk(model_chunk);
    static_cast<void>(chunk_begins(model_chunk, static_cast<int>(chunk)));
    for (std::size_t g = 0; g < groups; ++g) {
      if (expect_commit(chunk, g)) committed(chunk, module, static_cast<int>(g), 64);
    }
  }
  void backward(std::size_t chunk, std::size_t groups = 2) {
    backward_begins(chunk);
    expect_no_more(chunk, groups);
    CHECK_FALSE(chunk_ends(chunk, groups, false, false));
  }
  void give_up(std::size_t chunk, std::size_t groups = 2) {
    CHECK(chunk_ends(chunk, groups, true, true));
  }
  void pass(std::size_t groups = 2) {
    forward(groups);
    backward(begun() - 1, groups);
  }
  // As many steps of an automatic warm-up as it takes, each recorded; a plan is tried out after.
  stage recorded_step(const std::vector<std::size_t>& sizes = {64, 64}) {
    CHECK_FALSE(end_step());
    if (!kept.wants_record(false)) {
      step().clear();
      return stage::step;
    }
    const auto over = learn(sizes);
    static_cast<void>(settle(step(), over == stage::timed ? followed::planned : followed::trial));
    return over;
  }
  void plan_after_warm_up() {
    for (stage over{}; over != stage::timed;) {
      pass();
      over = recorded_step();
    }
  }
};

tidepool::plan::profile one_chunk(std::size_t groups = 2) {
  tidepool::plan::profile step;
  step.chunks.push_back({0, {groups, {module, 0, 64, 0}}, 0});
  return step;
}

}  // namespace

TEST_CASE("steps: the first that trains is learnt from, and noted until then") {
  told steps{options()};
  CHECK(steps.warming_up());
  CHECK(steps.end_step() == stage::step);  // empty
  steps.evaluation_begins();
  CHECK(steps.evaluated_between());
  CHECK(steps.end_step() == stage::step);
  steps.forward();
  CHECK_FALSE(steps.evaluated_between());
  steps.forward(3);
  steps.backward(1, 3);
  steps.backward(0);
  REQUIRE(steps.step().chunks.size() == 2);
  CHECK(steps.step().chunks[1].groups.size() == 3);
  CHECK(steps.step().passes.size() == 4);
  CHECK(steps.step().passes[2].chunk == 1);
  CHECK(steps.end_step() == std::nullopt);
  CHECK(steps.begun() == 0);
  CHECK_FALSE(steps.settle(steps.step(), followed::by_rule));
  CHECK(steps.by_rule());
  CHECK_FALSE(steps.evaluated_between());
  steps.pass();
  CHECK(steps.end_step() == stage::step);
}

TEST_CASE("steps: an evaluation before the first chunk is no part of what is recorded") {
  told steps(automatic());
  CHECK_FALSE(steps.chunk_begins(0, 0));
  steps.evaluation_begins();
  CHECK_FALSE(steps.chunk_begins(0, 1));
  steps.record_again();
  steps.evaluation_begins();
  CHECK(steps.chunk_begins(0, 0));
}

TEST_CASE("steps: nothing is learnt of one with a chunk that was given up") {
  told steps(automatic());
  steps.forward();
  steps.give_up(0);
  CHECK(steps.end_step() == stage::given_up);
  CHECK(steps.step().chunks.empty());
  SUBCASE("but dropped once all is restored, it counts") {
    steps.forward();
    steps.backward_begins(0);
    CHECK_FALSE(steps.chunk_ends(0, 2, true, false));
    CHECK(steps.end_step() == std::nullopt);
  }
  SUBCASE("the next takes the place of one whose backward pass never began") {
    steps.forward(1);
    steps.give_up(0, 1);
    steps.forget_latest_chunk();
    CHECK(steps.begun() == 0);
    CHECK(steps.step().passes.empty());
    steps.forward();
    CHECK(steps.step().chunks.size() == 1);
  }
}

TEST_CASE("steps: a smaller one is waited past, a few times") {
  told steps(automatic());
  const auto larger = [&] {
    steps.pass();
    steps.pass();
  };
  larger();
  CHECK(steps.recorded_step() == stage::first);
  for (int i = 0; i < tidepool::detail::growth::patience; ++i) {
    steps.pass();
    CHECK(steps.end_step() == stage::short_step);
  }
  SUBCASE("then it is what is learnt from") {
    steps.pass();
    CHECK(steps.end_step() == std::nullopt);
  }
  SUBCASE("each warm-up waits anew") {
    steps.record_again();
    steps.pass();
    CHECK(steps.end_step() == stage::short_step);
  }
}

TEST_CASE("steps: of an automatic warm-up the 1st, 2nd, 4th ... and the timed one are recorded") {
  told steps(automatic(6));
  std::vector<stage> seen;
  while (steps.warming_up()) {
    CHECK(steps.measuring() == seen.empty());
    steps.pass();
    seen.push_back(steps.recorded_step());
  }
  CHECK(seen == std::vector{stage::first, stage::recorded, stage::step, stage::recorded,
                            stage::step, stage::timed});
}

TEST_CASE("steps: what ranks were waited for in is recorded, too") {
  told steps(automatic(6));
  for (int i = 0; i < 2; ++i) {
    steps.pass();
    static_cast<void>(steps.recorded_step());
  }
  steps.pass();
  CHECK(steps.end_step() == std::nullopt);
  CHECK(steps.kept.wants_record(true));
}

TEST_CASE("steps: shapes vary by groups, by sizes of storages, or as events cannot tell") {
  told steps(automatic(2));
  steps.pass();
  CHECK_FALSE(steps.end_step());
  CHECK(steps.kept.wants_record(false));
  CHECK(steps.learn({64, 64}) == stage::first);
  CHECK(steps.step().shapes_vary);  // unknown yet
  CHECK_FALSE(steps.settle(steps.step(), followed::trial));
  std::vector<std::size_t> sizes{64, 64};
  bool expected = true;
  SUBCASE("they do not") {
    steps.pass();
    expected = false;
  }
  SUBCASE("groups") { steps.pass(3); }
  SUBCASE("model chunks") {
    steps.forward(2, 1);
    steps.backward(0);
  }
  SUBCASE("sizes") {
    steps.pass();
    sizes.back() = 128;
  }
  SUBCASE("groups of one that fell short") {
    steps.pass(1);
    CHECK(steps.end_step() == stage::short_step);
    steps.pass();
  }
  SUBCASE("untold") {
    steps.forward();
    steps.shapes_vary();
    steps.backward(0);
  }
  SUBCASE("untold in a step that was given up: that says nothing") {
    steps.forward();
    steps.shapes_vary();
    steps.give_up(0);
    CHECK(steps.end_step() == stage::given_up);
    steps.pass();
    expected = false;
  }
  CHECK_FALSE(steps.end_step());
  CHECK(steps.kept.wants_record(false));
  CHECK(steps.learn(sizes) == stage::timed);
  CHECK(steps.step().shapes_vary == expected);
  CHECK(steps.settle(steps.step(), followed::planned) == !expected);
}

TEST_CASE("steps: how long computing again took is known from the first") {
  told steps(automatic(2));
  steps.pass();
  CHECK_FALSE(steps.end_step());
  CHECK(steps.kept.wants_record(false));
  steps.step().chunks[0].groups[1].recompute_us = 7;
  static_cast<void>(steps.learn({}));
  static_cast<void>(steps.settle(steps.step(), followed::trial));
  CHECK_FALSE(steps.measuring());
  CHECK(steps.kept.recompute_us(0, 0, module, 0) == 0);
  CHECK(steps.kept.recompute_us(0, 1, module, 1) == 7);
  CHECK(steps.kept.recompute_us(0, 1, module, 5) == 0);  // another group in its place
  CHECK(steps.kept.recompute_us(0, 2, module, 1) == 0);
  CHECK(steps.kept.recompute_us(1, 1, module, 1) == 0);
}

TEST_CASE("steps: what starved under a plan leaves it") {
  told steps(automatic());
  const auto starve = [&] {
    steps.forward();
    steps.starves();
    steps.give_up(0);
    return steps.end_step();
  };
  CHECK(starve() == stage::given_up);  // everything leaves already
  steps.plan_after_warm_up();
  SUBCASE("planned") { CHECK(starve() == stage::starved); }
  SUBCASE("not where its chunks went on") {
    steps.forward();
    steps.starves();
    steps.backward(0);
    CHECK(steps.end_step() == stage::step);
  }
  SUBCASE("not with graphs of it") {
    steps.captures();
    CHECK_FALSE(steps.may_leave_plan());
    CHECK(starve() == stage::step);
  }
  SUBCASE("not one from elsewhere") {
    static_cast<void>(steps.settle(one_chunk(), followed::unproven));
    CHECK(starve() == stage::step);
    CHECK(steps.unproven());
  }
  SUBCASE("and in the warm-up after it nothing is left") {
    steps.record_again();
    CHECK(steps.warming_up());
    CHECK(steps.measuring());
    CHECK(starve() == stage::given_up);
    steps.pass();
    CHECK(steps.recorded_step() == stage::first);
  }
}

TEST_CASE("steps: one that outgrew every plan so far is planned for") {
  told steps(automatic());
  steps.plan_after_warm_up();
  steps.pass(3);
  SUBCASE("") { CHECK(steps.end_step() == stage::outgrown); }
  SUBCASE("not with graphs") {
    steps.captures();
    CHECK(steps.end_step() == stage::step);
  }
}

TEST_CASE("steps: a rule that keeps nothing is not asked again") {
  for (const bool margin : {false, true}) {
    options opts;
    opts.margin = margin;
    told steps(opts);
    steps.pass();
    CHECK_FALSE(steps.end_step());
    static_cast<void>(steps.settle(steps.step(), followed::by_rule));
    steps.pass(3);
    CHECK(steps.end_step() == (margin ? stage::outgrown : stage::step));
  }
}

TEST_CASE("steps: the first under a plan from elsewhere is held to it") {
  told steps{options()};
  auto plan = one_chunk();
  plan.chunks.push_back(plan.chunks[0]);
  CHECK(steps.settle(plan, followed::unproven));
  CHECK(steps.held_to_plan());
  SUBCASE("proved") {
    steps.pass();
    steps.pass();
    CHECK(steps.end_step() == stage::warm_up);
    CHECK_FALSE(steps.unproven());
    steps.pass();
    CHECK(steps.end_step() == stage::step);
  }
  SUBCASE("an evaluation proves nothing") {
    steps.evaluation_begins();
    CHECK(steps.end_step() == stage::step);
    CHECK(steps.unproven());
  }
  SUBCASE("too few chunks; the step is over all the same") {
    steps.pass();
    CHECK_THROWS_AS(static_cast<void>(steps.end_step()), misuse_error);
    CHECK(steps.begun() == 0);
    CHECK(steps.unproven());
  }
  SUBCASE("too many, or another") {
    CHECK_THROWS_AS(steps.expect_chunk(1), misuse_error);
    steps.pass();
    steps.pass();
    CHECK_THROWS_AS(steps.expect_chunk(0), misuse_error);
  }
  SUBCASE("groups that lack") {
    steps.forward(1);
    CHECK_THROWS_AS(steps.expect_no_more(0, 1), misuse_error);
    CHECK(steps.chunk_ends(0, 1, true, false));
    CHECK_FALSE(steps.held_to_plan());  // so that its other chunks may be given up, too
    CHECK_NOTHROW(steps.expect_chunk(7));
    CHECK_FALSE(steps.held_to_plan());
    CHECK(steps.end_step() == stage::step);
    CHECK(steps.held_to_plan());
  }
  SUBCASE("a batch that is run again in the same step proves nothing") {
    steps.pass();
    steps.forward();
    steps.backward_begins(1);
    CHECK_FALSE(steps.chunk_ends(1, 2, true, false));  // dropped, once all was restored
    CHECK_NOTHROW(steps.expect_chunk(0));
    CHECK(steps.end_step() == stage::step);
    CHECK(steps.unproven());
  }
}

TEST_CASE("steps: what was dropped before a plan from elsewhere is no part of its first step") {
  told steps(automatic());
  static_cast<void>(steps.settle(one_chunk(), followed::planned));
  steps.forward(5);
  steps.give_up(0, 5);
  steps.forget_latest_chunk();
  static_cast<void>(steps.settle(one_chunk(), followed::unproven));
  CHECK(steps.held_to_plan());
  steps.pass();
  CHECK(steps.end_step() == stage::warm_up);
}
