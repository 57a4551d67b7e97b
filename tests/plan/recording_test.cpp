// What a recorded step tells of handles beyond a commit is consistent, whatever the trainer does
// with them, and recording never changes what a handle holds.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "faulty_device.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/observe/recorded_steps.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/plan/automatic.hpp"
#include "tidepool/plan/check.hpp"
#include "tidepool/plan/json.hpp"

namespace {

using namespace tidepool;
using tidepool::test::rig;
constexpr std::size_t size = 2048;

options automatic(std::size_t tensors) {
  auto opts = test::arena_options(tensors * size, {"core_attn", "moe_act"});
  opts.policy = policy_kind::automatic;
  return opts;
}

std::ptrdiff_t drop(const plan::profile& step) {
  return std::count_if(step.events.begin(), step.events.end(),
                       [](const plan::event& each) { return each.kind == plan::event_kind::drop; });
}

// A step of one group, beside working memory that goes before the commit or after it.
void step_with_work(rig& desk, rig::offloader<>& off, std::size_t work_bytes, double us,
                    bool goes_before) {
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto work = off.allocate(work_bytes, desk.stream());
  if (us > 0) desk.dev.launch(desk.stream(), 1e3 * us, [] {});
  if (goes_before) work.reset(desk.stream());
  open.commit(off.module("core_attn"), 0, desk.stream(), x);
  work.reset(desk.stream());
  open.end_forward();
  open.restore(off.module("core_attn"), 0, desk.stream(), x);
  x.reset(desk.stream());
  open.finish();
  off.end_step();
}

}  // namespace

TEST_CASE("recording: a handle whose going cannot be recorded goes once") {
  using device = test::faulty_device<virtual_device>;
  for (int faulty = 0; faulty < 2; ++faulty) {  // everything leaves; some stays
    CAPTURE(faulty);
    device dev{machine{}};
    const auto stream = dev.make_stream();
    const auto s = stream.ref();
    tidepool::test::planning<offloader<device, all_modules>> off(dev, automatic(20));
    off.on_report([](std::string_view) {});
    const auto module = off.module("core_attn");
    for (int step = 0; step <= faulty; ++step) {
      auto open = off.begin();
      auto x = off.allocate(size, s);
      auto residual = x.share();
      open.commit(module, 0, s, x);
      if (step == faulty) dev.arm({test::call_kind::record, 2, test::manner::once});
      try {
        residual.reset(s);
      } catch (const device_error&) {
        residual.reset(s);  // one that throws leaves the handle full
      }
      dev.disarm();
      auto other = off.allocate(size, s);
      if (x) CHECK(other.data() != x.data());
      other.reset(s);
      open.end_forward();
      open.restore(module, 0, s, x);
      x.reset(s);
      open.finish();
      if (step == faulty) {
        CHECK_THROWS_AS(off.end_step(), device_error);  // of which there is no record
      } else {
        off.end_step();
      }
    }
    CHECK_NOTHROW(plan::check(off.profile()));
  }
}

TEST_CASE("recording: memory does not go to pieces before there is a plan, nor without one") {
  for (const std::size_t varies : {0, 256}) {
    CAPTURE(varies);
    rig desk;
    const auto s = desk.stream();
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(6));
    off.on_report([](std::string_view) {});
    const auto module = off.module("core_attn");
    for (std::size_t step = 0; step < 5; ++step) {
      auto open = off.begin();
      auto x = off.allocate(size, s);
      desk.write(x, 1);
      open.commit(module, 0, s, x);
      // Memory that need not be waited for would lie in the middle, and leave room for four.
      auto small = off.allocate(size, s);
      auto large = off.allocate(5 * size - step % 2 * varies, s);
      desk.write(large, 2);
      large.reset(s);
      small.reset(s);
      open.end_forward();
      open.restore(module, 0, s, x);
      desk.check(x, 1);
      x.reset(s);
      open.finish();
      off.end_step();
    }
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("recording: handles that last beyond the restore are no events after it") {
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
  off.on_report([](std::string_view) {});
  const auto module = off.module("core_attn");
  plan::profile first;
  off.on_measure([&] { first = off.profile(); });
  for (std::uint32_t step = 0; step < 4; ++step) {
    auto open = off.begin();
    rig::buffer x[3];
    rig::buffer held[3];
    for (int l = 0; l < 3; ++l) {
      x[l] = off.allocate(size, desk.stream());
      desk.write(x[l], step, 9000);
      held[l] = x[l].share();
      open.commit(module, l, desk.stream(), x[l]);
    }
    open.end_forward();
    for (int l = 3; l-- > 0;) {
      open.restore(module, l, desk.stream(), x[l]);
      x[l].reset(desk.stream());
      held[l].reset(desk.stream());
    }
    open.finish();
    off.end_step();
  }
  CHECK(drop(first) == 0);
  CHECK_NOTHROW(plan::check(first));
  CHECK(off.profile().shapes_vary);
  CHECK_NOTHROW(plan::check(off.profile()));
}

TEST_CASE("recording: what is saved again after its restore is dropped at most once") {
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(5));
  off.on_report([](std::string_view) {});
  const auto module = off.module("core_attn");
  plan::profile first;
  off.on_measure([&] { first = off.profile(); });
  for (std::uint32_t step = 0; step < 2; ++step) {
    auto x = off.allocate(size, desk.stream());
    desk.write(x, step, 9000);
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      auto open = off.begin({.microbatch = microbatch});
      auto other = x.share();
      open.commit(module, 0, desk.stream(), x);
      other.reset(desk.stream());
      open.end_forward();
      open.restore(module, 0, desk.stream(), x);
      open.finish();
    }
    x.reset(desk.stream());
    off.end_step();
  }
  CHECK(drop(first) == 1);
  CHECK_NOTHROW(plan::check(first));
  CHECK(off.profile().shapes_vary);
}

TEST_CASE("recording: a handle of a step whose planning failed is no part of the next one") {
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
  off.on_report([](std::string_view) {});
  const auto module = off.module("core_attn");
  rig::buffer held;
  const auto step = [&](bool holds) {
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1, 9000);
    if (holds) held = off.allocate(size, desk.stream());
    open.commit(module, 0, desk.stream(), x);
    open.end_forward();
    open.restore(module, 0, desk.stream(), x);
    x.reset(desk.stream());
    open.finish();
    off.end_step();
  };
  off.on_measure([] { throw std::runtime_error("late"); });
  CHECK_THROWS_AS(step(true), std::runtime_error);
  held.reset(desk.stream());
  plan::profile recorded;
  off.on_measure([&] { recorded = off.profile(); });
  step(false);
  CHECK(recorded.storages.size() == 1);
  CHECK_NOTHROW(plan::check(recorded));
}

TEST_CASE("recording: a group's tensors keep the order of their commit, in a file too") {
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
  off.on_report([](std::string_view) {});
  for (int step = 0; step < 2; ++step) {
    auto open = off.begin();
    auto a = off.allocate(size, desk.stream());
    auto b = off.allocate(size / 2, desk.stream());
    open.commit(off.module("core_attn"), 0, desk.stream(), b, a);
    open.end_forward();
    open.restore(off.module("core_attn"), 0, desk.stream(), b, a);
    a.reset(desk.stream());
    b.reset(desk.stream());
    open.finish();
    off.end_step();
  }
  const auto& recorded = off.profile();
  REQUIRE(recorded.storages.size() == 2);
  CHECK(recorded.storages[0].place == 1);
  CHECK(recorded.storages[1].place == 0);
  CHECK(plan::profile_from_json(plan::to_json(recorded)) == recorded);
}

TEST_CASE("recording: working memory of another size in each step makes shapes vary") {
  for (const bool varies : {false, true}) {
    CAPTURE(varies);
    rig desk;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
    off.on_report([](std::string_view) {});
    for (std::size_t step = 0; step < 2; ++step) {
      step_with_work(desk, off, varies ? size * (step + 1) : size, 0, false);
    }
    CHECK(off.profile().shapes_vary == varies);
  }
}

TEST_CASE("recording: computing that took long once counts as in the other steps") {
  enum class odd { nothing, once, slightly, with_other_shapes, after_other_calls };
  // What a second step is recorded to have computed before its commit; the first one did for 1 ms.
  const auto before_commit_us = [](odd what) {
    rig desk;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
    off.on_report([](std::string_view) {});
    for (std::size_t step = 0; step < 2; ++step) {
      const bool second = step == 1;
      const bool larger = second && what == odd::with_other_shapes;
      const double us = !second || what == odd::nothing ? 1000
                        : what == odd::slightly         ? 1400
                                                        : 5000;
      // What comes before the first call of all is not known.
      off.allocate(size, desk.stream()).reset(desk.stream());
      step_with_work(desk, off, larger ? 2 * size : size, us,
                     second && what == odd::after_other_calls);
    }
    const auto& events = off.profile().events;
    const auto commit = std::ranges::find(events, plan::event_kind::commit, &plan::event::kind);
    double us = 0;
    for (auto each = events.begin(); each <= commit; ++each) us += each->compute_us;
    return us;
  };
  CHECK(before_commit_us(odd::nothing) == doctest::Approx(1000).epsilon(0.01));
  CHECK(before_commit_us(odd::once) == doctest::Approx(1000).epsilon(0.01));
  CHECK(before_commit_us(odd::slightly) == doctest::Approx(1000).epsilon(0.01));
  CHECK(before_commit_us(odd::with_other_shapes) == doctest::Approx(5000).epsilon(0.01));
  CHECK(before_commit_us(odd::after_other_calls) == doctest::Approx(5000).epsilon(0.01));
}

TEST_CASE("recording: the same sizes in other groups or chunks make shapes vary") {
  struct group {
    const char* module;
    int layer;
    std::size_t bytes;
  };
  struct stepped {
    const char* what;
    chunk_info chunk;
    group groups[2];
    bool varies = true;
  };
  const stepped usual{"nothing", {}, {{"core_attn", 0, size}, {"moe_act", 1, size}}, false};
  const stepped others[]{
      usual,
      {"modules", {}, {{"moe_act", 0, size}, {"core_attn", 1, size}}},
      {"layers", {}, {{"core_attn", 1, size}, {"moe_act", 0, size}}},
      {"tensors of each group", {}, {{"core_attn", 0, 2 * size}, {"moe_act", 1, 0}}},
      {"microbatch", {.microbatch = 1}, {{"core_attn", 0, size}, {"moe_act", 1, size}}},
      {"model chunk", {.model_chunk = 1}, {{"core_attn", 0, size}, {"moe_act", 1, size}}},
  };
  for (const auto& other : others) {
    CAPTURE(other.what);
    rig desk;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
    off.on_report([](std::string_view) {});
    for (const auto* step : {&usual, &other}) {
      auto open = off.begin(step->chunk);
      rig::buffer x[2]{off.allocate(size, desk.stream()), off.allocate(size, desk.stream())};
      std::size_t used = 0;
      const auto each = [&](const group& which, auto&& call) {
        const auto module = off.module(which.module);
        if (which.bytes == 0) {
          call(module, which.layer);
        } else if (which.bytes == size) {
          call(module, which.layer, x[used++]);
        } else {
          call(module, which.layer, x[0], x[1]);
        }
      };
      for (const auto& which : step->groups) {
        each(which, [&](auto module, int layer, auto&... tensors) {
          open.commit(module, layer, desk.stream(), tensors...);
        });
      }
      open.end_forward();
      used = 0;
      for (const auto& which : step->groups) {
        each(which, [&](auto module, int layer, auto&... tensors) {
          open.restore(module, layer, desk.stream(), tensors...);
        });
      }
      for (auto& tensor : x) tensor.reset(desk.stream());
      open.finish();
      off.end_step();
    }
    CHECK(off.profile().shapes_vary == other.varies);
  }
}

TEST_CASE("recording: what two groups save is dropped by the second one, leaving or not") {
  for (const int kind : {0, 1, 2, 3}) {
    const bool stays = kind % 2 == 1;
    const bool before = kind >= 2;
    CAPTURE(stays);
    CAPTURE(before);
    rig desk;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
    off.on_report([](std::string_view) {});
    const auto first = off.module("core_attn");
    const auto second = off.module("moe_act");
    plan::profile recorded;
    off.on_measure([&] { recorded = off.profile(); });  // of the first step, in which all leaves
    for (int step = 0; step < (stays ? 2 : 1); ++step) {
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      auto again = x.share();
      open.commit(first, 0, desk.stream(), x);
      open.commit(second, 0, desk.stream(), again);
      open.end_forward();
      open.restore(second, 0, desk.stream(), again);
      if (before) again.reset(desk.stream());
      open.restore(first, 0, desk.stream(), x);
      x.reset(desk.stream());
      again.reset(desk.stream());
      open.finish();
      off.end_step();
    }
    if (stays) recorded = off.profile();
    CHECK(off.counters().modules[static_cast<std::size_t>(first)].groups_resident == stays);
    CHECK(recorded.shared == std::vector<plan::shared_save>{{0, 0, 1, 0}});
    CHECK(drop(recorded) == (before ? 2 : 1));
    CHECK_NOTHROW(plan::check(recorded));
  }
}

TEST_CASE("recording: what one group saves by two handles is told once") {
  for (const bool stays : {false, true}) {
    for (const bool of_second : {false, true}) {
      CAPTURE(stays);
      CAPTURE(of_second);
      rig desk;
      tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
      off.on_report([](std::string_view) {});
      const auto first = off.module("core_attn");
      const auto second = off.module("moe_act");
      plan::profile recorded;
      off.on_measure([&] { recorded = off.profile(); });  // of the first step, in which all leaves
      for (int step = 0; step < (stays ? 2 : 1); ++step) {
        auto open = off.begin();
        auto x = off.allocate(size, desk.stream());
        auto y = off.allocate(size, desk.stream());
        auto again = x.share();
        auto third = x.share();
        if (of_second) {
          open.commit(first, 0, desk.stream(), x, y);
          open.commit(second, 0, desk.stream(), again, third);
        } else {
          open.commit(first, 0, desk.stream(), x, y, again);
          open.commit(second, 0, desk.stream(), third);
        }
        open.end_forward();
        if (of_second) {
          open.restore(second, 0, desk.stream(), again, third);
          open.restore(first, 0, desk.stream(), x, y);
        } else {
          open.restore(second, 0, desk.stream(), third);
          open.restore(first, 0, desk.stream(), x, y, again);
        }
        for (auto* each : {&x, &y, &again, &third}) each->reset(desk.stream());
        open.finish();
        off.end_step();
      }
      if (stays) recorded = off.profile();
      CHECK(off.counters().modules[static_cast<std::size_t>(first)].groups_resident == stays);
      CHECK(recorded.shared == std::vector<plan::shared_save>{{0, 0, 1, 0}});
      CHECK_NOTHROW(plan::check(recorded));
      if (stays) CHECK_FALSE(recorded.shapes_vary);
    }
  }
}

TEST_CASE("recording: what is saved again after it came back makes shapes vary") {
  for (const bool again_saved : {false, true}) {
    CAPTURE(again_saved);
    rig desk;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
    off.on_report([](std::string_view) {});
    const auto first = off.module("core_attn");
    const auto second = off.module("moe_act");
    for (int step = 0; step < 2; ++step) {
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      auto again = x.share();
      open.commit(first, 0, desk.stream(), x);
      open.commit(second, 0, desk.stream(), again);
      open.end_forward();
      // Away here; a forecast with a handle for each commit from the start would have it there.
      auto next = off.begin({.microbatch = 1});
      open.restore(second, 0, desk.stream(), again);
      if (again_saved) next.commit(second, 0, desk.stream(), again);
      next.end_forward();
      if (again_saved) next.restore(second, 0, desk.stream(), again);
      open.restore(first, 0, desk.stream(), x);
      x.reset(desk.stream());
      again.reset(desk.stream());
      open.finish();
      next.finish();
      off.end_step();
      CHECK_NOTHROW(plan::check(off.profile()));
    }
    CHECK(off.profile().shapes_vary == again_saved);
  }
}

TEST_CASE("recording: two handles of one group are not two groups") {
  for (const bool kept : {false, true}) {
    CAPTURE(kept);
    rig desk;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(20));
    off.on_report([](std::string_view) {});
    const auto module = off.module("core_attn");
    plan::profile recorded;
    off.on_measure([&] { recorded = off.profile(); });  // of the first step, in which all leaves
    for (int step = 0; step < (kept ? 2 : 1); ++step) {
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      open.commit(module, 0, desk.stream(), x);
      open.end_forward();
      auto next = off.begin({.microbatch = 1});
      open.restore(module, 0, desk.stream(), x);
      auto again = x.share();
      next.commit(module, 0, desk.stream(), x, again);
      next.end_forward();
      next.restore(module, 0, desk.stream(), x, again);
      x.reset(desk.stream());
      again.reset(desk.stream());
      open.finish();
      next.finish();
      off.end_step();
    }
    if (kept) recorded = off.profile();
    CHECK(recorded.shared.empty());
    CHECK(recorded.shapes_vary);
    CHECK_NOTHROW(plan::check(recorded));
  }
}

TEST_CASE("recording: what stays for another group is told as if it left") {
  using tidepool::detail::commit_kind;
  for (const bool third : {false, true}) {
    CAPTURE(third);
    virtual_device dev(machine{});
    const auto stream = dev.make_stream();
    const auto s = stream.ref();
    using tidepool::detail::engine;
    const auto plans = planner();
    engine* const on =
        new engine(std::make_unique<tidepool::detail::hardware_of<virtual_device>>(dev),
                   automatic(20), {"core_attn", "moe_act"}, 3, {}, plans.get());
    const auto lane = tidepool::detail::lane_of<virtual_device>(*on, s);
    const auto step = [&] {
      auto& open = on->begin({0, 0});
      auto x = tidepool::detail::buffer_of<virtual_device>(on->allocate(size, size, lane));
      auto again = x.share();
      auto beyond = third ? x.share() : buffer<virtual_device>();
      tidepool::detail::handle_base* const first[]{&x};
      tidepool::detail::handle_base* const second[]{&again};
      on->commit(open, module_id{0}, 0, lane, first, commit_kind::plain);
      on->commit(open, module_id{1}, 0, lane, second, commit_kind::plain);
      beyond.reset(s);
      on->end_forward(open);
      on->restore(open, module_id{1}, 0, lane, second);
      again.reset(s);
      on->restore(open, module_id{0}, 0, lane, first);
      x.reset(s);
      on->end_chunk(open, true);
      static_cast<void>(on->end_step());
    };
    step();
    CHECK(drop(on->profile()) == 2);
    tidepool::decision keeps_first;
    keeps_first.made.what = {{plan::action::keep, plan::action::offload}};
    on->apply(on->profile(), keeps_first, tidepool::detail::followed::trial);
    step();
    CHECK(on->counters().modules[1].groups_resident == 1);
    CHECK_NOTHROW(plan::check(on->profile()));
    CHECK((drop(on->profile()) == 2 || on->profile().shapes_vary));
    CHECK(on->profile().shapes_vary == third);
    on->close();
    engine::release(on);
  }
}

TEST_CASE(
    "recording: a plan for less than shapes that vary should have can be saved all the same") {
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(4));
  off.on_report([](std::string_view) {});
  const auto module = off.module("core_attn");
  for (std::size_t step = 0; step < 4; ++step) {
    auto open = off.begin();
    std::vector<std::array<rig::buffer, 3>> layers(4);
    for (int l = 0; l < 4; ++l) {
      auto& [routed, second, third] = layers[static_cast<std::size_t>(l)];
      routed = off.allocate(step % 2 == 0 ? size : size - 16, desk.stream());
      second = off.allocate(size, desk.stream());
      third = off.allocate(size, desk.stream());
      desk.dev.launch(desk.stream(), 5000, [] {});
      open.commit(module, l, desk.stream(), routed, second, third);
    }
    open.end_forward();
    for (int l = 3; l >= 0; --l) {
      auto& [routed, second, third] = layers[static_cast<std::size_t>(l)];
      open.restore(module, l, desk.stream(), routed, second, third);
      desk.dev.launch(desk.stream(), 9000, [] {});
      for (auto* each : {&routed, &second, &third}) each->reset(desk.stream());
    }
    open.finish();
    off.end_step();
  }
  REQUIRE(off.profile().shapes_vary);
  REQUIRE(off.current_plan());
  const auto made = *off.current_plan();
  CHECK(made.expected.runs);
  CHECK(made.gap() >= 0);
  CHECK(made.limited_by != plan::limit::link);
  CHECK_NOTHROW(static_cast<void>(plan::to_json(made, off.profile())));
}

TEST_CASE(
    "recording: a group with a part of a larger tensor, or with a block of its own, goes on "
    "leaving") {
  for (const bool own : {false, true}) {
    CAPTURE(own);
    alignas(256) std::array<std::byte, size> block{};
    rig desk;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic(own ? 20 : 18));
    off.on_report([](std::string_view) {});
    tidepool::fixed_block fixed(block.data(), block.size());
    const auto attention = off.module("core_attn");
    const auto act = off.module("moe_act");
    struct layer {
      rig::view part;
      rig::buffer out;
      rig::buffer hidden;
    };
    for (std::uint32_t step = 0; step < 5; ++step) {
      CAPTURE(step);
      auto open = off.begin();
      std::vector<layer> layers(4);
      for (std::uint32_t l = 0; l < 4; ++l) {
        auto& [part, out, hidden] = layers[l];
        auto whole = own ? off.allocate_from(fixed, size, desk.stream())
                         : off.allocate(3 * size, desk.stream());
        desk.write(whole, 10 * l + step);
        part = whole.view({.width = own ? size : size / 2});
        whole.reset(desk.stream());
        out = off.allocate(3 * size, desk.stream());
        desk.write(out, 10 * l + step + 1);
        open.commit(attention, static_cast<int>(l), desk.stream(), part, out);
        hidden = off.allocate(3 * size, desk.stream());
        desk.write(hidden, 10 * l + step + 2, 10'000);
        open.commit(act, static_cast<int>(l), desk.stream(), hidden);
      }
      open.end_forward();
      for (std::uint32_t l = 4; l-- > 0;) {
        auto& [part, out, hidden] = layers[l];
        open.restore(act, static_cast<int>(l), desk.stream(), hidden);
        desk.check(hidden, 10 * l + step + 2);
        hidden.reset(desk.stream());
        open.restore(attention, static_cast<int>(l), desk.stream(), part, out);
        desk.check_rows(part.data(), {part.width(), 1, part.width(), 0}, 10 * l + step, 0,
                        desk.stream());
        desk.check(out, 10 * l + step + 1);
        part.reset(desk.stream());
        out.reset(desk.stream());
      }
      open.finish();
      off.end_step();
    }
    CHECK(off.current_plan()->expected.runs);
    CHECK(desk.wrong() == 0);
  }
}
