// The step that a plan is made of, where the clock of the device falls under load.
#include "tidepool/observe/settling.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/observe/recorded_steps.hpp"
#include "unsimulated_device.hpp"

namespace {

using tidepool::options;
using tidepool::plan::detail::settling;
using tidepool::plan::detail::warm_up_steps;
using device = tidepool::test::unsimulated_device;

constexpr std::size_t size = 64 * 1024;
constexpr int layers = 4;

// How long each kernel takes in a step, in parts of what it takes in a step of a warm device.
using clock_of = std::function<double(int step)>;

struct trainer {
  explicit trainer(clock_of clock, const options& opts = automatic())
      : clock_(std::move(clock)), off(dev, opts) {
    off.on_report([](std::string_view) {});
  }

  [[nodiscard]] static options automatic() {
    auto opts = tidepool::test::small_options({"core_attn"});
    opts.policy = tidepool::policy_kind::automatic;
    opts.plan_effort = 50;
    opts.adopt_after = 0;  // so that steps count alike
    opts.device_budget = 5 * size / 2;
    return opts;
  }

  // Returns the milliseconds that the step took.
  double step() {
    const auto before = dev.now_ns();
    const auto part = clock_(++steps);
    const auto s = stream.ref();
    auto open = off.begin();
    const auto id = off.module("core_attn");
    std::vector<tidepool::buffer<device>> x(layers);
    for (int l = 0; l < layers; ++l) {
      auto& each = x[static_cast<std::size_t>(l)];
      each = off.allocate(size, s);
      dev.launch(s, 1e6 * part, nullptr);
      open.commit(id, l, s, each);
    }
    open.end_forward();
    if (synchronises) dev.synchronize();
    for (int l = layers; l-- > 0;) {
      auto& each = x[static_cast<std::size_t>(l)];
      open.restore(id, l, s, each);
      dev.launch(s, 2e6 * part, nullptr);
      each.reset(s);
    }
    open.finish();
    if (waits) off.wait_for_peers(s, [] {});
    dev.synchronize();
    const auto ms = (dev.now_ns() - before) / 1e6;
    off.end_step();
    return ms;
  }
  int until_planned() {
    while (!off.current_plan()) step();
    return steps;
  }
  // How far the prediction is from a step of the warm device, in parts of it.
  double miss() {
    until_planned();
    double ms = 0;
    while (steps < 200) ms = step();
    return std::abs(off.current_plan()->expected.step_us / 1e3 / ms - 1);
  }

 private:
  clock_of clock_;
  device dev;
  device::stream stream = dev.make_stream();

 public:
  int steps = 0;
  bool waits = false;         // for other ranks
  bool synchronises = false;  // waits for the device between forward and backward
  tidepool::test::planning<tidepool::offloader<device>> off;
};

// A GPU that computes 9 % faster at first; the lead shrinks by e in so many steps.
clock_of falling(double time) {
  return [=](int step) { return 1 - 0.09 * std::exp(-step / time); };
}

// Adds steps of these times until they have settled, and returns how many that took.
int settled_after(const clock_of& us) {
  settling computing;
  int steps = 0;
  while (!computing.settled() && steps < 1000) computing.add(us(++steps));
  return steps;
}

}  // namespace

TEST_CASE("settling: steps that are alike have settled after two windows") {
  CHECK(settled_after([](int) { return 100.0; }) == 8);
  CHECK(settled_after([](int step) { return step % 2 == 0 ? 100.0 : 101.0; }) == 8);
  CHECK(settled_after([](int step) { return step == 7 ? 500.0 : 100.0; }) == 8);  // came once
}

TEST_CASE("settling: a fall or a rise has to end") {
  CHECK(settled_after([](int step) { return 100.0 + step; }) > 900);
  CHECK(settled_after([](int step) { return step < 20 ? 100.0 + step : 120.0; }) > 20);
  CHECK(settled_after([](int step) { return step < 20 ? 120.0 - step : 100.0; }) > 20);
}

TEST_CASE("settling: it stays so until it begins anew") {
  settling computing;
  for (int i = 0; i < 8; ++i) computing.add(100);
  for (int i = 0; i < 8; ++i) computing.add(200 + i * 10);
  CHECK(computing.settled());
  computing.begin_anew();
  CHECK_FALSE(computing.settled());
  for (int i = 0; i < 7; ++i) computing.add(100);
  CHECK_FALSE(computing.settled());
}

TEST_CASE("settling: what a plan is made of predicts the warm step within 1 %") {
  for (const double time : {0.5, 2.0, 4.0, 8.0, 16.0}) {
    CAPTURE(time);
    CHECK(trainer(falling(time)).miss() < 0.01);
  }
  // The second step alone does not.
  auto second = trainer::automatic();
  second.timed_step = 2;
  CHECK(trainer(falling(8), second).miss() > 0.05);
}

TEST_CASE("settling: the plan comes soon where the clock is steady, late where it never is") {
  CHECK(trainer([](int) { return 1.0; }).until_planned() == 12);
  CHECK(trainer(falling(4)).until_planned() > 12);
  CHECK(trainer([](int step) { return 1 + step * 0.01; }).until_planned() == warm_up_steps::most);
}

TEST_CASE("settling: the first steps still tell where the host waits for the device") {
  trainer train(falling(8));
  train.synchronises = true;
  CHECK(train.miss() < 0.01);
  CHECK(std::ranges::count(train.off.profile().events, tidepool::plan::event_kind::synchronise,
                           &tidepool::plan::event::kind) == 1);
}

TEST_CASE("settling: a step that was named is the one") {
  for (const int named : {2, 3, 7}) {
    auto opts = trainer::automatic();
    opts.timed_step = named;
    CHECK(trainer(falling(4), opts).until_planned() == named);
  }
}

TEST_CASE("settling: ranks that wait for each other plan at the end of the same step") {
  for (const double time : {0.5, 16.0}) {
    trainer rank(falling(time));
    SUBCASE("in a step") { rank.waits = true; }
    SUBCASE("to measure") {
      rank.off.on_measure([] {});
    }
    CHECK(rank.until_planned() == warm_up_steps::of_ranks);
  }
}

TEST_CASE("settling: a warm-up that begins anew settles anew") {
  trainer train(falling(4));
  const int first = train.until_planned();
  auto open = train.off.begin();  // larger than the plan: two chunks
  open.end_forward();
  open.finish();
  train.step();
  CHECK_FALSE(train.off.current_plan());
  const int outgrown = train.steps;
  CHECK(train.until_planned() - outgrown >= 12);
  CHECK(first > 12);
}
