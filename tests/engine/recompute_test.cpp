// What forward discards and backward computes again.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "messages.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/trace/summary.hpp"

namespace {

using tidepool::machine;
using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1", "moe_act">>;

constexpr std::size_t size = 2048;

options recomputing(options opts, std::vector<std::string> names = {"moe_act"}) {
  opts.offload_modules = {"core_attn", "expert_fc1"};
  opts.recompute_modules = std::move(names);
  return opts;
}

}  // namespace

TEST_CASE("recompute: discarded memory serves others, and is computed again behind their use") {
  rig desk(machine{.order_seed = 3});
  offloader off(desk.dev, recomputing(arena_options(size)));
  for (std::uint32_t step = 1; step <= 3; ++step) {
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, step);
    desk.check(x, step);
    open.commit_or_discard<"moe_act">(0, desk.stream(), x);
    CHECK_FALSE(x);
    auto other = off.allocate(size, desk.stream());  // there is room for one
    desk.write(other, 100);
    desk.check(other, 100);
    other.reset(desk.stream());
    open.end_forward();
    bool called = false;
    open.restore_or_recompute<"moe_act">(
        0, desk.stream(),
        [&] {
          called = true;
          REQUIRE(x);
          CHECK(x.size() == size);
          desk.write(x, step);
        },
        x);
    CHECK(called);
    desk.check(x, step);
    x.reset(desk.stream());
    open.finish();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
  CHECK(desk.dev.offloads() == 0);
  REQUIRE(off.counters().recomputed.size() == 1);
  CHECK(off.counters().recomputed[0].tensors == 3);
  CHECK(off.counters().recomputed[0].bytes == 3 * size);
  CHECK(off.counters().live_peak == size);
}

TEST_CASE("recompute: another stream gets the memory only once its readers are done") {
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    rig desk(machine{.order_seed = seed});
    const auto second = desk.dev.make_stream();
    offloader off(desk.dev, recomputing(arena_options(size)));
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1, 5000);
    desk.check(x, 1);
    open.commit_or_discard<"moe_act">(0, desk.stream(), x);
    auto other = off.allocate(size, second.ref());
    desk.write_bytes(other.data(), size, 2, second.ref());
    other.reset(second.ref());
    open.restore_or_recompute<"moe_act">(
        0, desk.stream(), [&] { desk.write(x, 1); }, x);
    desk.check(x, 1);
    x.reset(desk.stream());
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("recompute: from what was offloaded, which comes back first") {
  rig desk(machine{.order_seed = 5});
  offloader off(desk.dev, recomputing(arena_options(2 * size)));
  constexpr int layers = 4;
  for (std::uint32_t step = 0; step < 2; ++step) {
    auto open = off.begin();
    std::vector<rig::buffer> in(layers);
    std::vector<rig::buffer> out(layers);
    for (int l = 0; l < layers; ++l) {
      auto& x = in[static_cast<std::size_t>(l)];
      auto& y = out[static_cast<std::size_t>(l)];
      const auto tag = step * 10 + static_cast<std::uint32_t>(l);
      x = off.allocate(size, desk.stream());
      desk.write(x, tag);
      y = off.allocate(size, desk.stream());
      desk.write(y, tag);
      open.commit_or_discard<"moe_act">(l, desk.stream(), y);
      open.commit<"expert_fc1">(l, desk.stream(), x);
    }
    open.end_forward();
    for (int l = layers; l-- > 0;) {
      auto& x = in[static_cast<std::size_t>(l)];
      auto& y = out[static_cast<std::size_t>(l)];
      open.restore<"expert_fc1">(l, desk.stream(), x);
      open.restore_or_recompute<"moe_act">(
          l, desk.stream(),
          [&] {
            desk.dev.launch(desk.stream(), 1000,
                            [from = x.data(), to = y.data()] { std::memcpy(to, from, size); });
          },
          y);
      desk.check(y, step * 10 + static_cast<std::uint32_t>(l));
      y.reset(desk.stream());
      x.reset(desk.stream());
    }
    open.finish();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
  CHECK(desk.dev.offloads() == 2 * layers);
}

TEST_CASE(
    "recompute: two calls of one name and layer come back last first, each with its tensors") {
  rig desk;
  offloader off(desk.dev, recomputing(small_options(), {"layernorm"}));
  auto open = off.begin();
  auto a = off.allocate(256, desk.stream());
  auto b = off.allocate(512, desk.stream());
  auto c = off.allocate(1024, desk.stream());
  open.commit_or_discard<"layernorm">(0, desk.stream(), a);
  open.commit_or_discard<"layernorm">(0, desk.stream(), b, c);
  const auto nothing = [] {};
  CHECK(says(
      message_of([&] { open.restore_or_recompute<"layernorm">(0, desk.stream(), nothing, b); }),
      "1 arguments, but 2 were discarded"));
  open.restore_or_recompute<"layernorm">(0, desk.stream(), nothing, b, c);
  open.restore_or_recompute<"layernorm">(0, desk.stream(), nothing, a);
  CHECK(a.size() == 256);
  CHECK(b.size() == 512);
  CHECK(c.size() == 1024);
  CHECK(says(
      message_of([&] { open.restore_or_recompute<"layernorm">(0, desk.stream(), nothing, a); }),
      "nothing of it was discarded, or it was computed again before"));
}

TEST_CASE("recompute: a name that is not listed costs nothing and changes nothing") {
  rig desk;
  offloader off(desk.dev, small_options());
  CHECK_FALSE(off.recomputes("moe_act"));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto* const data = x.data();
  open.commit_or_discard<"moe_act">(0, desk.stream(), x);
  open.restore_or_recompute<"moe_act">(
      0, desk.stream(), [] { FAIL_CHECK("called"); }, x);
  CHECK(x.data() == data);
}

TEST_CASE("recompute: misuse is refused in words, and leaves everything as it was") {
  rig desk;
  offloader off(desk.dev, recomputing(small_options()));
  offloader other(desk.dev, recomputing(small_options()));
  auto open = off.begin({.microbatch = 7});
  auto x = off.allocate(size, desk.stream());
  auto* const data = x.data();
  auto second = x.share();
  const auto discard = [&](auto&... tensors) {
    return message_of([&] { open.commit_or_discard<"moe_act">(3, desk.stream(), tensors...); });
  };
  const auto shared = discard(x);
  CHECK(
      says(shared,
           "commit_or_discard of moe_act of layer 3, microbatch 7: argument 1 has another owner"));
  second.reset(desk.stream());
  rig::buffer none;
  CHECK(says(discard(x, none), "argument 2 holds no memory"));
  auto foreign = other.allocate(size, desk.stream());
  CHECK(says(discard(x, foreign), "argument 2 belongs to another offloader"));
  auto kept = off.allocate(size, desk.stream());
  open.start_offload<"core_attn">(0, desk.stream(), kept);
  CHECK(says(discard(kept), "argument 1 was committed too"));
  CHECK(says(discard(x, x), "argument 2 is given twice"));
  CHECK(x.data() == data);
  CHECK(discard(x).empty());
  CHECK(says(message_of([&] { open.finish(); }), "discarded and never computed again"));
  rig::buffer one;
  CHECK(says(message_of([&] {
               open.restore_or_recompute<"moe_act">(
                   3, desk.stream(), [] {}, one, one);
             }),
             "2 arguments, but 1 were discarded"));
  auto full = off.allocate(size, desk.stream());
  CHECK(says(message_of([&] {
               open.restore_or_recompute<"moe_act">(
                   3, desk.stream(), [] {}, full);
             }),
             "argument 1 holds other memory"));
  open.end_forward();
  CHECK(says(discard(full), "forward pass has ended"));
  open = {};  // given up: nothing of it is left
  full.reset(desk.stream());
  kept.reset(desk.stream());
  foreign.reset(desk.stream());
  CHECK(off.counters().device_peak > 0);
  off.end_step();
}

TEST_CASE("recompute: what fails may be tried again") {
  rig desk;
  offloader off(desk.dev, recomputing(arena_options(size)));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit_or_discard<"moe_act">(0, desk.stream(), x);
  open.end_forward();
  auto big = off.allocate(size, desk.stream());
  const auto again = [&] { desk.write(x, 5); };
  CHECK_THROWS_AS(open.restore_or_recompute<"moe_act">(0, desk.stream(), again, x),
                  tidepool::out_of_budget);
  CHECK_FALSE(x);
  big.reset(desk.stream());
  struct own_error {};
  CHECK_THROWS_AS(open.restore_or_recompute<"moe_act">(
                      0, desk.stream(), [] { throw own_error(); }, x),
                  own_error);
  CHECK_FALSE(x);
  open.restore_or_recompute<"moe_act">(0, desk.stream(), again, x);
  desk.check(x, 5);
  x.reset(desk.stream());
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recompute: a forward-only pass gives the memory back and computes nothing again") {
  rig desk;
  offloader off(desk.dev, recomputing(arena_options(size)));
  auto open = off.begin({.forward_only = true});
  for (int l = 0; l < 3; ++l) {
    auto x = off.allocate(size, desk.stream());
    open.commit_or_discard<"moe_act">(l, desk.stream(), x);
    CHECK_FALSE(x);
  }
  open.finish();
  CHECK(off.counters().recomputed[0].tensors == 0);
}

TEST_CASE("recompute: a name for which the trainer does nothing is reported after the first step") {
  rig desk;
  offloader off(desk.dev, recomputing(small_options({"core_attn"}), {"layernorm"}));
  std::string reported;
  off.on_report([&](std::string_view line) { reported += line; });
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit<"core_attn">(0, desk.stream(), x);
  open.restore<"core_attn">(0, desk.stream(), x);
  x.reset(desk.stream());
  open.finish();
  off.end_step();
  CHECK(says(reported, "'layernorm' was to be recomputed, and the trainer discarded nothing"));
}

TEST_CASE("recompute: each name and each layer has its own, whichever was discarded last") {
  rig desk;
  offloader off(desk.dev, recomputing(small_options(), {"layernorm", "moe_act"}));
  auto open = off.begin();
  struct what {
    const char* name;
    int layer;
    std::size_t bytes;
  };
  const what all[]{{"layernorm", 0, 1024}, {"moe_act", 0, 2048}, {"layernorm", 1, 512}};
  rig::buffer tensors[3];
  for (std::size_t i = 0; i < 3; ++i) {
    tensors[i] = off.allocate(all[i].bytes, desk.stream());
    open.commit_or_discard(all[i].name, all[i].layer, desk.stream(), tensors[i]);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    open.restore_or_recompute(
        all[i].name, all[i].layer, desk.stream(), [] {}, tensors[i]);
    CHECK(tensors[i].size() == all[i].bytes);
  }
  open.finish();
}

TEST_CASE("recompute: what computes again may compute another of its name and layer first") {
  rig desk;
  offloader off(desk.dev, recomputing(small_options(), {"layernorm"}));
  auto open = off.begin();
  auto first = off.allocate(1024, desk.stream());
  auto second = off.allocate(256, desk.stream());
  open.commit_or_discard("layernorm", 0, desk.stream(), first);
  open.commit_or_discard("layernorm", 0, desk.stream(), second);
  const auto both = [&](bool fails) {
    open.restore_or_recompute(
        "layernorm", 0, desk.stream(),
        [&] {
          CHECK(second.size() == 256);
          open.restore_or_recompute(
              "layernorm", 0, desk.stream(),
              [&] {
                CHECK(first.size() == 1024);
                if (fails) throw std::runtime_error("no kernel");
              },
              first);
        },
        second);
  };
  CHECK_THROWS_AS(both(true), std::runtime_error);
  CHECK_FALSE(first);
  CHECK_FALSE(second);
  both(false);
  CHECK(first.size() == 1024);
  CHECK(second.size() == 256);
  first.reset(desk.stream());
  second.reset(desk.stream());
  open.finish();
}

TEST_CASE("recompute: begins the backward pass, after which nothing is committed") {
  rig desk;
  offloader off(desk.dev, recomputing(small_options()));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit_or_discard<"moe_act">(0, desk.stream(), x);
  open.restore_or_recompute<"moe_act">(
      0, desk.stream(), [] {}, x);
  CHECK(says(message_of([&] { open.commit<"core_attn">(0, desk.stream(), x); }),
             "forward pass has ended"));
}

TEST_CASE("recompute: where the second of two tensors finds no memory, neither keeps any") {
  rig desk;
  offloader off(desk.dev, recomputing(arena_options(2 * size)));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(size, desk.stream());
  open.commit_or_discard<"moe_act">(0, desk.stream(), x, y);
  auto other = off.allocate(size, desk.stream());
  const auto again = [&] {
    open.restore_or_recompute<"moe_act">(
        0, desk.stream(), [] {}, x, y);
  };
  CHECK_THROWS_AS(again(), tidepool::out_of_budget);
  CHECK_FALSE(x);
  CHECK_FALSE(y);
  other.reset(desk.stream());
  again();
  CHECK(x);
  CHECK(y);
}

TEST_CASE("recompute: one pair of calls offloads, recomputes or does nothing, as the options say") {
  enum class way { nothing, offloads, recomputes };
  for (const auto chosen : {way::nothing, way::offloads, way::recomputes}) {
    CAPTURE(static_cast<int>(chosen));
    rig desk;
    auto opts = recomputing(arena_options(2 * size), {});
    if (chosen == way::offloads) opts.offload_modules.emplace_back("moe_act");
    if (chosen == way::recomputes) opts.recompute_modules = {"moe_act"};
    offloader off(desk.dev, opts);
    CHECK(off.recomputes("moe_act") == (chosen == way::recomputes));
    const auto id = off.module("moe_act");
    for (const auto by : {0, 1, 2}) {  // its name, its id, and its name at run time
      CAPTURE(by);
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      auto mine = off.allocate(size, desk.stream());
      desk.write(x, 7);
      if (chosen != way::offloads) {
        open.commit(id, 0, desk.stream(), mine);  // offers nothing
        CHECK(mine);
      }
      CHECK_FALSE(open.will_recompute(id, 0));
      if (by == 0) open.commit_or_discard<"moe_act">(0, desk.stream(), x);
      if (by == 1) open.commit_or_discard(id, 0, desk.stream(), x);
      if (by == 2) open.commit_or_discard("moe_act", 0, desk.stream(), x);
      CHECK(static_cast<bool>(x) == (chosen == way::nothing));
      const bool again = chosen == way::recomputes;
      CHECK(open.will_recompute<"moe_act">(0) == again);
      CHECK(open.will_recompute(id, 0) == again);
      CHECK(open.will_recompute("moe_act", 0) == again);
      CHECK_FALSE(open.will_recompute(id, 1));
      int called = 0;
      const auto compute = [&] {
        ++called;
        CHECK_FALSE(open.will_recompute(id, 0));
        desk.write(x, 7);
      };
      if (by == 0) open.restore_or_recompute<"moe_act">(0, desk.stream(), compute, x);
      if (by == 1) open.restore_or_recompute(id, 0, desk.stream(), compute, x);
      if (by == 2) open.restore_or_recompute("moe_act", 0, desk.stream(), compute, x);
      CHECK(called == (again ? 1 : 0));
      desk.check(x, 7);
      x.reset(desk.stream());
      mine.reset(desk.stream());
      open.finish();
    }
    off.end_step();
    CHECK(desk.wrong() == 0);
    CHECK(desk.dev.offloads() == (chosen == way::offloads ? 3 : 0));
    if (chosen == way::recomputes) CHECK(off.counters().recomputed[0].tensors == 3);
  }
}

TEST_CASE("recompute: of a name in both lists the inputs leave, and the output is computed again") {
  for (const auto by : {0, 1, 2}) {  // its name, its id, and its name at run time
    CAPTURE(by);
    rig desk(machine{.order_seed = 5});
    auto opts = recomputing(arena_options(3 * size));
    opts.offload_modules.emplace_back("moe_act");
    offloader off(desk.dev, opts);
    const auto id = off.module("moe_act");
    for (std::uint32_t step = 1; step <= 3; ++step) {
      auto open = off.begin();
      auto input = off.allocate(size, desk.stream());
      auto output = off.allocate(size, desk.stream());
      desk.write(input, step);
      desk.write(output, step + 100);
      open.commit(id, 0, desk.stream(), input);
      if (by == 0) open.commit_or_discard<"moe_act">(0, desk.stream(), output);
      if (by == 1) open.commit_or_discard(id, 0, desk.stream(), output);
      if (by == 2) open.commit_or_discard("moe_act", 0, desk.stream(), output);
      CHECK_FALSE(input);
      CHECK_FALSE(output);
      open.end_forward();
      CHECK(open.will_recompute<"moe_act">(0));
      CHECK(open.will_recompute(id, 0));
      open.restore(id, 0, desk.stream(), input);
      const auto again = [&] {
        desk.check(input, step);
        desk.write(output, step + 100);
      };
      if (by == 0) open.restore_or_recompute<"moe_act">(0, desk.stream(), again, output);
      if (by == 1) open.restore_or_recompute(id, 0, desk.stream(), again, output);
      if (by == 2) open.restore_or_recompute("moe_act", 0, desk.stream(), again, output);
      desk.check(output, step + 100);
      input.reset(desk.stream());
      output.reset(desk.stream());
      open.finish();
      off.end_step();
    }
    CHECK(desk.wrong() == 0);
    CHECK(desk.dev.offloads() == 3);
    CHECK(off.counters().recomputed[0].bytes == 3 * size);
  }
}

TEST_CASE(
    "recompute: a region's name does nothing where it is not listed, whatever it is called by") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn", "expert_fc1"}));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  const auto never = [] { FAIL_CHECK("called"); };
  open.commit_or_discard<"layernorm">(0, desk.stream(), x);
  open.commit_or_discard("layernorm", 0, desk.stream(), x);
  open.commit_or_discard("no such name", 0, desk.stream(), x);
  CHECK_FALSE(open.will_recompute<"layernorm">(0));
  open.restore_or_recompute<"layernorm">(0, desk.stream(), never, x);
  open.restore_or_recompute("no such name", 0, desk.stream(), never, x);
  CHECK(x);
}
