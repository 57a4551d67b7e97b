// Several offloaders live in one program, on one device or in several threads.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <optional>
#include <thread>
#include <vector>

#include "program.hpp"
#include "rig.hpp"

namespace {

using tidepool::machine;
using tidepool::modules;
using tidepool::test::arena_options;
using tidepool::test::outcome;
using tidepool::test::program;
using tidepool::test::rig;
using tidepool::test::run;
using tidepool::test::small_options;

using left_offloader = rig::offloader<modules<"core_attn">>;
using right_offloader = rig::offloader<modules<"expert_fc1", "core_attn">>;

constexpr std::size_t size = 1024;

}  // namespace

TEST_CASE("side by side: two offloaders on one device and one stream") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    auto opts = arena_options(2 * size, {"core_attn"});
    opts.max_inflight = 0;
    left_offloader left(desk.dev, opts);
    right_offloader right(desk.dev, small_options({"expert_fc1"}));
    for (std::uint32_t step = 0; step < 2; ++step) {
      auto a = left.begin();
      auto b = right.begin();
      std::array<rig::buffer, 4> x;
      std::array<rig::buffer, 4> y;
      for (std::uint32_t l = 0; l < 4; ++l) {
        x[l] = left.allocate(size, desk.stream());
        y[l] = right.allocate(2 * size, desk.stream());
        desk.write(x[l], step * 10 + l);
        desk.write(y[l], 1000 + step * 10 + l);
        a.commit<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
        b.commit<"expert_fc1">(static_cast<int>(l), desk.stream(), y[l]);
      }
      for (std::uint32_t l = 4; l-- > 0;) {
        b.restore<"expert_fc1">(static_cast<int>(l), desk.stream(), y[l]);
        a.restore<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
        desk.check(x[l], step * 10 + l);
        desk.check(y[l], 1000 + step * 10 + l);
        x[l].reset(desk.stream());
        y[l].reset(desk.stream());
      }
      a.finish();
      b.finish();
      left.end_step();
      right.end_step();
    }
    CHECK(desk.wrong() == 0);
    CHECK(left.counters().modules[0].bytes_offloaded == 8 * size);
    CHECK(left.counters().modules[0].cap_joins == 8);
    CHECK(right.counters().modules[0].bytes_offloaded == 16 * size);
    CHECK(right.counters().modules[1].groups == 0);
  }
}

TEST_CASE("side by side: one ends, the other goes on") {
  rig desk;
  std::optional<left_offloader> left(std::in_place, desk.dev, small_options({"core_attn"}));
  right_offloader right(desk.dev, small_options({"expert_fc1"}));
  auto a = left->begin();
  auto b = right.begin();
  auto x = left->allocate(size, desk.stream());
  auto y = right.allocate(size, desk.stream());
  desk.write(x, 1);
  desk.write(y, 2);
  a.commit<"core_attn">(0, desk.stream(), x);
  b.commit<"expert_fc1">(0, desk.stream(), y);
  left.reset();
  a = {};
  b.restore<"expert_fc1">(0, desk.stream(), y);
  desk.check(y, 2);
  b.finish();
  left.emplace(desk.dev, small_options({"core_attn"}));
  x = left->allocate(size, desk.stream());
  desk.write(x, 3);
  desk.check(x, 3);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("side by side: offloaders one after the other give the same device back and back") {
  rig desk(machine{.device_bytes = 4 * size, .host_bytes = 64 * 1024});
  for (int i = 0; i < 20; ++i) {
    left_offloader off(desk.dev, arena_options(4 * size, {"core_attn"}));
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    open.commit<"core_attn">(0, desk.stream(), x);
    open.restore<"core_attn">(0, desk.stream(), x);
    desk.check(x, 1);
  }
  CHECK(desk.wrong() == 0);
  CHECK(desk.dev.memory().free == 4 * size);
}

TEST_CASE("side by side: in threads of their own, each with its device") {
  std::array<program, 4> plans;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    plans[i].seed = i + 1;
    plans[i].model.order_seed = i % 2 == 0 ? 0 : i + 7;
    plans[i].opts = arena_options(16 * 1024);
    plans[i].two_streams = i % 2 == 0;
  }
  std::array<outcome, 4> together;
  {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int again = 0; again < 5; ++again) together[i] = run(plans[i]);
      });
    }
    for (auto& each : threads) each.join();
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const auto alone = run(plans[i]);
    CHECK(together[i].wrong == 0);
    CHECK(together[i].weights == alone.weights);
    CHECK(together[i].counters == alone.counters);
    CHECK(together[i].clock_ns == alone.clock_ns);
  }
}
