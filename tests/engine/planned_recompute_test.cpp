// Groups that a plan has discarded in forward and computed again in backward.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/plan/check.hpp"

namespace {

using tidepool::machine;
using tidepool::options;
using tidepool::policy_kind;
using tidepool::plan::action;
using tidepool::plan::actions;
using tidepool::plan::profile;
using tidepool::plan::profile_error;
using tidepool::plan::step_plan;
using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader =
    tidepool::test::planning<rig::offloader<tidepool::modules<"core_attn", "moe_act">>>;

constexpr std::size_t size = 2048;
constexpr double again_ns = 7000;

/// Layers that save an input and what is computed from it; the latter may be computed again.
struct trainer {
  rig& desk;
  offloader& off;
  int layers = 3;
  bool offers = true;
  double slower_ns = 0;  // from step to step
  bool scratch = false;  // to compute again
  std::uint32_t round = 0;
  int computed_again = 0;
  std::vector<rig::buffer> x = std::vector<rig::buffer>(static_cast<std::size_t>(layers));
  std::vector<rig::buffer> y = std::vector<rig::buffer>(static_cast<std::size_t>(layers));
  offloader::chunk chunk{};

  void compute(int layer) {
    const auto l = static_cast<std::size_t>(layer);
    desk.dev.launch(desk.stream(), again_ns + slower_ns * round,
                    [from = x[l].data(), to = y[l].data()] { std::memcpy(to, from, size); });
  }
  // Memory of its own, with work before, between and behind.
  void compute_in_parts(int layer) {
    desk.dev.launch(desk.stream(), again_ns, [] {});
    auto part = off.allocate(size, desk.stream());
    desk.write(part, tag(layer), again_ns);
    part.reset(desk.stream());
  }
  [[nodiscard]] std::uint32_t tag(int layer) const {
    return round * 100 + static_cast<std::uint32_t>(layer);
  }
  void forward_layer(int layer) {
    const auto l = static_cast<std::size_t>(layer);
    x[l] = off.allocate(size, desk.stream());
    desk.write(x[l], tag(layer), 20'000);
    y[l] = off.allocate(size, desk.stream());
    compute(layer);
    chunk.commit<"core_attn">(layer, desk.stream(), x[l]);
    if (offers) {
      chunk.commit_or_discard<"moe_act">(layer, desk.stream(), y[l]);
    } else {
      chunk.commit<"moe_act">(layer, desk.stream(), y[l]);
    }
  }
  void fetch(int layer) {
    auto& to = y[static_cast<std::size_t>(layer)];
    if (!offers) return chunk.restore<"moe_act">(layer, desk.stream(), to);
    chunk.restore_or_recompute<"moe_act">(
        layer, desk.stream(),
        [&] {
          ++computed_again;
          if (scratch) compute_in_parts(layer);
          compute(layer);
        },
        to);
  }
  void backward_layer(int layer) {
    const auto l = static_cast<std::size_t>(layer);
    const bool input_first = chunk.will_recompute<"moe_act">(layer);
    const auto before = computed_again;
    if (input_first) chunk.restore<"core_attn">(layer, desk.stream(), x[l]);
    fetch(layer);
    CHECK(computed_again == before + (input_first ? 1 : 0));
    desk.check(y[l], tag(layer));
    y[l].reset(desk.stream());
    if (!input_first) chunk.restore<"core_attn">(layer, desk.stream(), x[l]);
    desk.check(x[l], tag(layer));
    x[l].reset(desk.stream());
  }
  void step() {
    ++round;
    chunk = off.begin();
    for (int l = 0; l < layers; ++l) forward_layer(l);
    chunk.end_forward();
    for (int l = layers; l-- > 0;) backward_layer(l);
    chunk.finish();
    off.end_step();
  }
};

/// What the warm-up records of such a step.
profile recorded(bool offers = true, int layers = 3) {
  rig desk;
  auto opts = small_options();
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 200;
  opts.device_budget = std::size_t{1} << 20;
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  trainer train{.desk = desk, .off = off, .layers = layers, .offers = offers};
  for (int i = 0; i < 2; ++i) train.step();
  CHECK(train.computed_again == (offers ? layers : 0));  // in the first step
  CHECK(desk.wrong() == 0);
  return off.profile();
}

/// The inputs do as `x` says, what is computed from them as `y`.
step_plan plan_of(const profile& step, action x, action y) {
  step_plan made;
  for (const auto& chunk : step.chunks) {
    auto& row = made.what.emplace_back();
    for (const auto& group : chunk.groups) {
      row.push_back(group.module == static_cast<tidepool::module_id>(0) ? x : y);
    }
  }
  return made;
}

const tidepool::trace::module_counters& of_y(const tidepool::trace::counters& all) {
  return all.modules[1];
}

}  // namespace

TEST_CASE("recompute by plan: nothing is copied, the memory serves others, the bits are the same") {
  const auto step = recorded();
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    // Room for both of one layer, and another input on its way.
    offloader off(desk.dev, arena_options(3 * size));
    off.follow(plan_of(step, action::offload, action::recompute), step);
    trainer train{.desk = desk, .off = off};
    for (int i = 0; i < 3; ++i) train.step();
    CHECK(desk.wrong() == 0);
    CHECK(train.computed_again == 9);
    const auto seen = off.counters();
    CHECK(seen.modules[0].groups_offloaded == 9);
    CHECK(of_y(seen).groups == 9);
    CHECK(of_y(seen).groups_recomputed == 9);
    CHECK(of_y(seen).bytes_recomputed == 9 * size);
    CHECK(of_y(seen).bytes_offloaded == 0);
    CHECK(of_y(seen).groups_held == 0);
    CHECK(seen.host_peak <= 3 * size);
    CHECK(seen.live_peak_without == 6 * size);
  }
}

TEST_CASE("recompute by plan: without the join its memory would still be in use") {
  const auto step = recorded();
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    rig desk(machine{.order_seed = seed});
    desk.dev.leave_out(tidepool::join_site::device_reuse);
    offloader off(desk.dev, arena_options(3 * size));
    off.follow(plan_of(step, action::offload, action::recompute), step);
    trainer train{.desk = desk, .off = off};
    for (int i = 0; i < 3; ++i) train.step();
    wrong += desk.wrong();
  }
  CHECK(wrong > 0);
}

TEST_CASE("recompute by plan: what stays or leaves is not computed again") {
  const auto step = recorded();
  for (const auto what : {action::keep, action::offload}) {
    rig desk(machine{.order_seed = 5});
    offloader off(desk.dev, small_options());
    off.follow(plan_of(step, action::offload, what), step);
    trainer train{.desk = desk, .off = off};
    for (int i = 0; i < 2; ++i) train.step();
    CHECK(train.computed_again == 0);
    CHECK(of_y(off.counters()).groups_offloaded == (what == action::offload ? 6 : 0));
    CHECK(of_y(off.counters()).groups_resident == (what == action::keep ? 6 : 0));
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("recompute by plan: without a plan it is as commit and restore") {
  rig desk(machine{.order_seed = 6});
  offloader off(desk.dev, small_options());
  trainer train{.desk = desk, .off = off};
  for (int i = 0; i < 3; ++i) train.step();
  CHECK(train.computed_again == 0);
  CHECK(of_y(off.counters()).groups_offloaded == 9);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: where the user forbids it nothing is called, not even to be timed") {
  rig desk(machine{.order_seed = 13});
  auto opts = arena_options(8 * size);
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 200;
  opts.recompute_by_plan = false;
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  trainer train{.desk = desk, .off = off};
  for (int i = 0; i < 4; ++i) train.step();
  CHECK(train.computed_again == 0);
  for (const auto& group : off.profile().chunks[0].groups) CHECK(group.recompute_us == 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: what came back once may be saved again, and discarded") {
  profile step;
  step.modules = {"core_attn", "moe_act"};
  step.passes = {{0, false}, {0, true}, {1, false}, {1, true}};
  step.chunks.push_back({0, {{tidepool::module_id{0}, 0, size}}, 0});
  step.chunks.push_back({0, {{tidepool::module_id{1}, 0, size, 1.0}}, 1});
  step_plan made;
  made.what = {{action::offload}, {action::recompute}};
  rig desk(machine{.order_seed = 14});
  offloader off(desk.dev, arena_options(size));
  off.follow(made, step);
  for (std::uint32_t round = 1; round <= 3; ++round) {
    auto x = off.allocate(size, desk.stream());
    desk.write(x, round);
    auto first = off.begin();
    first.commit<"core_attn">(0, desk.stream(), x);
    first.restore<"core_attn">(0, desk.stream(), x);
    first.finish();
    auto second = off.begin({.microbatch = 1});
    second.commit_or_discard<"moe_act">(0, desk.stream(), x);
    auto other = off.allocate(size, desk.stream());  // there is room for one
    desk.write(other, 50);
    other.reset(desk.stream());
    second.restore_or_recompute<"moe_act">(
        0, desk.stream(), [&] { desk.write(x, round); }, x);
    desk.check(x, round);
    x.reset(desk.stream());
    second.finish();
    off.end_step();
  }
  CHECK(off.counters().evictions == 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: a buffer in which a part of a whole storage came back") {
  profile step;
  step.modules = {"core_attn", "moe_act"};
  step.passes = {{0, false}, {0, true}, {1, false}, {1, true}};
  step.chunks.push_back({0, {{tidepool::module_id{0}, 0, size}}, 0});
  step.chunks.push_back({0, {{tidepool::module_id{1}, 0, size, 1.0}}, 1});
  step_plan made;
  made.what = {{action::offload}, {action::recompute}};
  rig desk(machine{.order_seed = 15});
  offloader off(desk.dev, arena_options(size));
  off.follow(made, step);
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  auto part = x.view({.width = size / 2, .whole_storage = true});
  x.reset(desk.stream());
  auto first = off.begin();
  first.commit<"core_attn">(0, desk.stream(), part);
  first.restore<"core_attn">(0, desk.stream(), x);
  first.finish();
  auto second = off.begin({.microbatch = 1});
  second.commit_or_discard<"moe_act">(0, desk.stream(), x);
  CHECK(second.will_recompute<"moe_act">(0));
  second.restore_or_recompute<"moe_act">(
      0, desk.stream(), [&] { desk.write(x, 2); }, x);
  CHECK(x.size() == size);
  desk.check(x, 2);
  x.reset(desk.stream());
  second.finish();
  off.end_step();
  CHECK(of_y(off.counters()).bytes_recomputed == size);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: the warm-up measures it, and it is no part of the step's computing") {
  const auto offered = recorded();
  const auto plain = recorded(false);
  REQUIRE(offered.chunks.size() == 1);
  for (const auto& group : offered.chunks[0].groups) {
    const double expected =
        group.module == static_cast<tidepool::module_id>(1) ? again_ns / 1e3 : 0;
    CHECK(group.recompute_us == doctest::Approx(expected));
  }
  for (const auto& group : plain.chunks[0].groups) CHECK(group.recompute_us == 0);
  CHECK(compute_us(offered) == doctest::Approx(compute_us(plain)));
  CHECK(offered.events.size() == plain.events.size());
  CHECK_FALSE(offered.shapes_vary);
}

TEST_CASE("recompute by plan: nor are the calls that computing again makes") {
  for (const bool scratch : {false, true}) {
    CAPTURE(scratch);
    rig desk;
    auto opts = small_options();
    opts.policy = policy_kind::automatic;
    opts.plan_effort = 200;
    opts.device_budget = std::size_t{1} << 20;
    offloader off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    trainer train{.desk = desk, .off = off, .layers = 3, .scratch = scratch};
    profile first;
    off.on_measure([&] { first = off.profile(); });
    struct own_error {};
    ++train.round;  // one that fails leaves nothing behind
    train.chunk = off.begin();
    train.forward_layer(0);
    train.chunk.restore<"core_attn">(0, desk.stream(), train.x[0]);
    CHECK_THROWS_AS(train.chunk.restore_or_recompute<"moe_act">(
                        0, desk.stream(), [] { throw own_error(); }, train.y[0]),
                    own_error);
    train.fetch(0);
    train.y[0].reset(desk.stream());
    train.x[0].reset(desk.stream());
    train.chunk.finish();
    train.step();
    const auto layers = 4;
    CHECK(compute_us(first) ==
          doctest::Approx(layers * (20'000 + again_ns + 1000 + 1000) / 1e3).epsilon(0.02));
    CHECK(first.chunks.at(1).groups.at(1).recompute_us ==
          doctest::Approx((scratch ? 3 : 1) * again_ns / 1e3));
  }
}

TEST_CASE("recompute by plan: what others hold leaves instead, and is counted") {
  const auto step = recorded(true, 1);
  rig desk(machine{.order_seed = 7});
  offloader off(desk.dev, small_options());
  off.follow(plan_of(step, action::offload, action::recompute), step);
  trainer train{.desk = desk, .off = off, .layers = 1};
  for (const bool another_handle : {true, false}) {
    CAPTURE(another_handle);
    ++train.round;
    train.chunk = off.begin();
    auto& y = train.y[0];
    y = off.allocate(size, desk.stream());
    desk.write(y, train.tag(0));
    auto other = y.share();
    if (another_handle) {
      train.x[0] = off.allocate(size, desk.stream());
      desk.write(train.x[0], train.tag(0));
      train.chunk.commit<"core_attn">(0, desk.stream(), train.x[0]);
      train.chunk.commit_or_discard<"moe_act">(0, desk.stream(), y);
      other.reset(desk.stream());
    } else {  // another group has saved it
      train.chunk.commit<"core_attn">(0, desk.stream(), other);
      train.chunk.commit_or_discard<"moe_act">(0, desk.stream(), y);
    }
    CHECK_FALSE(y);
    train.chunk.end_forward();
    train.fetch(0);
    desk.check(y, train.tag(0));
    y.reset(desk.stream());
    auto& x = another_handle ? train.x[0] : other;
    train.chunk.restore<"core_attn">(0, desk.stream(), x);
    desk.check(x, train.tag(0));
    x.reset(desk.stream());
    train.chunk.finish();
    off.end_step();
  }
  CHECK(train.computed_again == 0);
  CHECK(of_y(off.counters()).groups_held == 2);
  CHECK(of_y(off.counters()).groups_recomputed == 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: what fails may be tried again") {
  struct own_error {};
  const auto step = recorded(true, 1);
  rig desk(machine{.order_seed = 8});
  offloader off(desk.dev, arena_options(2 * size));
  off.follow(plan_of(step, action::keep, action::recompute), step);
  trainer train{.desk = desk, .off = off, .layers = 1};
  train.chunk = off.begin();
  train.forward_layer(0);
  train.chunk.end_forward();
  auto big = off.allocate(size, desk.stream());
  desk.write(big, 77);
  train.chunk.restore<"core_attn">(0, desk.stream(), train.x[0]);
  CHECK_THROWS_WITH_AS(train.fetch(0), doctest::Contains("recompute of moe_act of layer 0"),
                       tidepool::out_of_budget);
  CHECK_FALSE(train.y[0]);
  desk.check(big, 77);
  big.reset(desk.stream());
  const auto failing = [&] {
    train.chunk.restore_or_recompute<"moe_act">(
        0, desk.stream(),
        [&] {
          desk.write(train.y[0], 99);  // begun, and given up
          throw own_error{};
        },
        train.y[0]);
  };
  auto side = desk.dev.make_stream();
  for (std::uint32_t i = 0; i < 20; ++i) {
    CHECK_THROWS_AS(failing(), own_error);
    CHECK_FALSE(train.y[0]);
    auto other = off.allocate(size, side.ref());  // its memory is free behind what was begun
    desk.write_bytes(other.data(), size, 5, side.ref());
    desk.check_rows(other.data(), {size, 1, size, 0}, 5, 0, side.ref());
    other.reset(side.ref());
  }
  // No event can be recorded, so that its memory stays taken.
  desk.dev.before_record = [] { throw tidepool::device_error("no event", 1); };
  CHECK_THROWS_AS(failing(), own_error);
  desk.dev.before_record = nullptr;
  CHECK_FALSE(train.y[0]);
  CHECK_THROWS_AS(train.fetch(0), tidepool::out_of_budget);
  CHECK(train.computed_again == 0);
  train.chunk = {};
  train.x[0].reset(desk.stream());
  off.end_step();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: what fails while it is measured may be tried again") {
  struct own_error {};
  rig desk(machine{.order_seed = 9});
  auto opts = arena_options(8 * size);
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 200;
  opts.reload_ahead = 8;
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  trainer train{.desk = desk, .off = off};
  for (int steps = 0; steps < 3; ++steps) {
    ++train.round;
    train.chunk = off.begin();
    for (int l = 0; l < 3; ++l) train.forward_layer(l);
    train.chunk.end_forward();
    for (int l = 3; l-- > 0;) {
      const auto at = static_cast<std::size_t>(l);
      train.chunk.restore<"core_attn">(l, desk.stream(), train.x[at]);
      if (steps == 0) {
        CHECK_THROWS_AS(train.chunk.restore_or_recompute<"moe_act">(
                            l, desk.stream(),
                            [&] {
                              desk.write(train.y[at], 99);
                              throw own_error{};
                            },
                            train.y[at]),
                        own_error);
        CHECK_FALSE(train.y[at]);
        const auto before = desk.dev.reloads();
        train.chunk.start_reload<"moe_act">(l);  // what was begun may have spoilt it
        CHECK(desk.dev.reloads() == before + 1);
      }
      train.fetch(l);
      desk.check(train.y[at], train.tag(l));
      train.y[at].reset(desk.stream());
      train.x[at].reset(desk.stream());
    }
    train.chunk.finish();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: what does not fit is refused in words") {
  const auto step = recorded();
  const auto made = plan_of(step, action::offload, action::recompute);
  rig desk;
  SUBCASE("the user forbids it") {
    auto opts = small_options();
    opts.recompute_by_plan = false;
    offloader off(desk.dev, opts);
    CHECK_THROWS_WITH_AS(off.follow(made, step), doctest::Contains("recompute_by_plan is off"),
                         profile_error);
  }
  SUBCASE("the profile knows no time for it") {
    offloader off(desk.dev, small_options());
    CHECK_THROWS_WITH_AS(off.follow(made, recorded(false)),
                         doctest::Contains("/chunks/0/groups/1: the group is to be recomputed, but "
                                           "the profile has no recompute_us of it"),
                         profile_error);
  }
  SUBCASE("the trainer does not offer it") {
    offloader off(desk.dev, small_options());
    off.follow(made, step);
    trainer train{.desk = desk, .off = off, .offers = false};
    train.chunk = off.begin();
    CHECK(says(message_of([&] { train.forward_layer(0); }),
               "commit of moe_act of layer 0, microbatch 0: by the plan that is followed it is "
               "computed again, which this trainer does not offer"));
    CHECK(train.y[0]);
  }
  SUBCASE("the trainer no longer offers it: it leaves") {
    offloader off(desk.dev, small_options());
    off.follow(made, step);
    trainer train{.desk = desk, .off = off};
    train.step();
    train.offers = false;
    train.step();
    CHECK(of_y(off.counters()).groups_offloaded == 3);
    CHECK(of_y(off.counters()).groups_held == 3);
    CHECK(desk.wrong() == 0);
  }
  SUBCASE("the trainer does not say how") {
    offloader off(desk.dev, small_options());
    off.follow(made, step);
    trainer train{.desk = desk, .off = off, .layers = 1};
    train.chunk = off.begin();
    train.forward_layer(0);
    CHECK(says(message_of([&] { train.chunk.restore<"moe_act">(0, desk.stream(), train.y[0]); }),
               "give restore_or_recompute the function"));
    CHECK(says(message_of([&] { train.chunk.finish(); }), "never restored"));
    rig::buffer one;
    CHECK(says(message_of([&] {
                 train.chunk.restore_or_recompute<"moe_act">(
                     0, desk.stream(), [] {}, train.y[0], one);
               }),
               "2 arguments, but 1 were committed"));
    auto full = off.allocate(size, desk.stream());
    CHECK(says(message_of([&] {
                 train.chunk.restore_or_recompute<"moe_act">(
                     0, desk.stream(), [] {}, full);
               }),
               "argument 1 holds other memory"));
    full.reset(desk.stream());
    train.chunk.restore<"core_attn">(0, desk.stream(), train.x[0]);
    train.fetch(0);
    CHECK(train.computed_again == 1);
    CHECK(says(message_of([&] { train.fetch(0); }), "it was restored before"));
  }
  SUBCASE("arguments of the commit") {
    offloader off(desk.dev, small_options());
    off.follow(made, step);
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    open.commit<"core_attn">(0, desk.stream(), x);
    auto y = off.allocate(size, desk.stream());
    rig::buffer none;
    CHECK(says(message_of([&] { open.commit_or_discard<"moe_act">(0, desk.stream(), y, none); }),
               "argument 2 holds no memory"));
    CHECK(says(message_of([&] { open.commit_or_discard<"moe_act">(0, desk.stream(), y, y); }),
               "argument 2 is given twice"));
    CHECK(y);
    open.commit_or_discard<"moe_act">(0, desk.stream(), y);
    CHECK_FALSE(y);
    CHECK(off.counters().modules[1].groups == 1);
  }
}

TEST_CASE("recompute by plan: caps, windows and reloads ahead do not know of it") {
  const auto step = recorded();
  rig desk(machine{.order_seed = 10});
  auto opts = small_options();
  opts.max_inflight = 0;
  opts.reload_ahead = 2;
  offloader off(desk.dev, opts);
  auto made = plan_of(step, action::offload, action::recompute);
  off.follow(made, step);
  trainer train{.desk = desk, .off = off};
  ++train.round;
  train.chunk = off.begin();
  for (int l = 0; l < 3; ++l) train.forward_layer(l);
  CHECK(of_y(off.counters()).cap_joins == 0);
  CHECK(off.counters().modules[0].cap_joins > 0);
  train.chunk.end_forward();
  // Two inputs are on their way: what is computed again is neither reloaded nor counted.
  CHECK(desk.dev.reloads() == 2);
  train.chunk.start_reload<"moe_act">(0);
  CHECK(desk.dev.reloads() == 2);
  CHECK(off.counters().live_peak >= 2 * size);
  for (int l = 3; l-- > 0;) train.backward_layer(l);
  train.chunk.finish();
  off.end_step();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: tensors that may not leave stay, and are written too") {
  const auto step = recorded(true, 1);
  rig desk(machine{.order_seed = 11});
  auto opts = small_options();
  opts.min_tensor_elements = 100;
  offloader off(desk.dev, opts);
  off.follow(plan_of(step, action::offload, action::recompute), step);
  for (std::uint32_t round = 1; round <= 2; ++round) {
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    open.commit<"core_attn">(0, desk.stream(), x);
    auto large = off.allocate(size, desk.stream());
    auto small = off.allocate(64, desk.stream());
    auto own = off.allocate(size, desk.stream());
    own.keep_resident();
    const auto fill = [&] {
      desk.write(large, round);
      desk.write(small, round + 10);
      desk.write(own, round + 20);
    };
    fill();
    open.commit_or_discard<"moe_act">(0, desk.stream(), large, small, own);
    CHECK_FALSE(large);
    CHECK(small);
    CHECK(own);
    open.restore<"core_attn">(0, desk.stream(), x);
    open.restore_or_recompute<"moe_act">(0, desk.stream(), fill, large, small, own);
    desk.check(large, round);
    desk.check(small, round + 10);
    desk.check(own, round + 20);
    large.reset(desk.stream());
    open.finish();
    off.end_step();
  }
  CHECK(of_y(off.counters()).bytes_recomputed == 2 * size);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: forward-only passes and chunks that are given up") {
  const auto step = recorded(true, 2);
  rig desk(machine{.order_seed = 12});
  offloader off(desk.dev, arena_options(6 * size));
  off.follow(plan_of(step, action::offload, action::recompute), step);
  trainer train{.desk = desk, .off = off, .layers = 2};
  train.step();
  {
    auto evaluation = off.begin({.forward_only = true});
    auto y = off.allocate(size, desk.stream());
    evaluation.commit_or_discard<"moe_act">(0, desk.stream(), y);
    CHECK(y);
    evaluation.restore_or_recompute<"moe_act">(
        0, desk.stream(), [] { FAIL_CHECK("called"); }, y);
    evaluation.finish();
  }
  const auto before = off.counters();
  train.chunk = off.begin();
  for (int l = 0; l < 2; ++l) train.forward_layer(l);
  train.chunk = {};  // given up
  off.end_step();
  auto all = off.allocate(6 * size, desk.stream());
  all.reset(desk.stream());
  train.step();
  CHECK(off.counters().live_peak_without <=
        std::max<std::size_t>(before.live_peak_without, 6 * size));
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: inside a captured step") {
  const auto step = recorded();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options(4 * size));
    off.follow(plan_of(step, action::offload, action::recompute), step);
    trainer train{.desk = desk, .off = off};
    train.step();
    train.step();
    auto graph = off.capture(desk.stream(), [&] { train.step(); });
    for (int i = 0; i < 3; ++i) graph.launch(desk.stream());
    train.step();
    CHECK(desk.wrong() == 0);
    CHECK(of_y(off.counters()).groups_recomputed == 12);
  }
}

TEST_CASE("recompute by plan: any mixture of the three, in any order") {
  constexpr int layers = 5;
  const auto step = recorded(true, layers);
  std::uint64_t recomputed = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    rig desk(machine{.order_seed = seed});
    auto opts = arena_options((2 * layers + 2) * size);
    opts.reload_ahead = random() % 6;
    if (random() % 3 == 0) opts.max_inflight = random() % 3;
    if (random() % 2 == 0) opts.memory = tidepool::memory_kind::pool;
    offloader off(desk.dev, opts);
    auto made = plan_of(step, action::offload, action::recompute);
    made.reload_ahead = opts.reload_ahead;
    for (auto& row : made.what) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = static_cast<action>(random() % (i % 2 == 1 ? 3 : 2));
      }
    }
    off.follow(made, step);
    trainer train{.desk = desk, .off = off, .layers = layers};
    for (int i = 0; i < 4; ++i) train.step();
    CHECK(desk.wrong() == 0);
    const auto again = std::count(made.what[0].begin(), made.what[0].end(), action::recompute);
    CHECK(train.computed_again == 4 * again);
    recomputed += of_y(off.counters()).groups_recomputed;
  }
  CHECK(recomputed > 500);
}

TEST_CASE("recompute by plan: the automatic policy takes it where the link is slow, and not else") {
  const auto run = [](double rate, bool may) {
    rig desk(machine{.offload_rate = rate, .reload_rate = rate, .both_rate = rate});
    auto opts = arena_options(9 * size);
    opts.policy = policy_kind::automatic;
    opts.plan_effort = 200;
    opts.recompute_by_plan = may;
    offloader off(desk.dev, opts);
    std::string said;
    off.on_report([&](std::string_view line) { said += line; });
    trainer train{.desk = desk, .off = off, .layers = 8, .slower_ns = 1};
    double last = 0;
    for (int i = 0; i < 8; ++i) {
      desk.dev.synchronize();
      const auto before = desk.dev.now_ns();
      train.step();
      desk.dev.synchronize();
      last = desk.dev.now_ns() - before;
    }
    CHECK(desk.wrong() == 0);
    CAPTURE(said);
    const auto again = of_y(off.counters()).groups_recomputed;
    CHECK(says(said, "are recomputed") == (again > 0));
    CHECK_FALSE(off.profile().shapes_vary);  // though the times do
    REQUIRE(off.current_plan());
    CHECK(off.current_plan()->expected.step_us == doctest::Approx(last / 1e3).epsilon(0.02));
    return std::pair(again, last);
  };
  const auto slow = run(0.05, true);
  const auto forbidden = run(0.05, false);
  CHECK(slow.first > 0);
  CHECK(forbidden.first == 0);
  CHECK(slow.second < 0.8 * forbidden.second);
  CHECK(run(50, true).first == 0);
}

TEST_CASE("planned recompute: what is computed again counts among what would be held without") {
  const auto step = recorded();
  rig desk;
  offloader off(desk.dev, small_options());
  off.follow(plan_of(step, action::keep, action::recompute), step);
  trainer train{.desk = desk, .off = off};
  for (int i = 0; i < 3; ++i) train.step();
  CHECK(off.counters().live_peak == 4 * size);  // three inputs, and one that is used
  CHECK(off.counters().live_peak_without == 6 * size);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute by plan: after a failure all memory goes back to the device in the end") {
  struct own_error {};
  const auto step = recorded(true, 1);
  rig desk;
  {
    offloader off(desk.dev, small_options());
    off.follow(plan_of(step, action::keep, action::recompute), step);
    trainer train{.desk = desk, .off = off, .layers = 1};
    train.chunk = off.begin();
    train.forward_layer(0);
    CHECK_THROWS_AS(train.chunk.restore_or_recompute<"moe_act">(
                        0, desk.stream(), [] { throw own_error{}; }, train.y[0]),
                    own_error);
  }
  CHECK(desk.dev.device_held == 0);
  CHECK(desk.dev.host_held == 0);
}

TEST_CASE("recompute by plan: a group that stays whatever the plan says is not computed again") {
  const auto step = recorded();
  rig desk;
  auto opts = small_options();
  opts.min_tensor_elements = 2 * size;
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  off.follow(plan_of(step, action::offload, action::recompute), step);
  trainer train{.desk = desk, .off = off};
  for (int i = 0; i < 2; ++i) train.step();
  CHECK(train.computed_again == 0);
  CHECK(of_y(off.counters()).groups_recomputed == 0);
  CHECK(desk.wrong() == 0);
}

// Scales, beside codes, may be too small to leave.
TEST_CASE("recompute by plan: what stays is computed over only where nobody else has it") {
  enum class holder { nobody, a_handle, a_group };
  for (const auto who : {holder::nobody, holder::a_handle, holder::a_group}) {
    for (std::uint64_t seed = 0; seed <= 12; ++seed) {
      CAPTURE(static_cast<int>(who));
      CAPTURE(seed);
      rig desk(machine{.order_seed = seed});
      const auto side = desk.dev.make_stream();
      auto written = desk.dev.make_event();
      auto opts = small_options();
      opts.policy = policy_kind::automatic;
      opts.plan_effort = 200;
      opts.device_budget = std::size_t{1} << 20;
      opts.min_tensor_elements = 256;
      offloader off(desk.dev, opts);
      off.on_report([](std::string_view) {});
      auto open = off.begin();
      auto codes = off.allocate(size, desk.stream());
      auto scales = off.allocate(64, desk.stream());
      desk.write(codes, 1);
      desk.write(scales, 2);
      desk.dev.record(written, desk.stream());
      desk.dev.wait(side.ref(), written);
      open.commit_or_discard<"moe_act">(0, desk.stream(), codes, scales);
      CHECK(scales);
      auto other = scales.share();
      if (who == holder::a_group) open.start_offload<"core_attn">(0, desk.stream(), other);
      open.end_forward();
      desk.dev.launch(side.ref(), 50'000, [] {});
      desk.check_rows(other.data(), {64, 1, 64, 0}, 2, 0, side.ref());
      if (who != holder::a_handle) other.reset(side.ref());
      bool again = false;
      open.restore_or_recompute<"moe_act">(
          0, desk.stream(),
          [&] {
            again = true;
            desk.write(scales, 77);  // not yet what they will be
            desk.dev.launch(desk.stream(), 90'000, [] {});
            desk.write(codes, 1);
            desk.write(scales, 2);
          },
          codes, scales);
      CHECK(again == (who == holder::nobody));
      desk.check(codes, 1);
      desk.check(scales, 2);
      CHECK(desk.wrong() == 0);
    }
  }
}

TEST_CASE("recompute by plan: a time is that of the same group, or none") {
  rig desk;
  auto opts = small_options();
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 200;
  opts.device_budget = std::size_t{1} << 20;
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  trainer train{.desk = desk, .off = off};
  train.step();
  ++train.round;
  train.chunk = off.begin();
  for (int l = 3; l-- > 0;) train.forward_layer(l);  // the other way round
  train.chunk.end_forward();
  for (int l = 0; l < 3; ++l) train.backward_layer(l);
  train.chunk.finish();
  off.end_step();
  for (const auto& group : off.profile().chunks[0].groups) {
    const bool known = group.module == static_cast<tidepool::module_id>(1) && group.layer == 1;
    CHECK((group.recompute_us > 0) == known);
  }
  CHECK(desk.wrong() == 0);
}
