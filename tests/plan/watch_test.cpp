// Steps under a plan are measured: the trainer is told once, and a plan is made anew where they
// drift away from it.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "faulty_device.hpp"
#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/observe/plan_watch.hpp"

namespace {

using namespace tidepool;
using test::rig;

constexpr std::size_t size = 1 << 16;
constexpr std::size_t layers = 6;

options automatic(std::optional<int> timed_step = {}) {
  auto opts = test::small_options({"core_attn"});
  opts.policy = policy_kind::automatic;
  opts.timed_step = timed_step;
  opts.device_budget = 4 * size;
  return opts;
}

// A trainer whose computing takes `layer_us` a layer, in forward and in backward.
struct trainer {
  explicit trainer(const options& opts = automatic()) : off(desk.dev, opts) {
    off.on_report([this](std::string_view line) { lines.emplace_back(line); });
  }

  void step() {
    auto open = off.begin();
    const auto id = off.module("core_attn");
    for (std::size_t l = 0; l < layers; ++l) {
      auto x = off.allocate(size, desk.stream());
      desk.dev.launch(desk.stream(), layer_us * 1e3, nullptr);
      open.commit(id, static_cast<int>(l), desk.stream(), x);
      saved[l] = std::move(x);
    }
    open.end_forward();
    for (std::size_t l = layers; l-- > 0;) {
      open.restore(id, static_cast<int>(l), desk.stream(), saved[l]);
      desk.dev.launch(desk.stream(), layer_us * 1e3, nullptr);
      saved[l].reset(desk.stream());
    }
    open.finish();
    open = {};
    off.end_step();
    desk.dev.synchronize();
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  [[nodiscard]] int told(std::string_view part) const {
    int found = 0;
    for (const auto& each : lines) found += each.find(part) != std::string::npos ? 1 : 0;
    return found;
  }
  [[nodiscard]] double predicted_us() const { return off.current_plan()->expected.step_us; }

  rig desk;
  test::planning<rig::offloader<>> off;
  std::array<rig::buffer, layers> saved;
  std::vector<std::string> lines;
  double layer_us = 100;
};

constexpr std::string_view found_out = "timed again";

// A watch without an offloader, over steps on one stream.
struct watched {
  watched() { hardware.open(lane_id{}, &ref, false); }

  virtual_device dev;
  virtual_device::stream stream = dev.make_stream();
  virtual_device::stream_ref ref = stream.ref();
  detail::hardware_of<virtual_device> hardware{dev};
  detail::plan_watch watch{hardware};
};

}  // namespace

TEST_CASE("watch: the trainer is told once how long steps take, beside the prediction") {
  trainer train;
  train.steps(60);
  REQUIRE(train.off.current_plan());
  CHECK(train.told("plan: steps take ") == 1);
  CHECK(train.told("predicted ") == 1);
  CHECK(train.told("computing alone takes 1.200 ") == 1);
  CHECK(train.told(found_out) == 0);
  CHECK(train.lines.size() == 2);  // the plan, and this
}

TEST_CASE("watch: a plan is made anew where steps drift away from it, upwards and downwards") {
  for (const double factor : {1.1, 0.9}) {
    CAPTURE(factor);
    trainer train;
    train.steps(20);
    const auto before_us = train.predicted_us();
    train.layer_us *= factor;
    train.steps(3 * static_cast<int>(detail::plan_watch::window));
    CHECK(train.told(found_out) == 1);
    CHECK(train.predicted_us() != doctest::Approx(before_us).epsilon(0.02));
    CHECK(train.told("plan: steps take ") == 3);  // the new plan's steps are told as well
    const auto now_us = train.predicted_us();
    train.steps(100);
    CHECK(train.told(found_out) == 1);  // the new plan holds
    CHECK(train.predicted_us() == now_us);
  }
}

TEST_CASE("watch: small changes, and single long steps, change nothing") {
  trainer train;
  train.steps(20);
  const auto before_us = train.predicted_us();
  train.layer_us *= 1.01;
  train.steps(40);
  for (int i = 0; i < 8; ++i) {
    train.desk.dev.launch(train.desk.stream(), 1e7, nullptr);  // an evaluation between two steps
    train.steps(5);
  }
  CHECK(train.told(found_out) == 0);
  CHECK(train.predicted_us() == before_us);
}

TEST_CASE("watch: the profile is that of the plan while its steps are timed again") {
  auto opts = automatic();
  opts.adopt_after = 5;
  trainer train(opts);
  train.steps(25);
  REQUIRE(train.off.current_plan());
  const auto events = train.off.profile().events.size();
  CHECK(events > 0);
  train.layer_us *= 1.2;
  for (int i = 0; i < 60; ++i) {
    train.step();
    CAPTURE(i);
    CHECK(train.off.profile().events.size() == events);
  }
  CHECK(train.told(found_out) == 1);
}

TEST_CASE("watch: nothing is captured while steps are timed again, and then it is") {
  trainer train;
  train.steps(25);
  train.layer_us *= 1.2;
  while (train.told(found_out) == 0) train.step();
  const auto capture = [&] { static_cast<void>(train.off.capture(train.desk.stream(), [] {})); };
  CHECK(test::says(test::message_of(capture), "or times steps for another"));
  train.steps(10);
  CHECK(test::message_of(capture).empty());
}

TEST_CASE("watch: a plan of a step that the trainer named is kept") {
  trainer train(automatic(3));
  train.steps(20);
  const auto before_us = train.predicted_us();
  train.layer_us *= 1.2;
  train.steps(60);
  CHECK(train.told(found_out) == 0);
  CHECK(train.predicted_us() == before_us);
}

TEST_CASE("watch: a plan from elsewhere is kept, and its prediction is told") {
  trainer source;
  source.steps(5);
  trainer train;
  train.layer_us *= 1.2;
  train.off.follow(*source.off.current_plan(), source.off.profile());
  train.steps(60);
  CHECK(train.told("plan: steps take ") == 1);
  CHECK(train.told(found_out) == 0);
  CHECK(train.predicted_us() == source.predicted_us());
}

TEST_CASE("watch: ranks vote in steps that all of them count, and plan anew together") {
  trainer train;
  bool another_drifts = false;
  std::vector<bool> asked;
  train.off.on_ready([&](bool ready) {
    asked.push_back(ready);
    return ready && !another_drifts;
  });
  while (!train.off.current_plan()) train.step();
  asked.clear();
  train.steps(63);
  CHECK(asked.empty());
  train.step();
  CHECK(asked == std::vector<bool>{true});  // nothing drifts
  train.layer_us *= 1.2;
  train.steps(63);
  CHECK(asked.size() == 1);
  const auto before_us = train.predicted_us();
  train.steps(4);
  REQUIRE(asked.size() > 1);
  CHECK_FALSE(asked[1]);              // this rank drifts
  CHECK(train.told(found_out) == 1);  // although it drifted for many windows before the vote
  CHECK(train.predicted_us() > 1.1 * before_us);

  asked.clear();
  train.steps(61);
  CHECK(asked.empty());
  another_drifts = true;
  for (int i = 0; i < 4 && asked.empty(); ++i) train.step();  // the 64th step of the new plan
  another_drifts = false;
  CHECK(asked == std::vector<bool>{true});
  const auto plans = train.told("groups leave");
  train.steps(4);
  CHECK(train.told("groups leave") == plans + 1);
}

TEST_CASE("watch: ranks that cannot agree keep their plans, and nothing else is said") {
  trainer train;
  train.off.on_measure([] {});
  while (!train.off.current_plan()) train.step();
  train.steps(20);
  const auto before_us = train.predicted_us();
  train.layer_us *= 1.2;
  train.steps(60);
  CHECK(train.told("plan: steps take ") == 1);
  CHECK(train.told(found_out) == 0);
  CHECK(train.predicted_us() == before_us);
}

TEST_CASE("watch: steps that a host cannot know without waiting are not measured") {
  watched desk;
  desk.watch.begin(100, lane_id{});
  const auto step = [&](bool waits) -> std::optional<double> {
    desk.dev.launch(desk.ref, 1e5, nullptr);
    const auto median_us = desk.watch.step_ended(lane_id{});
    if (waits) desk.dev.synchronize();
    return median_us;
  };
  for (int i = 0; i < 100; ++i) CHECK_FALSE(step(false));
  std::optional<double> median_us;
  for (std::size_t i = 0; i < 2 * detail::plan_watch::window && !median_us; ++i)
    median_us = step(true);
  REQUIRE(median_us);
  CHECK(*median_us == doctest::Approx(100));
}

TEST_CASE("watch: a plan that misses twice is compared with its own steps") {
  watched desk;
  desk.watch.begin(100, lane_id{});
  CHECK(desk.watch.has_drifted(104));
  desk.watch.begin(100, lane_id{});
  CHECK_FALSE(desk.watch.has_drifted(104));
  CHECK_FALSE(desk.watch.has_drifted(105));
  CHECK(desk.watch.has_drifted(108));
  desk.watch.begin(108, lane_id{});
  CHECK_FALSE(desk.watch.has_drifted(109));
  CHECK_FALSE(desk.watch.has_drifted(110));
  CHECK(desk.watch.has_drifted(112));
}
