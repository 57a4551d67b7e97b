/// The lower bound of a step, against the best of all choices.
#include "tidepool/plan/bound.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "plans.hpp"
#include "sanitizers.hpp"
#include "tidepool/plan/simulator.hpp"

namespace {

using tidepool::plan::action;
using tidepool::plan::link_bound;
using tidepool::plan::lower_bound;
using tidepool::plan::profile;
using tidepool::plan::simulator;
using tidepool::test::random_profile;
using tidepool::test::random_step;

constexpr int thinned = tidepool::test::thinned_if_short;

// The least time of all actions and reloads ahead; infinite when none runs.
double exhaustive_us(const profile& step, std::size_t budget, bool recompute,
                     std::size_t peer_budget = 0) {
  simulator sim(step);
  const auto& groups = sim.map().groups;
  std::vector<action> what(groups.size(), action::keep);
  auto best = std::numeric_limits<double>::infinity();
  const auto next = [&] {
    for (std::size_t i = 0; i < what.size(); ++i) {
      if (what[i] == action::keep) {
        what[i] = action::offload;
        return true;
      }
      if (what[i] == action::offload && peer_budget > 0) {
        what[i] = action::offload_to_peer;
        return true;
      }
      const bool again = recompute && groups[i].recompute_us > 0;
      if (is_offload(what[i]) && again) {
        what[i] = action::recompute;
        return true;
      }
      what[i] = action::keep;
    }
    return false;
  };
  do {
    for (const std::size_t ahead : {0U, 1U, 2U, 4U, 64U}) {
      const auto seen = sim.run(what, {budget, ahead, 0, peer_budget});
      if (seen.runs) best = std::min(best, seen.step_us);
    }
  } while (next());
  return best;
}

struct tally {
  int instances = 0;
  int limited = 0;  // slower than computing by 2 %
  int tight = 0;    // of them, the bound within 1 %
  int above = 0;    // the bound is
  int one_percent_above = 0;
  double link = 0;  // sums of gaps where limited
  double lower = 0;

  void add(double computing, double best, double by_link, double least) {
    ++instances;
    above += least > best * (1 + 1e-9) ? 1 : 0;
    one_percent_above += least * 1.01 > best * (1 + 1e-9) ? 1 : 0;
    if (best < computing * 1.02) return;
    ++limited;
    tight += best < least * 1.01 ? 1 : 0;
    link += best / by_link - 1;
    lower += best / least - 1;
  }
  [[nodiscard]] double mean(double sum) const { return 100 * sum / std::max(1, limited); }
};

random_step drawn(std::mt19937_64& random) {
  random_step about;
  about.depth = 1 + random() % 4;
  about.chunks = about.depth + random() % 3;
  about.groups = std::max<std::size_t>(about.chunks, 4 + random() % 5);
  if (random() % 4 == 0) about.groups = about.chunks;  // one large group of each
  about.recompute = random() % 4 == 0;
  if (about.recompute) about.groups = std::min<std::size_t>(about.groups, 7);
  about.waits = random() % 4 == 0;
  about.outliving = random() % 8 == 0;
  about.mixed_sizes = random() % 3 != 0;
  return about;
}

}  // namespace

TEST_CASE("bound: never above the best of all choices, and near it") {
  std::mt19937_64 random(31);
  tally seen;
  for (int instance = 0; seen.instances < 2500 / thinned; ++instance) {
    const auto about = drawn(random);
    auto step = random_profile(random, about);
    // Links that differ by direction, slow ones, and copies whose latency counts.
    const auto slow = std::array{1.0, 0.5, 0.25}[random() % 3];
    step.link.out *= slow;
    step.link.in *= slow * std::array{1.0, 1.0, 2.4}[random() % 3];
    step.link.both =
        std::max(step.link.out, step.link.in) * std::array{1.0, 1.05, 1.3, 1.8}[random() % 4];
    step.link.latency_us = random() % 8 == 0 ? 200 : 2;
    simulator sim(step);
    const std::vector<action> keep(sim.map().groups.size(), action::keep);
    const auto all = sim.run(keep, {});
    const auto budget = all.peak / 100 * (25 + random() % 70);
    const auto best = exhaustive_us(step, budget, about.recompute);
    if (std::isinf(best)) continue;
    const auto by_link = link_bound(sim.map(), step.link, budget, about.recompute);
    const auto least = lower_bound(sim.map(), step.link, budget, about.recompute);
    CAPTURE(instance);
    CAPTURE(best);
    CHECK(least >= by_link);
    CHECK(least <= best * (1 + 1e-9));
    seen.add(sim.map().compute_us, best, by_link, least);
  }
  MESSAGE(seen.instances << " instances, " << seen.limited
                         << " slower than computing; there the gap is " << seen.mean(seen.lower)
                         << " % in the mean, by the link alone " << seen.mean(seen.link) << " %; "
                         << seen.tight << " within 1 %");
  CHECK(seen.above == 0);
  CHECK(seen.one_percent_above > 100 / thinned);  // so that a bound that is 1 % too high is seen
  CHECK(seen.tight > 20 / thinned);
  CHECK(seen.lower < 0.8 * seen.link);
}

TEST_CASE("bound: whatever the prices, what they prove is never above the best of all choices") {
  namespace detail = tidepool::plan::detail;
  std::mt19937_64 random(33);
  const auto roll = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  int says = 0;      // something
  int too_high = 0;  // where shares of the link's time are more than all of it
  for (int seen = 0; seen < 400;) {
    auto about = drawn(random);
    about.groups = std::min<std::size_t>(about.groups, 6);
    const auto step = random_profile(random, about);
    simulator sim(step);
    const std::vector<action> keep(sim.map().groups.size(), action::keep);
    const auto budget = sim.run(keep, {}).peak / 100 * (25 + random() % 60);
    const auto best = exhaustive_us(step, budget, about.recompute);
    if (std::isinf(best)) continue;
    ++seen;
    const auto of = detail::timeline_cutter(sim.map(), step.link, static_cast<double>(budget),
                                            about.recompute, 16, true)
                        .take();
    const auto proved = [&](const detail::prices& at) {
      return sim.map().compute_us + detail::price_proof(of, at).least_us();
    };
    auto found = detail::price_search(of).run();
    CHECK(proved(found) <= best * (1 + 1e-9));
    says += proved(found) > sim.map().compute_us * 1.01 ? 1 : 0;
    for (int k = 0; k < 20; ++k) {
      auto at = found;
      const auto spread = std::array{0.05, 0.5, 1.0}[random() % 3];
      for (std::size_t i = 0; i < of.size(); ++i) {
        for (auto* each : {&at.out[i], &at.in[i], &at.both[i]}) {
          *each = (1 - spread) * *each + spread * roll() / 3;
        }
        at.memory[i] *= 1 + spread * (roll() - 0.5);
      }
      CHECK(proved(at) <= best * (1 + 1e-9));
    }
    // Out of the proof's condition: three times as much, and it may say anything.
    for (auto* each : {&found.out, &found.in, &found.both, &found.memory}) {
      for (auto& price : *each) price *= 3;
    }
    too_high += proved(found) > best * (1 + 1e-9) ? 1 : 0;
  }
  MESSAGE(
      says << " of 400 steps cannot be as fast as computing; shares beyond the link's time are too"
           << " high in " << too_high);
  CHECK(says > 100);
  CHECK(too_high > 50);
}

TEST_CASE("bound: as tight in a long step as in a short one") {
  const auto extra_of_a_microbatch = [](std::size_t chunks) {
    std::mt19937_64 random(34);
    auto step = random_profile(
        random, {.groups = 24 * chunks, .chunks = chunks, .depth = 2, .mixed_sizes = false});
    step.link = {20, 20, 36, 2};
    const simulator sim(step);
    const auto one = sim.map().groups[0].bytes * 24;
    const auto least = lower_bound(sim.map(), step.link, one * 7 / 10, false);
    CHECK(least > sim.map().compute_us * 1.1);
    return (least - sim.map().compute_us) / static_cast<double>(chunks);
  };
  CHECK(extra_of_a_microbatch(100) > 0.95 * extra_of_a_microbatch(10));
}

TEST_CASE("bound: three in flight over a link that both directions share") {
  namespace detail = tidepool::plan::detail;
  std::mt19937_64 random(35);
  auto step = random_profile(random, {.groups = 96, .chunks = 8, .depth = 3, .mixed_sizes = false});
  step.link = {17.5, 21, 21.2, 2};
  const simulator sim(step);
  const auto budget = sim.map().groups[0].bytes * 12 * 6 / 5;
  const auto fine =
      detail::timeline_cutter(sim.map(), step.link, static_cast<double>(budget), false, 1024, false)
          .take();
  const auto by_windows = detail::price_proof(fine, detail::window_search(fine).run()).least_us();
  const auto least = lower_bound(sim.map(), step.link, budget, false);
  MESSAGE(least << " us, by windows " << sim.map().compute_us + by_windows << ", by the link "
                << link_bound(sim.map(), step.link, budget, false));
  CHECK(least > 1.01 * (sim.map().compute_us + by_windows));
  CHECK(least > 1.01 * link_bound(sim.map(), step.link, budget, false));
}

TEST_CASE("bound: with a neighbour it is never above the best of all choices either") {
  std::mt19937_64 random(32);
  tally seen;
  int faster = 0;  // with the neighbour, by 1 % or more
  for (int instance = 0; seen.instances < 600 / thinned; ++instance) {
    auto about = drawn(random);
    about.groups = std::min<std::size_t>(about.groups, about.recompute ? 5 : 6);
    auto step = random_profile(random, about);
    const auto slow = std::array{1.0, 0.5, 0.25}[random() % 3];
    step.link = {step.link.out * slow, step.link.in * slow, step.link.both * slow, 2};
    const auto fast = std::array{0.5, 1.0, 4.0, 7.0}[random() % 4];
    step.peer_link = {step.link.out * fast, step.link.in * fast, step.link.both * fast, 5};
    step.peer_shares_link = random() % 8 == 0;
    simulator sim(step);
    const std::vector<action> keep(sim.map().groups.size(), action::keep);
    const auto budget = sim.run(keep, {}).peak / 100 * (25 + random() % 60);
    const auto peer_budget = sim.map().largest * (1 + random() % 3);
    const auto best = exhaustive_us(step, budget, about.recompute, peer_budget);
    if (std::isinf(best)) continue;
    const tidepool::plan::step_links links{step.link, step.peer_link, step.peer_shares_link,
                                           peer_budget};
    const auto by_link = link_bound(sim.map(), links, budget, about.recompute);
    const auto least = lower_bound(sim.map(), links, budget, about.recompute);
    CAPTURE(instance);
    CHECK(least >= by_link);
    CHECK(least <= best * (1 + 1e-9));
    seen.add(sim.map().compute_us, best, by_link, least);
    faster += best * 1.01 < exhaustive_us(step, budget, about.recompute) ? 1 : 0;
  }
  MESSAGE(seen.limited << " slower than computing; there the gap is " << seen.mean(seen.lower)
                       << " % in the mean; " << seen.tight << " within 1 %; the neighbour helps in "
                       << faster);
  CHECK(seen.above == 0);
  CHECK(seen.one_percent_above > 20 / thinned);
  CHECK(faster > 100 / thinned);
}
