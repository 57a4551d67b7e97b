// Who decides is given to the offloader; without one there are no plans.
#include "tidepool/core/plan_source.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::decision;
using tidepool::test::rig;
using tidepool::test::small_options;

tidepool::options automatic() {
  auto opts = small_options({"core_attn"});
  opts.policy = tidepool::policy_kind::automatic;
  opts.timed_step = 2;
  return opts;
}

constexpr std::size_t size = 1024;

// How many of the layers stayed.
int step(rig& desk, rig::offloader<>& off, int layers = 3) {
  auto open = off.begin();
  const auto id = off.module("core_attn");
  std::vector<rig::buffer> x(static_cast<std::size_t>(layers));
  int stayed = 0;
  for (int l = 0; l < layers; ++l) {
    auto& each = x[static_cast<std::size_t>(l)];
    each = off.allocate(size, desk.stream());
    desk.write(each, static_cast<std::uint32_t>(l), 2e5);
    open.commit(id, l, desk.stream(), each);
    stayed += each ? 1 : 0;
  }
  open.end_forward();
  for (int l = layers; l-- > 0;) {
    auto& each = x[static_cast<std::size_t>(l)];
    open.restore(id, l, desk.stream(), each);
    desk.check(each, static_cast<std::uint32_t>(l));
    each.reset(desk.stream());
  }
  open.finish();
  off.end_step();
  return stayed;
}

// Keeps the first layer, and notes what it was asked.
struct keeps_first final : tidepool::plan_source {
  std::vector<bool>& asked;
  explicit keeps_first(std::vector<bool>& notes) : asked(notes) {}

  decision make(const tidepool::recorded_step& recorded, const tidepool::options& given) override {
    asked.push_back(recorded.first);
    CHECK(given == automatic());
    decision what;
    what.made.reload_ahead = 5;
    what.made.reload_ahead_bytes = recorded.first ? 4 * size : 0;
    for (const auto& chunk : recorded.step.chunks) {
      what.made.what.emplace_back(chunk.groups.size(), tidepool::plan::action::offload)[0] =
          tidepool::plan::action::keep;
    }
    what.words = "the first layer stays";
    return what;
  }
  tidepool::followed_plan follow(const tidepool::plan::step_plan&, const tidepool::plan::profile&,
                                 std::span<const std::string>, std::uint64_t,
                                 const tidepool::options&) override {
    return {};
  }
};

}  // namespace

TEST_CASE("plan source: without one, an automatic policy and a plan from elsewhere are refused") {
  rig desk;
  CHECK_THROWS_WITH_AS(
      rig::offloader<>(desk.dev, automatic()),
      "tidepool: policy: automatic needs a planner, and this offloader was given"
      " none; #include <tidepool/plan.hpp> and construct it as offloader(dev, opts,"
      " {.planner = tidepool::planner()})",
      tidepool::option_error);
  rig::offloader<> off(desk.dev, small_options());
  CHECK_THROWS_WITH_AS(off.follow({}, {}),
                       doctest::Contains("follow: a plan from elsewhere needs a planner"),
                       tidepool::option_error);
}

TEST_CASE("plan source: one of the trainer's own decides") {
  rig desk;
  std::vector<bool> asked;
  rig::offloader<> off(desk.dev, automatic(), {.planner = std::make_unique<keeps_first>(asked)});
  std::vector<std::string> lines;
  off.on_report([&](std::string_view line) { lines.emplace_back(line); });
  CHECK(step(desk, off) == 0);
  CHECK(step(desk, off) == 1);
  CHECK(step(desk, off) == 1);
  CHECK(asked == std::vector{true, false});
  CHECK(lines == std::vector<std::string>{"the first layer stays"});
  CHECK(desk.wrong() == 0);
}

TEST_CASE("plan source: what a plan changes has a name beside the options that were given") {
  using limits = tidepool::reload_limits;
  rig desk;
  std::vector<bool> asked;
  const auto given = automatic();
  const limits by_options{given.reload_ahead, given.reload_ahead_bytes};
  rig::offloader<> off(desk.dev, given, {.planner = std::make_unique<keeps_first>(asked)});
  off.on_report([](std::string_view) {});
  CHECK(off.reloads_ahead() == by_options);
  const auto after = [&](int layers, const limits& expected) {
    step(desk, off, layers);
    CHECK(off.reloads_ahead() == expected);
    CHECK(off.settings() == given);
  };
  after(3, {5, 4 * size});  // tried out
  after(3, {5, {}});        // followed
  after(3, {5, {}});
  after(9, by_options);  // outgrown: the step to come is the first again
  CHECK(asked.size() == 2);
}
