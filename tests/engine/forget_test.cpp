// Groups that backward will not read: their host copies go, nothing is reloaded, and plans know.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/plan/check.hpp"
#include "tidepool/plan/forecast.hpp"
#include "tidepool/plan/simulator.hpp"

namespace {

using tidepool::options;
using tidepool::test::rig;
using tidepool::test::small_options;
using offloader = rig::offloader<tidepool::modules<"core_attn", "moe_act">>;

constexpr std::size_t size = 2048;

/// Layers of which the odd ones are forgotten when their turn comes.
struct branching {
  static constexpr int layers = 8;
  rig desk;
  offloader off;

  explicit branching(const options& opts) : off(desk.dev, opts, {.planner = tidepool::planner()}) {
    off.on_report([](std::string_view) {});
  }

  void step(int microbatches = 1) {
    for (int m = 0; m < microbatches; ++m) pass(m);
    off.end_step();
  }

  void pass(int microbatch) {
    const auto on = desk.stream();
    auto chunk = off.begin({.microbatch = microbatch});
    std::array<rig::buffer, layers> saved;
    for (int l = 0; l < layers; ++l) {
      auto& x = saved[static_cast<std::size_t>(l)] = off.allocate(size, on);
      desk.write(x, static_cast<std::uint32_t>(l), 3000);
      chunk.commit<"core_attn">(l, on, x);
    }
    chunk.end_forward();
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      if (l % 2 == 1) {
        x.reset(on);  // what stayed is the trainer's
        chunk.forget<"core_attn">(l);
        continue;
      }
      chunk.restore<"core_attn">(l, on, x);
      desk.check(x, static_cast<std::uint32_t>(l));
      x.reset(on);
    }
    chunk.finish();
  }
};

}  // namespace

TEST_CASE("forget: host memory goes, nothing is copied back, and the chunk can be finished") {
  rig desk;
  auto opts = small_options({"core_attn"});
  opts.reload_ahead = 0;
  opts.host_budget = 2 * size;
  opts.host_step = 2 * size;
  offloader off(desk.dev, opts);
  for (int s = 0; s < 3; ++s) {  // the host has room for one step at a time
    auto chunk = off.begin();
    auto x = off.allocate(size, desk.stream());
    auto y = off.allocate(size, desk.stream());
    desk.write(y, 9);
    chunk.commit<"core_attn">(0, desk.stream(), x);
    chunk.commit<"core_attn">(1, desk.stream(), y);
    chunk.end_forward();
    chunk.forget<"core_attn">(0);
    CHECK_THROWS_AS(static_cast<void>(x.data()), tidepool::misuse_error);
    chunk.restore<"core_attn">(1, desk.stream(), y);
    desk.check(y, 9);
    y.reset(desk.stream());
    chunk.finish();
    off.end_step();
  }
  CHECK(desk.dev.reloads() == 3);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("forget: what was reloaded ahead gives its memory back") {
  rig desk;
  auto opts = tidepool::test::arena_options(2 * size, {"core_attn"});
  offloader off(desk.dev, opts);
  auto chunk = off.begin();
  for (int l = 0; l < 2; ++l) {
    auto x = off.allocate(size, desk.stream());
    chunk.commit<"core_attn">(l, desk.stream(), x);
  }
  chunk.end_forward();
  CHECK(desk.dev.reloads() == 2);
  chunk.forget<"core_attn">(1);
  chunk.forget<"core_attn">(0);
  chunk.finish();
  const auto all = off.allocate(2 * size, desk.stream());
  CHECK(off.counters().evictions == 0);
}

TEST_CASE("forget: what is not there, was restored or was forgotten is a misuse") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn"}));
  auto chunk = off.begin();
  CHECK_THROWS_WITH_AS(chunk.forget<"core_attn">(0),
                       doctest::Contains("forget of core_attn of layer 0, microbatch 0: it was"
                                         " never committed"),
                       tidepool::misuse_error);
  auto x = off.allocate(size, desk.stream());
  chunk.commit<"core_attn">(0, desk.stream(), x);
  chunk.forget<"core_attn">(0);
  CHECK_THROWS_AS(chunk.forget<"core_attn">(0), tidepool::misuse_error);
  CHECK_THROWS_AS(chunk.restore<"core_attn">(0, desk.stream(), x), tidepool::misuse_error);
  chunk.forget<"moe_act">(0);  // disabled: nothing
  chunk.finish();
}

TEST_CASE("forget: a plan knows that such a group never comes back, and forecasts its step") {
  auto opts = tidepool::test::arena_options(3 * size, {"core_attn"});
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 60;
  branching trainer(opts);
  for (int s = 0; s < 2; ++s) trainer.step();
  const auto recorded = trainer.off.profile();
  CHECK_NOTHROW(tidepool::plan::check(recorded));
  std::size_t restores = 0;
  std::size_t releases = 0;
  for (const auto& each : recorded.events) {
    restores += each.kind == tidepool::plan::event_kind::restore ? 1 : 0;
    releases += each.kind == tidepool::plan::event_kind::release ? 1 : 0;
  }
  CHECK(restores == branching::layers / 2);
  CHECK(releases == branching::layers);
  REQUIRE(trainer.off.current_plan());
  const auto& made = *trainer.off.current_plan();
  CHECK(made.expected.runs);
  CHECK(made.expected.peak <= 3 * size);
  CHECK(made.gap() >= 0);
  trainer.desk.dev.synchronize();
  const auto before = trainer.desk.dev.now_ns();
  const auto reloaded = trainer.desk.dev.reloads();
  for (int s = 0; s < 3; ++s) trainer.step();
  trainer.desk.dev.synchronize();
  const auto took_us = (trainer.desk.dev.now_ns() - before) / 3e3;
  CHECK(took_us == doctest::Approx(made.expected.step_us).epsilon(0.02));
  CHECK(trainer.desk.dev.reloads() - reloaded <= 3 * branching::layers / 2);
  CHECK(trainer.desk.wrong() == 0);
}

TEST_CASE("forget: a plan knows which of two groups of one module and layer it was") {
  auto opts = small_options();
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 200;
  opts.min_tensor_elements = size;
  rig desk;
  offloader off(desk.dev, opts, {.planner = tidepool::planner()});
  off.on_report([](std::string_view) {});
  for (int step = 0; step < 4; ++step) {
    auto chunk = off.begin();
    auto x = off.allocate(size, desk.stream());
    auto small = off.allocate(size / 2, desk.stream());  // stays: a profile knows no storage of it
    desk.write(x, 1);
    chunk.commit<"core_attn">(0, desk.stream(), x);
    chunk.commit<"core_attn">(0, desk.stream(), small);
    chunk.end_forward();
    small.reset(desk.stream());
    chunk.forget<"core_attn">(0);
    chunk.restore<"core_attn">(0, desk.stream(), x);
    desk.check(x, 1);
    x.reset(desk.stream());
    chunk.finish();
    CHECK_NOTHROW(off.end_step());
  }
  CHECK(off.current_plan());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("forget: the step after one that forgot a group does not reload it ahead") {
  auto opts = small_options({"core_attn"});
  opts.reload_ahead = 8;
  branching trainer(opts);
  trainer.step();
  const auto first = trainer.desk.dev.reloads();
  CHECK(first == branching::layers);
  trainer.step();
  trainer.step();
  CHECK(trainer.desk.dev.reloads() == first + branching::layers);
  CHECK(trainer.desk.wrong() == 0);
}

TEST_CASE("forget: the simulator gives memory of a forgotten group back once") {
  auto opts = tidepool::test::arena_options(16 * size, {"core_attn"});
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 20;
  branching trainer(opts);
  for (int s = 0; s < 2; ++s) trainer.step(2);
  const auto step = trainer.off.profile();
  using enum tidepool::plan::action;
  const std::vector everything(2 * branching::layers, offload);
  std::vector second_stays(branching::layers, offload);
  second_stays.resize(everything.size(), keep);
  tidepool::plan::simulator run(step);
  tidepool::plan::run_limits limits;
  limits.device_budget = 3 * size;
  const auto leaving = run.run(everything, limits);
  CHECK(leaving.runs);
  CHECK(leaving.peak <= 3 * size);
  CHECK_FALSE(run.run(second_stays, limits).runs);
  limits.device_budget = 6 * size;  // what the first pass forgot does not make room for the second
  CHECK_FALSE(run.run(second_stays, limits).runs);
  limits.device_budget = 8 * size;
  CHECK(run.run(second_stays, limits).runs);
  CHECK(run.run(second_stays, limits).peak == 8 * size);

  opts.policy = tidepool::policy_kind::megatron;
  opts.device_budget = 3 * size;
  const std::vector half(branching::layers, offload);
  const auto seen = tidepool::plan::forecast(step, opts, tidepool::plan::actions{half, half});
  CHECK(seen.expected.runs);
  CHECK(seen.expected.moved == leaving.moved);
  CHECK(seen.expected.step_us == doctest::Approx(leaving.step_us).epsilon(0.05));
}
