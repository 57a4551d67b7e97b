// Invariant 9: gradients are bit-identical with and without offloading.
#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "program.hpp"

namespace {

using tidepool::memory_kind;
using tidepool::options;
using tidepool::test::outcome;
using tidepool::test::program;
using tidepool::test::run;
using tidepool::test::run_resident;
using tidepool::test::small_options;

std::uint64_t offloaded(const outcome& of) {
  std::uint64_t bytes = 0;
  for (const auto& each : of.counters.modules) bytes += each.bytes_offloaded;
  return bytes;
}

// Runs a program with and without offloading and compares.
outcome same(const program& plan) {
  const auto with = run(plan);
  const auto without = run_resident(plan);
  CHECK(without.wrong == 0);
  CHECK(offloaded(without) == 0);
  CHECK(with.wrong == 0);
  CHECK(with.weights == without.weights);
  return with;
}

options with_memory(memory_kind kind) {
  auto opts = small_options();
  opts.memory = kind;
  if (kind == memory_kind::arena) opts.device_budget = 40 * 1024;
  if (kind == memory_kind::slots) opts.slots = {{1024, 8}, {3072, 12}};
  return opts;
}

}  // namespace

TEST_CASE("results: the weights move, and differ where one word differs") {
  program plan;
  const auto first = run_resident(plan);
  plan.steps = 3;
  CHECK(run_resident(plan).weights != first.weights);
}

TEST_CASE("results: equal to the bit for every kind of memory and every module") {
  for (const auto kind : {memory_kind::pool, memory_kind::arena, memory_kind::slots}) {
    CAPTURE(static_cast<int>(kind));
    for (const auto* name : {"all", "qkv_linear", "core_attn", "expert_fc1"}) {
      CAPTURE(std::string(name));
      program plan;
      plan.opts = with_memory(kind);
      plan.opts.offload_modules = {name};
      if (std::string(name) != "all") {  // what stays needs room
        if (kind == memory_kind::arena) plan.opts.device_budget = 100 * 1024;
        if (kind == memory_kind::slots) plan.opts.slots = {{3072, 40}};
      }
      CHECK(offloaded(same(plan)) > 0);
    }
  }
}

TEST_CASE("results: equal to the bit for every cap") {
  for (const std::optional<std::size_t> cap : {std::optional<std::size_t>{}, {0}, {1}, {2}, {8}}) {
    CAPTURE(cap.value_or(99));
    program plan;
    plan.opts.max_inflight = cap;
    same(plan);
  }
}

TEST_CASE("results: equal to the bit for every depth of 1F1B") {
  for (int depth = 1; depth <= 4; ++depth) {
    CAPTURE(depth);
    for (const auto kind : {memory_kind::pool, memory_kind::arena, memory_kind::slots}) {
      program plan;
      plan.depth = depth;
      plan.microbatches = 6;
      plan.opts = with_memory(kind);
      same(plan);
    }
  }
}

TEST_CASE("results: equal to the bit with every option at once") {
  program plan;
  plan.layers = 4;
  plan.steps = 4;
  plan.opts.margin = true;
  plan.opts.fraction = 0.7;
  plan.opts.pipeline_rank = 1;
  plan.opts.delta_bytes_per_rank = 2000;
  plan.opts.min_tensor_elements = 700;
  plan.opts.offload_layers = {0, 1, 3};
  plan.opts.max_inflight_bytes = 4000;
  plan.opts.reload_ahead = 3;
  plan.opts.reload_ahead_bytes = 5000;
  const auto seen = same(plan);
  CHECK(offloaded(seen) > 0);
  for (const auto& each : seen.counters.modules) {
    if (each.groups == 0) continue;
    CHECK(each.groups_resident > 0);
    CHECK(each.tensors_small > 0);
  }
}

TEST_CASE("results: the clock shows that offloads run beside the kernels") {
  program plan;
  plan.model.copy_latency_ns = 100;
  const auto with = run(plan);
  const auto without = run_resident(plan);
  CHECK(with.clock_ns > without.clock_ns * 0.999);
  CHECK(with.clock_ns < without.clock_ns * 1.3);
}
