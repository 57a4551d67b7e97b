// A plan from elsewhere for which there is no host memory: what was followed before goes on.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "heap_fault.hpp"
#include "rig.hpp"
#include "tidepool/core/plan_source.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/plan/profile.hpp"

namespace {

namespace plan = tidepool::plan;

using tidepool::test::heap_now;
using tidepool::test::rig;
using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;
constexpr int layers = 4;

/// Follows whatever it is given.
struct credulous final : tidepool::plan_source {
  tidepool::decision make(const tidepool::recorded_step& /*step*/,
                          const tidepool::options& /*opts*/) override {
    return {};
  }
  tidepool::followed_plan follow(const plan::step_plan& made, const plan::profile& recorded,
                                 std::span<const std::string> /*modules*/,
                                 std::uint64_t /*enabled*/,
                                 const tidepool::options& /*opts*/) override {
    tidepool::followed_plan result;
    result.step = recorded;
    result.what.made = made;
    return result;
  }
};

// A step of one microbatch in which no group comes back.
plan::profile forgotten_step() {
  plan::profile step;
  step.modules = {"fc1"};
  step.passes = {{0, false}, {0, true}};
  step.chunks.push_back({0, {layers, {tidepool::module_id{}, 0, size, 0}}, 0});
  step.events.push_back({plan::event_kind::end_forward, 0, 0, 0, 0});
  return step;
}

// Bytes on their way back once the first group has been restored.
std::uint64_t ahead_in_a_step(rig& desk, offloader& off) {
  auto open = off.begin();
  std::array<rig::buffer, layers> x;
  for (int l = 0; l < layers; ++l) {
    auto& each = x[static_cast<std::size_t>(l)];
    each = off.allocate(size, desk.stream());
    open.commit<"fc1">(l, desk.stream(), each);
  }
  open.end_forward();
  std::uint64_t ahead = 0;
  for (int l = layers; l-- > 0;) {
    auto& each = x[static_cast<std::size_t>(l)];
    open.restore<"fc1">(l, desk.stream(), each);
    if (l == layers - 1) ahead = off.counters().modules[0].bytes_reloaded;
    each.reset(desk.stream());
  }
  open.finish();
  off.end_step();
  return ahead;
}

}  // namespace

TEST_CASE("follow: where host memory fails, what was followed before goes on as it was") {
  plan::step_plan made;
  made.what = {{layers, plan::action::offload}};
  made.reload_ahead = 0;
  bool failed = true;
  for (std::uint64_t k = 1; failed; ++k) {
    CAPTURE(k);
    REQUIRE(k < 100);
    rig desk;
    auto opts = tidepool::test::small_options();
    opts.reload_ahead = 2;
    offloader off(desk.dev, opts, {.planner = std::make_unique<credulous>()});
    const auto step = forgotten_step();
    heap_now = {true, 0, k};
    try {
      off.follow(made, step);
      failed = false;
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    heap_now = {};
    if (failed) CHECK(ahead_in_a_step(desk, off) == 3 * size);
  }
}
