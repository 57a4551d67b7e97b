/// What planning costs: one plan of a 1F1B step, against the number of groups.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <tidepool/plan/forecast.hpp>
#include <tidepool/plan/planner.hpp>

#include "../tests/plan/plans.hpp"
#include "google.hpp"

namespace {

namespace plan = tidepool::plan;

plan::profile step_of(std::size_t groups, bool recompute = false) {
  std::mt19937_64 random(1);
  return tidepool::test::random_profile(
      random,
      {.groups = groups, .chunks = 4, .depth = 2, .mixed_sizes = true, .recompute = recompute});
}

/// A plan for a budget that is hard to meet, from the profile to the certified gap.
void plan_a_step(benchmark::State& state) {
  const auto step = step_of(static_cast<std::size_t>(state.range(0)));
  double gap = 0;
  for (auto _ : state) {
    plan::planner plans(step);
    const auto made = plans.best({.device_budget = plans.in_core().peak / 4});
    gap = made.gap();
    benchmark::DoNotOptimize(gap);
  }
  state.counters["gap_percent"] = 100 * gap;
}
BENCHMARK(plan_a_step)->RangeMultiplier(10)->Range(10, 100'000)->Unit(benchmark::kMillisecond);

/// The same where the link is short and every other group may be recomputed, which is searched for
/// to the end of the work that a goal allows.
void plan_a_step_that_recomputes(benchmark::State& state) {
  auto step = step_of(static_cast<std::size_t>(state.range(0)), true);
  step.link.out = step.link.in = step.link.both = step.link.out / 3;
  for (auto& chunk : step.chunks) {
    for (auto& group : chunk.groups) group.recompute_us *= 0.05;
  }
  double gap = 0;
  for (auto _ : state) {
    plan::planner plans(step);
    const auto made = plans.best({.device_budget = plans.in_core().peak / 4, .recompute = true});
    gap = made.gap();
    benchmark::DoNotOptimize(gap);
  }
  state.counters["gap_percent"] = 100 * gap;
}
BENCHMARK(plan_a_step_that_recomputes)
    ->RangeMultiplier(10)
    ->Range(10, 100'000)
    ->Unit(benchmark::kMillisecond);

/// One forecast by the engine on the virtual device.
void forecast_a_step(benchmark::State& state) {
  const auto step = step_of(static_cast<std::size_t>(state.range(0)));
  plan::planner plans(step);
  const auto made = plans.best({.device_budget = plans.in_core().peak * 3 / 4});
  for (auto _ : state) {
    auto seen = plan::forecast(step, made);
    benchmark::DoNotOptimize(seen.expected.step_us);
  }
}
BENCHMARK(forecast_a_step)->RangeMultiplier(10)->Range(10, 10'000)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  return bench::run_google(
      {"bench_planner", "What planning a step costs, by the number of groups."}, argc, argv, "",
      [] {});
}
