// Groups that are offered to be computed again: what a failure leaves, and what nobody offered.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using namespace tidepool;
using plan::action;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

constexpr std::size_t size = 2048;
constexpr std::size_t small = 64;

using offloader_type = tidepool::test::planning<rig::offloader<>>;

options automatic() {
  auto opts = small_options({"core_attn", "moe_act"});
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 20;
  opts.device_budget = std::size_t{1} << 20;
  return opts;
}

struct bench {
  explicit bench(const options& opts) : off(desk.dev, opts) {
    off.on_report([](std::string_view) {});
    off.on_measure([this] { first = off.profile(); });
  }

  rig desk;
  offloader_type off;
  plan::profile first;  // of the first step
  module_id attention = off.module("core_attn");
  module_id act = off.module("moe_act");

  [[nodiscard]] auto s() const { return desk.stream(); }
  [[nodiscard]] trace::module_counters counted() const {
    return off.counters().modules[static_cast<std::size_t>(act)];
  }
  // Follows a plan for one chunk of such groups, the latter of which may be computed again.
  void follow(const std::vector<module_id>& modules, const std::vector<action>& what) {
    plan::profile step;
    step.modules = {"core_attn", "moe_act"};
    step.passes = {{0, false}, {0, true}};
    step.chunks.push_back({0, {}, 0});
    for (const auto module : modules) {
      const bool again = module == act;
      step.chunks[0].groups.push_back({module_id{again}, 0, size, again ? 1.0 : 0.0});
    }
    plan::step_plan made;
    made.what = {what};
    off.follow(made, step);
  }
};

struct own_error {};

}  // namespace

TEST_CASE(
    "offered: what failed while it was measured is empty, says so, and may come ahead again") {
  auto opts = automatic();
  opts.reload_ahead = 1;
  bench on(opts);
  auto open = on.off.begin();
  auto y = on.off.allocate(size, on.s());
  on.desk.write(y, 1);
  open.commit_or_discard(on.act, 0, on.s(), y);
  const auto words = message_of([&] { static_cast<void>(y.data()); });
  CHECK(says(words, "moe_act of layer 0"));
  open.end_forward();
  CHECK(on.desk.dev.reloads() == 1);
  CHECK_THROWS_AS(open.restore_or_recompute(
                      on.act, 0, on.s(), [] { throw own_error(); }, y),
                  own_error);
  CHECK(message_of([&] { static_cast<void>(y.data()); }) == words);
  open.end_forward();
  CHECK(on.desk.dev.reloads() == 2);
  open.restore_or_recompute(
      on.act, 0, on.s(), [&] { on.desk.write(y, 1); }, y);
  on.desk.check(y, 1);
  CHECK(on.desk.dev.reloads() == 2);
  y.reset(on.s());
  open.finish();
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("offered: a trace that fails behind what was computed again spoils no record") {
  bench on(automatic());
  on.off.start_trace("step", on.s());
  auto open = on.off.begin();
  auto y = on.off.allocate(size, on.s());
  on.desk.write(y, 1);
  open.commit_or_discard(on.act, 0, on.s(), y);
  open.end_forward();
  bool failed = false;
  const auto second_record_fails = [&] {  // behind the one that the recorder makes
    on.desk.write(y, 1);
    on.desk.dev.before_record = [&failed, n = 0]() mutable {
      if (++n != 2) return;
      failed = true;
      throw device_error("no event", 1);
    };
  };
  open.restore_or_recompute(on.act, 0, on.s(), second_record_fails, y);
  CHECK(failed);  // its span is missing from the trace; the step goes on
  on.desk.dev.before_record = {};
  on.desk.check(y, 1);
  auto work = on.off.allocate(small, on.s());
  on.desk.dev.launch(on.s(), 50'000, [] {});
  work.reset(on.s());
  y.reset(on.s());
  open.finish();
  static_cast<void>(on.off.finish_trace());
  on.off.end_step();
  REQUIRE(on.first.events.size() == 7);
  CHECK(on.first.events[5].kind == plan::event_kind::release);
  CHECK(on.first.events[5].compute_us == doctest::Approx(50));
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("offered: zeros are written where memory is new, and not over what came back") {
  bench on(automatic());
  int fills = 0;
  on.desk.dev.before_fill = [&] { ++fills; };
  auto open = on.off.begin();
  auto y = on.off.allocate(size, on.s(), fill::zero);
  CHECK(fills == 1);
  on.desk.write(y, 1);
  open.commit_or_discard(on.act, 0, on.s(), y);
  open.end_forward();
  bool again = false;
  open.restore_or_recompute(
      on.act, 0, on.s(),
      [&] {
        again = true;
        on.desk.check(y, 1);
        on.desk.write(y, 1);
      },
      y);
  CHECK(again);
  CHECK(fills == 1);
  on.desk.check(y, 1);
  y.reset(on.s());
  open.finish();
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("offered: what stays since another group keeps it did not leave for want of an offer") {
  bench on(small_options({"core_attn", "moe_act"}));
  on.follow({on.attention, on.act}, {action::keep, action::recompute});
  auto open = on.off.begin();
  auto x = on.off.allocate(size, on.s());
  auto again = x.share();
  on.desk.write(x, 1);
  open.commit(on.attention, 0, on.s(), x);
  open.commit_or_discard(on.act, 0, on.s(), again);
  open.end_forward();
  bool called = false;
  open.restore_or_recompute(
      on.act, 0, on.s(), [&] { called = true; }, again);
  open.restore(on.attention, 0, on.s(), x);
  on.desk.check(again, 1);
  again.reset(on.s());
  x.reset(on.s());
  open.finish();
  on.off.end_step();
  CHECK_FALSE(called);
  CHECK(on.counted().groups_resident == 1);
  CHECK(on.counted().groups_held == 0);
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("offered: what was too small to be given up is the trainer's, and may be made anew") {
  auto opts = small_options({"core_attn", "moe_act"});
  opts.min_tensor_elements = 2 * small;
  bench on(opts);
  on.follow({on.act}, {action::recompute});
  auto open = on.off.begin();
  auto codes = on.off.allocate(size, on.s());
  auto scales = on.off.allocate(small, on.s());
  open.commit_or_discard(on.act, 0, on.s(), codes, scales);
  CHECK_FALSE(codes);
  REQUIRE(scales);
  open.end_forward();
  auto others = on.off.allocate(small, on.s());
  scales.reset(on.s());
  open.restore_or_recompute(
      on.act, 0, on.s(),
      [&] {
        on.desk.write(codes, 1);
        on.desk.write(others, 2);
      },
      codes, others);
  on.desk.check(codes, 1);
  on.desk.check(others, 2);
  codes.reset(on.s());
  others.reset(on.s());
  open.finish();
  on.off.end_step();
  CHECK(on.counted().groups_recomputed == 1);
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("offered: a step is recorded from the stream on which an evaluation discarded last") {
  auto opts = automatic();
  opts.recompute_modules = {"layernorm"};
  bench on(opts);
  const auto second = on.desk.dev.make_stream();
  const auto other = second.ref();
  auto evaluation = on.off.begin({.forward_only = true});
  auto z = on.off.allocate(size, on.s());
  on.desk.dev.launch(on.s(), 1e6, [] {});
  evaluation.commit_or_discard("layernorm", 0, other, z);
  evaluation.finish();
  auto open = on.off.begin();
  on.desk.dev.launch(other, 100'000, [] {});
  auto x = on.off.allocate(size, other);
  open.commit(on.attention, 0, other, x);
  open.end_forward();
  open.restore(on.attention, 0, other, x);
  x.reset(other);
  open.finish();
  on.off.end_step();
  REQUIRE(on.first.events.size() == 5);
  CHECK(on.first.events[0].compute_us == doctest::Approx(100));
}
