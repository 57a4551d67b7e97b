#include "../../examples/plan/model.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>

#include "tidepool/error.hpp"
#include "tidepool/plan/automatic.hpp"
#include "tidepool/plan/check.hpp"
#include "tidepool/plan/forecast.hpp"
#include "tidepool/plan/planner.hpp"

namespace {

using planning::known_machines;
using planning::known_models;
using planning::machine_named;
using planning::model_description;
using planning::model_named;
using planning::profile_of;
using tidepool::option_error;
using tidepool::plan::planner;
using tidepool::plan::profile;

}  // namespace

TEST_CASE("model: every preset on every machine is a sound profile that runs when all is kept") {
  for (const auto& model : known_models()) {
    for (const auto& machine : known_machines()) {
      CAPTURE(model.name);
      CAPTURE(machine.name);
      const auto step = profile_of(model, machine);
      CHECK_NOTHROW(tidepool::plan::check(step));
      planner plans(step);
      CHECK(plans.in_core().runs);
      CHECK(plans.in_core().step_us == doctest::Approx(compute_us(step)));
      CHECK(plans.in_core().peak > 0);
    }
  }
}

TEST_CASE("model: a step of the proxy does the flops of its GEMMs at the machine's rate") {
  auto model = model_named("deepseek-v3-proxy");
  const auto& machine = machine_named("h200");
  const auto one = compute_us(profile_of(model, machine));
  model.microbatches *= 2;
  CHECK(compute_us(profile_of(model, machine)) == doctest::Approx(2 * one).epsilon(1e-6));
  model.layers *= 2;
  CHECK(compute_us(profile_of(model, machine)) == doctest::Approx(4 * one).epsilon(1e-6));
}

TEST_CASE("model: routed tokens and gate and up are what fc1 and its activation save") {
  const auto model = model_named("deepseek-v3-proxy");
  const auto step = profile_of(model, machine_named("h200"));
  std::size_t fc1 = 0;
  std::size_t act = 0;
  for (const auto& group : step.chunks.front().groups) {
    const auto& name = step.modules[static_cast<std::size_t>(group.module)];
    if (group.layer != 0) continue;
    if (name == "expert_fc1") fc1 = group.bytes;
    if (name == "moe_act") act = group.bytes;
  }
  const auto tokens = model.sequence * model.microbatch;
  CHECK(fc1 == tokens * model.top_k * model.hidden * 2);
  CHECK(act == tokens * model.top_k * 2 * model.ffn * 2);
}

TEST_CASE("model: what cannot be is refused by field, value and remedy") {
  const auto refuse = [](auto change, const char* field) {
    auto model = model_named("deepseek-v3-proxy");
    change(model);
    CHECK_THROWS_WITH_AS(static_cast<void>(profile_of(model, machine_named("h200"))),
                         doctest::Contains(field), option_error);
  };
  refuse([](model_description& m) { m.layers = 0; }, "layers=0");
  refuse([](model_description& m) { m.top_k = m.experts + 1; }, "top_k=");
  refuse([](model_description& m) { m.pipeline_rank = m.pipeline_parallel; }, "pipeline_rank=");
  refuse([](model_description& m) { m.efficiency = 0; }, "efficiency=");
  refuse([](model_description& m) { m.modules = {"core_atn"}; }, "core_atn");
  refuse([](model_description& m) { m.modules.clear(); }, "modules");
}

TEST_CASE("model: an unknown name gets the list and the nearest match") {
  CHECK_THROWS_WITH_AS(static_cast<void>(machine_named("h20")), doctest::Contains("h200"),
                       option_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(model_named("grok2")), doctest::Contains("grok-2"),
                       option_error);
}

TEST_CASE("model: less memory never makes the planned proxy faster than the bound") {
  const auto step = profile_of(model_named("deepseek-v3-proxy"), machine_named("h200"));
  planner plans(step);
  for (const auto percent : {std::size_t{90}, std::size_t{70}, std::size_t{50}, std::size_t{35}}) {
    CAPTURE(percent);
    const auto made = plans.best({.device_budget = plans.in_core().peak / 100 * percent});
    REQUIRE(made.expected.runs);
    CHECK(made.expected.step_us >= made.bound_us * (1 - 1e-9));
    const auto seen = tidepool::plan::forecast(step, made);
    if (seen.expected.runs) CHECK(seen.expected.step_us >= made.bound_us * (1 - 1e-6));
  }
}

// Which modules leave is part of what a user tunes; here the whole MLP, and nothing else, does
// well.
TEST_CASE(
    "model: the automatic policy is not slower than Megatron's rule for some of the modules") {
  const auto step = profile_of(model_named("qwen3-30b-a3b"), machine_named("h200"));
  tidepool::options opts;
  opts.memory = tidepool::memory_kind::arena;
  opts.device_budget = std::size_t{50} << 30;
  opts.recompute_by_plan = false;
  const auto made = tidepool::plan::automatic(step, opts);

  auto mlp = step;
  for (auto& chunk : mlp.chunks) {
    for (auto& group : chunk.groups) {
      const auto& name = step.modules[static_cast<std::size_t>(group.module)];
      if (name != "expert_fc1" && name != "moe_act") group.bytes = 0;
    }
  }
  for (const double fraction : {1.0, 0.8, 0.6, 0.5}) {
    auto rule = opts;
    rule.fraction = fraction;
    auto stays = tidepool::plan::megatron_policy(mlp, rule);
    for (std::size_t c = 0; c < stays.size(); ++c) {
      for (std::size_t i = 0; i < stays[c].size(); ++i) {
        if (mlp.chunks[c].groups[i].bytes == 0) stays[c][i] = true;
      }
    }
    const auto theirs = tidepool::plan::forecast(step, rule, stays);
    CAPTURE(fraction);
    if (theirs.expected.runs) CHECK(made.expected.step_us <= theirs.expected.step_us);
  }
}

namespace {

/// Four microbatches in flight on a host whose memory four GPUs share; norms and activations are
/// made again at a millisecond a gigabyte, the rest cannot be.
profile cheap_on_a_shared_host() {
  auto model = model_named("deepseek-v3-proxy");
  model.layers = 16;
  model.in_flight = 4;
  auto step = profile_of(model, machine_named("h200"));
  step.link = {34, 41, 41, 2};
  for (auto& chunk : step.chunks) {
    for (auto& group : chunk.groups) {
      const auto& name = step.modules[static_cast<std::size_t>(group.module)];
      const bool cheap = name == "moe_act" || name == "mlp_norm" || name == "attn_norm";
      group.recompute_us = cheap ? static_cast<double>(group.bytes) / 1e6 : 0;
    }
  }
  return step;
}

}  // namespace

TEST_CASE("model: what costs next to nothing to make again is, where the link is short") {
  const auto step = cheap_on_a_shared_host();
  planner plans(step);
  const auto made =
      plans.best({.device_budget = plans.in_core().peak / 65 * 41, .recompute = true});
  REQUIRE(made.expected.runs);
  CHECK(made.gap() < 0.02);
}

// Memory is in pieces: the engine refuses most plans here that make the most of every byte, and
// most of those that treat each microbatch in its own way.
TEST_CASE("model: the engine runs a plan that recomputes, where memory in pieces refuses many") {
  auto step = profile_of(model_named("deepseek-v3-proxy"), machine_named("h200"));
  step.link = {34, 41, 41, 2};
  tidepool::options opts;
  opts.memory = tidepool::memory_kind::arena;
  opts.device_budget = std::size_t{8} << 30;
  auto made = tidepool::plan::automatic(step, opts);
  REQUIRE(made.expected.runs);
  CHECK(made.gap() < 0.015);
  opts.device_budget = std::size_t{4} << 30;
  made = tidepool::plan::automatic(step, opts);
  REQUIRE(made.expected.runs);
  CHECK(made.gap() < 0.11);
}

TEST_CASE("model: where copies hide, hardly more leaves than has to") {
  const auto step = profile_of(model_named("deepseek-v3-proxy"), machine_named("h200"));
  planner plans(step);
  tidepool::options opts;
  opts.memory = tidepool::memory_kind::arena;
  opts.device_budget = plans.in_core().peak / 8 * 7;
  const auto made = tidepool::plan::automatic(step, opts);
  REQUIRE(made.expected.runs);
  CHECK(made.expected.step_us <= plans.in_core().step_us * 1.001);
  // Of memory that is not in pieces.
  const auto least = plans.best({.device_budget = *opts.device_budget}).expected.moved;
  CHECK(made.expected.moved <= least / 10 * 12);
}
