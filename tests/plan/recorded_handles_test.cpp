// Handles that no group saves, beside those that one does: a recorded step can be saved and read
// whatever they do, and the forecast of it takes the memory that the engine takes, or it says that
// memory may be taken otherwise.
#include <doctest/doctest.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/plan/check.hpp"
#include "tidepool/plan/forecast.hpp"

namespace {

using namespace tidepool;
using tidepool::test::rig;
constexpr std::size_t size = 4096;

// One step of a trainer; what it is given is its own until the step ends.
struct trainer {
  rig& desk;
  rig::offloader<>& off;

  [[nodiscard]] auto s() const { return desk.stream(); }
  [[nodiscard]] rig::buffer tensor() const { return off.allocate(size, s()); }
  [[nodiscard]] auto begin(int microbatch = 0) const {
    return off.begin({.microbatch = microbatch});
  }
};

options automatic() {
  auto opts = test::small_options({"core_attn", "moe_act"});
  opts.policy = policy_kind::automatic;
  opts.timed_step = 2;
  return opts;
}

struct recorded_step {
  plan::profile profile;
  std::size_t taken = 0;      // by the engine, where everything leaves
  std::size_t predicted = 0;  // for the same
};

// `kept`: of the second step, in which everything stays, as no budget is given.
template <class Step>
recorded_step record(const Step& step, bool kept = true) {
  recorded_step result;
  {
    rig desk;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
    off.on_report([](std::string_view) {});
    off.on_measure([&] { result.profile = off.profile(); });  // of the first step
    for (int i = 0; i < (kept ? 2 : 1); ++i) {
      step(trainer{desk, off});
      off.end_step();
    }
    if (kept) result.profile = off.profile();
  }
  REQUIRE(result.profile.timed());
  CHECK_NOTHROW(plan::check(result.profile));
  plan::step_plan all;
  for (const auto& chunk : result.profile.chunks) {
    all.what.emplace_back(chunk.groups.size(), plan::action::offload);
  }
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
  off.on_report([](std::string_view) {});
  try {
    off.follow(all, result.profile);
  } catch (const plan::profile_error&) {  // told of above
    return result;
  }
  for (int i = 0; i < 2; ++i) {
    step(trainer{desk, off});
    off.end_step();
  }
  result.taken = off.counters().live_peak;
  result.predicted = plan::forecast(result.profile, automatic(), all.what).expected.peak;
  return result;
}

std::vector<plan::event_kind> kinds(const plan::profile& step) {
  std::vector<plan::event_kind> result;
  for (const auto& each : step.events) result.push_back(each.kind);
  return result;
}

}  // namespace

TEST_CASE("recorded handles: a view that leaves after its buffer has come back") {
  for (const bool kept : {false, true}) {
    CAPTURE(kept);
    const auto seen = record(
        [](const trainer& run) {
          auto first = run.begin();
          auto x = run.tensor();
          first.commit(run.off.module("core_attn"), 0, run.s(), x);
          first.restore(run.off.module("core_attn"), 0, run.s(), x);
          first.finish();
          auto second = run.begin(1);
          auto half = x.view({.width = size / 2});
          second.commit(run.off.module("core_attn"), 0, run.s(), half);
          x.reset(run.s());
          second.end_forward();
          second.restore(run.off.module("core_attn"), 0, run.s(), half);
          half.reset(run.s());
          second.finish();
        },
        kept);
    CHECK(seen.profile.shapes_vary);
  }
}

TEST_CASE("recorded handles: opted out, it stays with a group, and leaves by hand with another") {
  const auto seen = record([](const trainer& run) {
    const auto attention = run.off.module("core_attn");
    auto first = run.begin();
    auto second = run.begin(1);
    auto x = run.tensor();
    x.keep_resident();
    first.start_offload(attention, 0, run.s(), x);
    auto y = run.tensor();
    second.commit(attention, 0, run.s(), y, x);
    rig::buffer again;
    first.restore(attention, 0, run.s(), again);
    again.reset(run.s());
    first.finish();
    second.restore(attention, 0, run.s(), y, x);
    y.reset(run.s());
    x.reset(run.s());
    second.finish();
  });
  CHECK(seen.profile.shapes_vary);
}

TEST_CASE(
    "recorded handles: opted out, it stays with two groups, and leaves by hand with a third") {
  const auto seen = record([](const trainer& run) {
    const auto attention = run.off.module("core_attn");
    const auto act = run.off.module("moe_act");
    auto first = run.begin();
    auto second = run.begin(1);
    auto x = run.tensor();
    auto shared = x.share();
    x.keep_resident();
    first.start_offload(attention, 0, run.s(), x);
    auto y = run.tensor();
    first.commit(act, 0, run.s(), y, x);
    second.commit(act, 0, run.s(), shared);
    second.restore(act, 0, run.s(), shared);
    shared.reset(run.s());
    second.finish();
    first.restore(act, 0, run.s(), y, x);
    first.restore(attention, 0, run.s(), x);
    y.reset(run.s());
    x.reset(run.s());
    first.finish();
  });
  CHECK(seen.profile.shapes_vary);
}

TEST_CASE(
    "recorded handles: opted out, it is there while a group has it, whatever other handles do") {
  const auto seen = record([](const trainer& run) {
    const auto attention = run.off.module("core_attn");
    const auto act = run.off.module("moe_act");
    auto open = run.begin();
    auto x = run.tensor();
    auto shared = x.share();
    x.keep_resident();
    open.start_offload(attention, 0, run.s(), x);
    open.start_offload(attention, 1, run.s(), x);
    auto y = run.tensor();
    open.commit(act, 0, run.s(), y, x);
    shared.reset(run.s());
    auto work = run.off.allocate(2 * size, run.s());
    work.reset(run.s());
    open.restore(act, 0, run.s(), y, x);
    y.reset(run.s());
    x.reset(run.s());
    open.restore(attention, 1, run.s(), x);
    x.reset(run.s());
    open.restore(attention, 0, run.s(), x);
    x.reset(run.s());
    open.finish();
  });
  CHECK((seen.profile.shapes_vary || seen.taken == seen.predicted));
}

TEST_CASE("recorded handles: what leaves by hand is there until it is released by hand") {
  using enum plan::event_kind;
  bool released = true;
  SUBCASE("before its restore: the forecast has it as long") {}
  SUBCASE("after its restore: memory is held as no event tells") { released = false; }
  const auto step = [&](const trainer& run) {
    const auto attention = run.off.module("core_attn");
    auto open = run.begin();
    auto x = run.tensor();
    auto shared = x.share();
    open.start_offload(attention, 0, run.s(), x);
    shared.reset(run.s());
    auto beside = run.tensor();
    if (released) x.reset(run.s());
    beside.reset(run.s());
    open.end_forward();
    open.restore(attention, 0, run.s(), x);
    x.reset(run.s());
    open.finish();
  };
  const auto seen = record(step);
  CHECK(seen.profile.shapes_vary != released);
  if (!released) return;
  CHECK(seen.taken == 2 * size);
  CHECK(seen.predicted == seen.taken);
  CHECK(kinds(seen.profile) ==
        std::vector{allocate, commit, allocate, drop, release, end_forward, restore, release});
}

TEST_CASE("recorded handles: a forward pass that is ended twice ends once") {
  using enum plan::event_kind;
  const auto seen = record([](const trainer& run) {
    auto open = run.begin();
    auto x = run.tensor();
    open.commit(run.off.module("core_attn"), 0, run.s(), x);
    open.end_forward();
    open.end_forward();
    open.restore(run.off.module("core_attn"), 0, run.s(), x);
    open.end_forward();
    x.reset(run.s());
    open.finish();
  });
  CHECK(seen.predicted == seen.taken);
  CHECK(kinds(seen.profile) == std::vector{allocate, commit, end_forward, restore, release});
}
