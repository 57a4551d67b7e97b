// Invariants 10 and 11: evaluation leaves no trace, and a module that moved nothing is reported.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planning.hpp"
#include "program.hpp"
#include "rig.hpp"

namespace {

using tidepool::options;
using tidepool::test::program;
using tidepool::test::rig;
using tidepool::test::run;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t size = 1024;

options learning() {
  auto opts = small_options();
  opts.margin = true;
  opts.fraction = 0.7;
  return opts;
}

// A forward pass of `layers`, checked at once.
void evaluate(rig& desk, offloader& off, int layers, int microbatch = 0) {
  auto open = off.begin({.microbatch = microbatch, .forward_only = true});
  for (int l = 0; l < layers; ++l) {
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 900 + static_cast<std::uint32_t>(l));
    open.commit<"core_attn">(l, desk.stream(), x);
    CHECK(x);
    desk.check(x, 900 + static_cast<std::uint32_t>(l));
    x.reset(desk.stream());
  }
  open.end_forward();
  open.finish();
}

// One microbatch of both modules; shows what left.
std::string train(rig& desk, offloader& off, std::size_t layers) {
  auto open = off.begin();
  std::vector<rig::buffer> x(2 * layers);
  std::string text;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = off.allocate(size, desk.stream());
    desk.write(x[i], static_cast<std::uint32_t>(i));
    const auto layer = static_cast<int>(i / 2);
    if (i % 2 == 0) open.commit<"core_attn">(layer, desk.stream(), x[i]);
    if (i % 2 == 1) open.commit<"expert_fc1">(layer, desk.stream(), x[i]);
    text += x[i] ? '#' : '.';
  }
  open.end_forward();
  for (auto i = x.size(); i-- > 0;) {
    const auto layer = static_cast<int>(i / 2);
    if (i % 2 == 0) open.restore<"core_attn">(layer, desk.stream(), x[i]);
    if (i % 2 == 1) open.restore<"expert_fc1">(layer, desk.stream(), x[i]);
    desk.check(x[i], static_cast<std::uint32_t>(i));
    x[i].reset(desk.stream());
  }
  open.finish();
  return text;
}

// Silent about everything, with the reports kept.
void keep_reports(offloader& off, std::vector<std::string>& lines) {
  off.on_report([&lines](std::string_view line) { lines.emplace_back(line); });
}

}  // namespace

TEST_CASE("forward only: nothing leaves, nothing is counted") {
  rig desk;
  offloader off(desk.dev, learning());
  const auto before = off.counters().modules;
  evaluate(desk, off, 5);
  CHECK(off.counters().modules == before);
  CHECK(off.counters().host_allocations == 0);
  CHECK(desk.dev.offloads() + desk.dev.reloads() == 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("forward only: restores and reloads of it are nothing") {
  rig desk;
  offloader off(desk.dev, learning());
  auto open = off.begin({.forward_only = true});
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  open.start_offload<"core_attn">(0, desk.stream(), x);
  open.start_reload<"core_attn">(0);
  open.restore<"core_attn">(0, desk.stream(), x);
  open.restore<"expert_fc1">(7, desk.stream(), x);
  desk.check(x, 1);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("forward only: residency is what it would have been without, wherever it comes") {
  const auto pattern = [](int where) {
    rig desk;
    offloader off(desk.dev, learning());
    std::vector<std::string> ignored;
    keep_reports(off, ignored);
    std::string text;
    for (int step = 0; step < 4; ++step) {
      if (where == 1 || where == 4) evaluate(desk, off, 3);
      if (where == 3) {
        evaluate(desk, off, 7);
        off.end_step();  // a step of its own
      }
      auto open = off.begin({.microbatch = 9, .forward_only = true});
      text += train(desk, off, 4) + ' ';
      open.finish();
      if (where >= 2) evaluate(desk, off, 2, 5);
      off.end_step();
    }
    CHECK(desk.wrong() == 0);
    CHECK(off.counters().modules[0].groups == 16);
    return text;
  };
  const auto without = pattern(0);
  CHECK(without.substr(0, 9) == "........ ");
  CHECK(without.find('#') != std::string::npos);
  for (int where = 1; where <= 4; ++where) {
    CAPTURE(where);
    CHECK(pattern(where) == without);
  }
}

TEST_CASE("forward only: between the passes of a pipeline it changes no bit") {
  program plan;
  plan.opts.margin = true;
  plan.opts.fraction = 0.6;
  plan.opts.max_inflight = 1;
  plan.depth = 3;
  plan.steps = 3;
  auto without = run(plan);
  plan.evaluates = true;
  auto with = run(plan);
  CHECK(with.wrong == 0);
  CHECK(with.weights == without.weights);
  // Memory that an evaluation takes over may already have waited for an offload.
  for (auto* each : {&with, &without}) {
    for (auto& module : each->counters.modules) module.cap_joins = 0;
  }
  CHECK(with.counters.modules == without.counters.modules);
}

TEST_CASE("forward only: leaves a pool with a budget as the plan of a step found it") {
  rig desk;
  constexpr std::size_t largest = 3;
  auto opts = small_options({"core_attn"});
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 200;
  opts.margin = true;
  opts.device_step = size;  // each tensor lies in a region of its own
  opts.device_budget = 2 * 2 * (1 + 2 + largest) * size + size;  // what two passes keep, and some
  tidepool::test::planning<offloader> off(desk.dev, opts);
  std::vector<std::string> lines;
  keep_reports(off, lines);
  const auto bytes = [](int layer) { return (static_cast<std::size_t>(layer) / 2 + 1) * size; };
  constexpr int layers = 2 * largest;
  struct pass {
    offloader::chunk open;
    std::vector<rig::buffer> x{layers};
  };
  const auto forward = [&](pass& now) {
    now.open = off.begin();
    for (int l = 0; l < layers; ++l) {
      auto& x = now.x[static_cast<std::size_t>(l)];
      x = off.allocate(bytes(l), desk.stream());
      desk.write(x, static_cast<std::uint32_t>(l), 2e5);
      now.open.commit<"core_attn">(l, desk.stream(), x);
    }
    now.open.end_forward();
  };
  const auto backward = [&](pass& now) {
    for (int l = layers; l-- > 0;) {
      auto& x = now.x[static_cast<std::size_t>(l)];
      now.open.restore<"core_attn">(l, desk.stream(), x);
      desk.check(x, static_cast<std::uint32_t>(l));
      x.reset(desk.stream());
    }
    now.open.finish();
  };
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    if (step == 4) {
      auto open = off.begin({.forward_only = true});
      std::vector<rig::buffer> x(layers);
      for (auto& each : x) each = off.allocate(size + size / 2, desk.stream());
      for (auto& each : x) each.reset(desk.stream());
      open.finish();
    }
    pass first;
    pass second;
    REQUIRE_NOTHROW(forward(first));
    REQUIRE_NOTHROW(forward(second));
    backward(first);
    backward(second);
    off.end_step();
  }
  CHECK(off.current_plan());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("forward only: windows stay as they were") {
  rig desk;
  auto opts = small_options();
  opts.max_inflight = 2;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  std::vector<rig::buffer> x(4);
  const auto commit = [&](std::size_t i) {
    x[i] = off.allocate(size, desk.stream());
    open.commit<"core_attn">(static_cast<int>(i), desk.stream(), x[i]);
  };
  commit(0);
  commit(1);
  CHECK(off.counters().modules[0].cap_joins == 0);
  evaluate(desk, off, 5);
  CHECK(off.counters().modules[0].cap_joins == 0);
  commit(2);
  CHECK(off.counters().modules[0].cap_joins == 1);
  commit(3);
  CHECK(off.counters().modules[0].cap_joins == 2);
}

TEST_CASE("forward only: one that is abandoned does not keep a step from ending") {
  rig desk;
  offloader off(desk.dev, learning());
  std::vector<std::string> ignored;
  keep_reports(off, ignored);
  {
    auto open = off.begin({.forward_only = true});
    CHECK_THROWS_AS(off.end_step(), tidepool::misuse_error);
  }
  off.end_step();
  CHECK(off.counters().steps == 1);
}

TEST_CASE("silent modules: reported once, after the first step, with what to do") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn", "expert_fc1"}));
  std::vector<std::string> lines;
  keep_reports(off, lines);
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit<"core_attn">(0, desk.stream(), x);
  open.restore<"core_attn">(0, desk.stream(), x);
  open.finish();
  CHECK(lines.empty());
  off.end_step();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("expert_fc1") != std::string::npos);
  CHECK(lines[0].find("moved no byte") != std::string::npos);
  CHECK(lines[0].find("core_attn") == std::string::npos);
  off.end_step();
  train(desk, off, 1);
  off.end_step();
  CHECK(lines.size() == 1);
}

TEST_CASE(
    "silent modules: one that the model has not is nobody's mistake where all were asked for") {
  rig desk;
  offloader off(desk.dev, small_options());
  std::vector<std::string> lines;
  keep_reports(off, lines);
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit<"core_attn">(0, desk.stream(), x);
  open.restore<"core_attn">(0, desk.stream(), x);
  open.finish();
  off.end_step();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("--offload-modules=all stands for 'expert_fc1' too") != std::string::npos);
  CHECK(lines[0].find("spelling") == std::string::npos);
}

TEST_CASE("silent modules: the reason is told from the counters") {
  rig desk;
  auto opts = small_options({"core_attn"});
  opts.min_tensor_elements = 1 << 20;
  offloader off(desk.dev, opts);
  std::vector<std::string> lines;
  keep_reports(off, lines);
  CHECK(train(desk, off, 2) == "####");
  off.end_step();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("--min-tensor-elements") != std::string::npos);
}

TEST_CASE("silent modules: nobody is silent where every module moved") {
  rig desk;
  offloader off(desk.dev, small_options());
  std::vector<std::string> lines;
  keep_reports(off, lines);
  train(desk, off, 2);
  off.end_step();
  CHECK(lines.empty());
}

TEST_CASE(
    "silent modules: a step of evaluation alone reports nothing, the first that trains does") {
  rig desk;
  offloader off(desk.dev, small_options());
  std::vector<std::string> lines;
  keep_reports(off, lines);
  evaluate(desk, off, 2);
  off.end_step();
  CHECK(lines.empty());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit<"expert_fc1">(0, desk.stream(), x);
  open.restore<"expert_fc1">(0, desk.stream(), x);
  open.finish();
  off.end_step();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("core_attn") != std::string::npos);
}
