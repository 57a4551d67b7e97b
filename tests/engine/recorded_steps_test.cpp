// Steps that a plan is made of, or that follow one: what is noted of their waits and their memory.
#include <doctest/doctest.h>

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"

namespace {

using tidepool::plan::action;
using tidepool::test::rig;
using tidepool::test::small_options;
using offloader = tidepool::test::planning<rig::offloader<tidepool::modules<"fc1">>>;

constexpr std::size_t size = 2048;

tidepool::options automatic() {
  auto opts = small_options();
  opts.policy = tidepool::policy_kind::automatic;
  opts.timed_step = 2;
  opts.plan_effort = 50;
  opts.device_budget = std::size_t{1} << 20;
  return opts;
}

void work(rig& desk, double us) {
  desk.dev.launch(desk.stream(), us * 1000, [] {});
}

struct trainer {
  rig desk{};
  offloader off;
  offloader::chunk open{};
  std::vector<rig::buffer> saved{};

  explicit trainer(const tidepool::options& opts) : off(desk.dev, opts) {
    off.on_report([](std::string_view) {});
  }

  void forward(int layers) {
    saved.resize(static_cast<std::size_t>(layers));
    for (int l = 0; l < layers; ++l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      x = off.allocate(size, desk.stream());
      work(desk, 20);
      open.commit_or_discard<"fc1">(l, desk.stream(), x);
    }
    open.end_forward();
  }
  void backward(int layers) {
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      open.restore_or_recompute<"fc1">(
          l, desk.stream(), [&] { work(desk, 5); }, x);
      work(desk, 20);
      x.reset(desk.stream());
    }
    open.finish();
    off.end_step();
  }
  void step(int layers) {
    open = off.begin();
    forward(layers);
    backward(layers);
  }
};

}  // namespace

TEST_CASE("recorded steps: a wait that began before the record did is no part of it") {
  trainer train(automatic());
  for (int i = 0; i < 2; ++i) train.step(2);
  REQUIRE(train.off.current_plan());
  train.off.wait_for_others(train.desk.stream(), [&] {
    train.step(4);  // larger than the plan: the next are recorded
    train.step(4);
    train.open = train.off.begin();
    auto x = train.off.allocate(size, train.desk.stream());
    work(train.desk, 100);
    x.reset(train.desk.stream());
  });
  work(train.desk, 50);
  auto x = train.off.allocate(size, train.desk.stream());
  x.reset(train.desk.stream());
  train.off.wait_for_others(train.desk.stream(), [] {});  // what it takes when nobody is late
  train.forward(4);
  train.backward(4);
  const auto& seen = train.off.profile();
  REQUIRE(seen.timed());
  for (const auto& each : seen.events) CHECK(each.wait_us == 0);
  CHECK(seen.rest_wait_us == 0);
}

TEST_CASE("recorded steps: what was computed again and released is no longer under the curve") {
  trainer plain(automatic());
  for (int i = 0; i < 2; ++i) plain.step(3);
  const auto step = plain.off.profile();
  tidepool::plan::step_plan made;
  made.what = {{action::recompute, action::recompute, action::recompute}};
  trainer train(small_options());
  train.off.follow(made, step);
  train.step(3);
  train.off.start_trace("", train.desk.stream());
  train.step(3);
  const auto curve = train.off.finish_trace().device_bytes_without;
  CHECK(train.off.counters().modules.at(0).groups_recomputed == 6);
  std::size_t most = 0;
  for (const auto& each : curve) most = each.bytes > most ? each.bytes : most;
  CHECK(most == 3 * size);
  CHECK(curve.back().bytes == 0);
}
