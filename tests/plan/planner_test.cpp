#include "tidepool/plan/planner.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "plans.hpp"
#include "sanitizers.hpp"

namespace {

using tidepool::plan::action;
using tidepool::plan::cost_us;
using tidepool::plan::goal;
using tidepool::plan::limit;
using tidepool::plan::outcome;
using tidepool::plan::planner;
using tidepool::plan::profile;
using tidepool::plan::run_limits;
using tidepool::plan::simulator;
using tidepool::test::random_profile;
using tidepool::test::random_step;
using tidepool::test::thinned;

constexpr int instances = 1500 / static_cast<int>(thinned);
constexpr std::size_t most_groups = thinned == 1 ? 20 : 12;

/// The best of all subsets; its step is infinite when none runs.
outcome exhaustive(const profile& step, const run_limits& limits) {
  simulator sim(step);
  const auto count = sim.map().groups.size();
  std::vector<action> what(count, action::keep);
  outcome best;
  best.runs = false;
  best.step_us = HUGE_VAL;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << count; ++bits) {
    for (std::size_t i = 0; i < count; ++i) {
      what[i] = (bits >> i & 1U) != 0 ? action::offload : action::keep;
    }
    const auto result = sim.run(what, limits);
    if (result.runs && result.step_us < best.step_us) best = result;
  }
  return best;
}

/// What a copy of the largest group takes, there and back.
double one_group_us(const profile& step) {
  std::size_t largest = 0;
  for (const auto& each : step.storages) largest = std::max(largest, each.bytes);
  const auto kilobytes = static_cast<double>(largest) / 1e3;
  return kilobytes / step.link.out + kilobytes / step.link.in;
}

}  // namespace

TEST_CASE("planner: of one class some may be unable to be computed again, and are not") {
  std::mt19937_64 random(31);
  std::size_t recomputed = 0;
  for (int i = 0; i < 200 / static_cast<int>(thinned); ++i) {
    auto step = random_profile(
        random, {.groups = 12, .chunks = 3, .depth = 2, .mixed_sizes = false, .recompute = true});
    for (auto& chunk : step.chunks) {
      for (auto& group : chunk.groups) group.recompute_us *= static_cast<double>(random() % 2) / 50;
    }
    planner plans(step);
    const auto made = plans.best({.device_budget = plans.in_core().peak / 2, .recompute = true});
    for (std::size_t c = 0; c < step.chunks.size(); ++c) {
      for (std::size_t g = 0; g < step.chunks[c].groups.size(); ++g) {
        if (made.what[c][g] != action::recompute) continue;
        ++recomputed;
        CAPTURE(i);
        CHECK(step.chunks[c].groups[g].recompute_us > 0);
      }
    }
  }
  CHECK(recomputed > 100 / thinned);
}

TEST_CASE("planner: an effort limits the steps that a search simulates, and nothing but that") {
  std::mt19937_64 random(83);
  for (int i = 0; i < 40; ++i) {
    CAPTURE(i);
    // Few groups: all subsets; many: classes of them, and then single ones.
    const auto step = random_profile(
        random,
        {.groups = i % 2 == 0 ? 10U : 48U, .chunks = 4, .depth = 2, .recompute = i % 3 == 0});
    planner plans(step);
    goal wanted{.device_budget = plans.in_core().peak * 2 / 3, .recompute = i % 3 == 0};
    const auto simulated = [&] {
      const auto before = plans.simulated();
      const auto made = plans.best(wanted);
      return std::pair(made, plans.simulated() - before);
    };
    const auto [whole, steps] = simulated();
    for (const std::size_t effort : {20U, 60U}) {
      wanted.effort = effort;
      const auto [made, fewer] = simulated();
      CHECK(fewer <= effort + 2);  // what everything takes, and the step that it ends with
      CHECK(made.expected.runs == whole.expected.runs);
      CHECK(cost_us(made.expected) >= cost_us(whole.expected) * 0.99);
    }
    wanted.effort = 10 * steps + 1000;
    const auto [again, as_many] = simulated();
    CHECK(as_many == steps);
    CHECK(again.what == whole.what);
    CHECK(again.expected.step_us == whole.expected.step_us);
  }
}

TEST_CASE("planner: within 1 % or one group of exhaustive search, and the bound never above it") {
  std::mt19937_64 random(7);
  int planned = 0;
  int within_a_percent = 0;
  double worst = 1;
  for (int instance = 0; instance < instances; ++instance) {
    random_step about;
    about.chunks = 1 + random() % 3;
    about.depth = 1 + random() % 2;
    about.groups = 4 + random() % 11;
    if (instance % 500 == 499) about.groups = most_groups;
    about.mixed_sizes = random() % 4 != 0;
    const auto step = random_profile(random, about);
    planner plans(step);
    const auto share = std::uniform_real_distribution<double>(0.2, 1.0)(random);
    goal wanted;
    wanted.device_budget =
        static_cast<std::size_t>(share * static_cast<double>(plans.in_core().peak));
    wanted.reload_ahead = {4};
    const auto best = exhaustive(step, {wanted.device_budget, 4, 0});
    const auto found = plans.best(wanted);
    CAPTURE(instance);
    CAPTURE(share);
    REQUIRE(found.expected.runs == best.runs);
    if (!best.runs) continue;
    ++planned;
    const auto ratio = found.expected.step_us / best.step_us;
    worst = std::max(worst, ratio);
    if (ratio <= 1.01) ++within_a_percent;
    CHECK(found.bound_us <= best.step_us * (1 + 1e-9));
    CHECK((ratio <= 1.01 || found.expected.step_us <= best.step_us + one_group_us(step)));
  }
  MESSAGE(planned << " instances, " << within_a_percent << " within 1 %, the worst at " << worst);
  CHECK(planned >= instances * 3 / 4);
}

TEST_CASE("planner: with recomputing, too, the bound is never above the best of all choices") {
  std::mt19937_64 random(11);
  for (int instance = 0; instance <= instances / 10; ++instance) {
    random_step about;
    about.chunks = 1 + random() % 2;
    about.groups = 4 + random() % 4;
    about.recompute = true;
    const auto step = random_profile(random, about);
    planner plans(step);
    goal wanted;
    wanted.recompute = true;
    wanted.device_budget = plans.in_core().peak * (25 + random() % 70) / 100;
    const auto found = plans.best(wanted);
    simulator sim(step);
    const auto count = sim.map().groups.size();
    std::size_t total = 1;
    for (std::size_t i = 0; i < count; ++i) total *= 3;
    outcome best;
    best.step_us = HUGE_VAL;
    for (std::size_t code = 0; code < total; ++code) {
      std::vector<action> what;
      for (std::size_t i = 0, left = code; i < count; ++i, left /= 3) {
        what.push_back(static_cast<action>(left % 3));
        const bool cannot =
            what.back() == action::recompute && sim.map().groups[i].recompute_us <= 0;
        if (cannot) what.back() = action::offload;
      }
      const auto result = sim.run(what, {wanted.device_budget, 4, 0});
      if (result.runs) best.step_us = std::min(best.step_us, result.step_us);
    }
    CAPTURE(instance);
    if (std::isinf(best.step_us)) continue;
    CHECK(found.bound_us <= best.step_us * (1 + 1e-9));
    CHECK(found.expected.step_us <= best.step_us * 1.01 + one_group_us(step));
  }
}

TEST_CASE("planner: a search that may take longer finds no slower plans, and some faster ones") {
  std::mt19937_64 random(19);
  double at_once = 0;
  double later = 0;
  for (int i = 0; i < 6; ++i) {
    auto step = random_profile(random, {.groups = 160, .chunks = 8, .depth = 2});
    step.link.both = step.link.out = step.link.in = step.link.in / 2;
    planner plans(step);
    goal wanted{.device_budget = plans.in_core().peak / 2};
    const auto first = plans.best(wanted);
    wanted.work *= 10;
    const auto second = plans.best(wanted);
    REQUIRE(second.expected.runs);
    at_once += first.expected.step_us / first.bound_us;
    later += second.expected.step_us / second.bound_us;
  }
  MESSAGE("on average " << at_once << " and " << later);
  CHECK(later < at_once);
}

TEST_CASE("planner: what leaves has to: hardly any group could stay at less cost") {
  std::mt19937_64 random(29);
  int left = 0;
  int could_stay = 0;
  for (int i = 0; i < 40; ++i) {
    const auto step = random_profile(random, {.groups = 40, .chunks = 4, .depth = 2});
    planner plans(step);
    const auto made = plans.best(
        {.device_budget = plans.in_core().peak * (40 + random() % 50) / 100, .work = 1'000'000});
    CAPTURE(i);
    if (!made.expected.runs) continue;
    const run_limits limits{made.device_budget, made.reload_ahead, made.reload_ahead_bytes};
    for (std::size_t c = 0; c < step.chunks.size(); ++c) {
      for (std::size_t g = 0; g < step.chunks[c].groups.size(); ++g) {
        if (made.what[c][g] != action::offload) continue;
        auto what = made.what;
        what[c][g] = action::keep;
        ++left;
        if (cost_us(plans.judge(what, limits)) < cost_us(made.expected)) ++could_stay;
      }
    }
  }
  MESSAGE(could_stay << " of " << left << " could stay");
  CHECK(left > 400);
  CHECK(could_stay * 50 < left);
}

TEST_CASE("planner: alike means that all microbatches treat a layer's module the same way") {
  std::mt19937_64 random(37);
  int apart = 0;
  for (int i = 0; i < 30; ++i) {
    auto step = random_profile(random, {.groups = 48 + random() % 100,
                                        .chunks = 6,
                                        .depth = 2 + random() % 3,
                                        .recompute = i % 2 == 0});
    step.link.out = step.link.in = step.link.both = step.link.out / (1 + i % 3);
    planner plans(step);
    goal wanted{.device_budget = plans.in_core().peak * (40 + random() % 50) / 100,
                .recompute = true,
                .alike = true};
    for (const std::size_t work : {0U, 250'000U}) {
      wanted.work = work;
      const auto made = plans.best(wanted);
      CAPTURE(i);
      if (!made.expected.runs) continue;
      for (const auto& chunk : made.what) CHECK(chunk == made.what.front());
    }
    wanted.alike = false;
    const auto any = plans.best(wanted).what;
    if (std::any_of(any.begin(), any.end(), [&](const auto& each) { return each != any[0]; })) {
      ++apart;
    }
  }
  CHECK(apart > 0);
}

// Of eight chunks, four of them in flight, a group of the third and one of the seventh are away at
// all five peaks: twice what is too much has to leave.
TEST_CASE("planner: where the link has room, hardly more moves than has to be away") {
  std::mt19937_64 random(43);
  std::size_t moved = 0;
  std::size_t least = 0;
  for (int i = 0; i < 12; ++i) {
    auto step = random_profile(random, {.groups = 96, .chunks = 8, .depth = 4});
    step.link.both = step.link.in + step.link.out;
    planner plans(step);
    goal wanted{.device_budget = plans.in_core().peak * (65 + random() % 25) / 100,
                .work = 2'000'000};
    const auto made = plans.best(wanted);
    REQUIRE(made.expected.runs);
    CAPTURE(i);
    CHECK(made == plans.best(wanted));
    moved += made.expected.moved;
    least += 2 * (plans.in_core().peak - wanted.device_budget);
  }
  MESSAGE(moved << " bytes, twice what is too much " << least);
  CHECK(moved < least / 100 * 105);
}

TEST_CASE("planner: nothing leaves when everything fits") {
  std::mt19937_64 random(3);
  const auto step = random_profile(random, {.groups = 12, .chunks = 3, .depth = 2});
  planner plans(step);
  const auto found = plans.best({.device_budget = plans.in_core().peak});
  CHECK(found.limited_by == limit::nothing);
  CHECK(found.gap() == doctest::Approx(0));
  for (const auto& chunk : found.what) {
    CHECK(std::all_of(chunk.begin(), chunk.end(), [](action a) { return a == action::keep; }));
  }
}

TEST_CASE("planner: where copies cost no time, only what must leave does") {
  std::mt19937_64 random(13);
  auto step = random_profile(random, {.groups = 24, .chunks = 1, .mixed_sizes = false});
  step.link = {4000, 4000, 8000, 0};
  planner plans(step);
  const auto all = plans.judge({std::vector<action>(step.chunks[0].groups.size(), action::offload)},
                               {.device_budget = 0});
  const auto found = plans.best({.device_budget = plans.in_core().peak * 9 / 10});
  REQUIRE(found.expected.runs);
  CHECK(found.expected.step_us <= plans.in_core().step_us * 1.001);
  CHECK(found.expected.moved > 0);
  CHECK(found.expected.moved <= all.moved / 4);
}

TEST_CASE("planner: a budget that holds no single group is refused, not guessed at") {
  std::mt19937_64 random(3);
  const auto step = random_profile(random, {.groups = 8, .chunks = 1, .mixed_sizes = false});
  planner plans(step);
  const auto found = plans.best({.device_budget = std::size_t{1} << 20});
  CHECK_FALSE(found.expected.runs);
  CHECK(found.limited_by == limit::memory);
  CHECK(std::isinf(found.bound_us));
  const auto least = found.expected.peak;
  CHECK(plans.best({.device_budget = least}).expected.runs);
  CHECK_FALSE(plans.best({.device_budget = least - 1}).expected.runs);
}

TEST_CASE("planner: the least memory for a slowdown meets it, and less does not") {
  std::mt19937_64 random(5);
  const auto step = random_profile(random, {.groups = 24, .chunks = 2, .depth = 2});
  planner plans(step);
  const auto found = plans.least_memory(0.05);
  CHECK(found.expected.step_us <= plans.in_core().step_us * 1.05);
  CHECK(found.device_budget <= plans.in_core().peak);
  const auto less = plans.best({.device_budget = found.device_budget * 9 / 10});
  CHECK((!less.expected.runs || less.expected.step_us > plans.in_core().step_us * 1.05));
}

TEST_CASE("planner: the same question has the same answer, whatever was asked before") {
  std::mt19937_64 random(9);
  const auto step = random_profile(random, {.groups = 30, .chunks = 3, .depth = 2});
  planner first(step);
  planner second(step);
  const auto budget = first.in_core().peak / 2;
  static_cast<void>(second.best({.device_budget = budget / 2}));
  CHECK(first.best({.device_budget = budget}) == second.best({.device_budget = budget}));
}
