// Plans for tensors of which only some rows move: as fast as predicted, and above the bound.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/plan/bound.hpp"
#include "tidepool/plan/json.hpp"
#include "tidepool/rows.hpp"

namespace {

using tidepool::test::rig;
using tidepool::test::says;
using offloader = rig::offloader<tidepool::modules<"expert_fc1">>;

constexpr std::size_t bytes = std::size_t{256} << 10;
constexpr std::size_t row_bytes = 1024;
constexpr int layers = 16;

struct outcome {
  tidepool::plan::profile step;
  tidepool::plan::step_plan made;
  double step_us = 0;       // of the last step
  std::uint64_t moved = 0;  // bytes of the last step
};

// Trains under an automatic plan; `planned` rows of each tensor move, or all if it is 0.
outcome train(std::size_t planned, const tidepool::options& opts) {
  tidepool::machine model;
  model.offload_rate = model.reload_rate = 10;
  model.both_rate = 20;
  rig desk(model);
  offloader off(desk.dev, opts, {.planner = tidepool::planner()});
  off.on_report({});
  outcome seen;
  std::uint32_t rows = 0;
  for (int step = 0; step < 6; ++step) {
    const auto before = desk.dev.now_ns();
    auto pass = off.begin();
    std::vector<rig::buffer> saved;
    for (int l = 0; l < layers; ++l) {
      auto& x = saved.emplace_back(off.allocate(bytes, desk.stream()));
      desk.dev.launch(desk.stream(), 12'000, [] {});
      if (planned > 0) {
        x.counts_rows({.count = &rows, .row_bytes = row_bytes, .planned_rows = planned});
      }
      pass.commit<"expert_fc1">(l, desk.stream(), x);
    }
    pass.end_forward();
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      pass.restore<"expert_fc1">(l, desk.stream(), x);
      desk.dev.launch(desk.stream(), 12'000, [] {});
      x.reset(desk.stream());
    }
    pass.finish();
    off.end_step();
    desk.dev.synchronize();
    seen.step_us = (desk.dev.now_ns() - before) / 1e3;
    CHECK_FALSE(off.rows_overflowed());
  }
  seen.step = off.profile();
  seen.made = off.current_plan().value();
  seen.moved = off.counters().modules[0].step_bytes;
  return seen;
}

tidepool::options half_of_memory() {
  tidepool::options opts;
  opts.offload_modules = {"expert_fc1"};
  opts.min_tensor_elements = 1;
  opts.policy = tidepool::policy_kind::automatic;
  opts.timed_step = 2;
  opts.memory = tidepool::memory_kind::arena;
  opts.device_budget = layers / 2 * bytes;
  opts.host_budget = std::size_t{64} << 20;
  opts.plan_effort = 200;
  return opts;
}

}  // namespace

TEST_CASE(
    "plans know counted rows: a step takes the time and moves the bytes that were predicted") {
  const auto whole = train(0, half_of_memory());
  for (const std::size_t planned : {16, 128, 256}) {
    CAPTURE(planned);
    const auto seen = train(planned, half_of_memory());
    for (const auto& each : seen.step.storages) CHECK(each.moves == planned * row_bytes);
    CHECK(seen.step_us == doctest::Approx(seen.made.expected.step_us).epsilon(0.02));
    CHECK(seen.moved == seen.made.expected.moved);
    CHECK(seen.moved > 0);
    CHECK(seen.made.bound_us <= seen.made.expected.step_us);
    CHECK(seen.made.bound_us <= seen.step_us);
    if (planned <= 128) CHECK(seen.made.expected.step_us < 0.9 * whole.made.expected.step_us);
  }
}

TEST_CASE("plans know counted rows: the simulator and the engine on the virtual device agree") {
  const auto seen = train(64, half_of_memory());
  for (const bool ordered : {false, true}) {
    CAPTURE(ordered);
    auto step = seen.step;
    step.stream_ordered = ordered;
    const tidepool::plan::actions all{
        std::vector(std::size_t{layers}, tidepool::plan::action::offload)};
    tidepool::plan::simulator sim(step);
    const auto thought = sim.run(sim.map().fold(all), {.device_budget = 4 * bytes});
    auto opts = half_of_memory();
    opts.device_budget = 4 * bytes;
    const auto expected = tidepool::plan::forecast(step, opts, all).expected;
    REQUIRE(thought.runs);
    REQUIRE(expected.runs);
    CHECK(thought.step_us == doctest::Approx(expected.step_us).epsilon(0.01));
    CHECK(thought.moved == layers * 64 * row_bytes);
    CHECK(expected.moved == thought.moved);
    CHECK(tidepool::plan::lower_bound(sim.map(), step.link, 4 * bytes, false) <= thought.step_us);
  }
}

TEST_CASE("plans know counted rows: a neighbour's budget holds the rows that move") {
  auto step = train(64, half_of_memory()).step;
  step.peer_link = step.link;
  const tidepool::plan::actions all{
      std::vector(std::size_t{layers}, tidepool::plan::action::offload_to_peer)};
  tidepool::plan::simulator sim(step);
  const auto flat = sim.map().fold(all);
  constexpr std::size_t fits = 9;
  for (int run = 0; run < 2; ++run) {  // room comes back with each restore
    CHECK(sim.run(flat, {.device_budget = 4 * bytes, .peer_budget = fits * 64 * row_bytes}).runs);
    std::size_t there = 0;
    for (std::uint32_t g = 0; g < flat.size(); ++g) there += sim.went_to_peer(g) ? 1 : 0;
    CHECK(there == fits);
  }
}

TEST_CASE("plans know counted rows: a file has the bytes that move, and no more than there are") {
  tidepool::plan::profile step;
  step.storages.push_back({.bytes = 4096, .moves = 1024});
  CHECK(tidepool::plan::profile_from_json(tidepool::plan::to_json(step)) == step);
  step.storages[0].moves = 4097;
  try {
    static_cast<void>(tidepool::plan::to_json(step));
    FAIL("it was written");
  } catch (const tidepool::plan::profile_error& problem) {
    CHECK(says(problem.what(), "/storages/0/moves: 4097 bytes move of 4096"));
  }
}
