// Manual control: offloads, releases and reloads started by hand.
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::machine;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t size = 2048;

}  // namespace

TEST_CASE("manual: an offload started by hand leaves the handle full until it is released") {
  rig desk;
  offloader off(desk.dev, arena_options(size));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  open.start_offload<"core_attn">(0, desk.stream(), x);
  CHECK(x);
  CHECK(desk.dev.offloads() == 1);
  desk.check(x, 1);  // may still be read
  CHECK_THROWS_AS(static_cast<void>(off.allocate(size, desk.stream())), tidepool::out_of_budget);
  x.reset(desk.stream());
  auto y = off.allocate(size, desk.stream());
  desk.write(y, 2);
  y.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
  x.reset(desk.stream());
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("manual: a handle that was never released is kept as it is") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  auto* const data = x.data();
  open.start_offload<"core_attn">(0, desk.stream(), x);
  open.end_forward();
  open.restore<"core_attn">(0, desk.stream(), x);
  CHECK(x.data() == data);
  CHECK(desk.dev.reloads() == 0);
  desk.check(x, 1);
  x.reset(desk.stream());
  open.finish();
  CHECK(desk.wrong() == 0);
}

// The trainer cannot see whether anything left.
TEST_CASE("manual: what is released by hand comes back, though policy would have kept its group") {
  for (const bool kept : {false, true}) {
    rig desk;
    auto opts = small_options({"core_attn"});
    opts.margin = true;
    offloader off(desk.dev, opts);
    for (std::uint32_t step = 1; step <= 2; ++step) {
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      desk.write(x, step);
      if (kept) x.keep_resident();
      open.start_offload<"core_attn">(0, desk.stream(), x);
      x.reset(desk.stream());
      open.restore<"core_attn">(0, desk.stream(), x);
      REQUIRE(x);
      desk.check(x, step);
      x.reset(desk.stream());
      open.finish();
      off.end_step();
    }
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("manual: a view that was kept may be reset after a restore that failed, and comes back") {
  rig desk;
  offloader off(desk.dev, tidepool::test::arena_options(4 * size));
  auto whole = off.allocate(2 * size, desk.stream());
  auto part = whole.view({.offset = size, .width = size});
  auto other = off.allocate(size, desk.stream());
  desk.write(whole, 1);
  desk.write(other, 2);
  auto open = off.begin();
  open.start_offload<"core_attn">(0, desk.stream(), part, other);
  other.reset(desk.stream());
  auto in_the_way = off.allocate(2 * size, desk.stream());
  CHECK_THROWS_AS(open.restore<"core_attn">(0, desk.stream(), part, other),
                  tidepool::out_of_budget);
  in_the_way.reset(desk.stream());
  part.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), part, other);
  desk.check(part, 1, size, size);
  desk.check(other, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("manual: a view that was never released is kept as it is") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  auto part = x.view({.offset = 64, .width = 64, .rows = 8, .pitch = 128});
  open.start_offload<"core_attn">(0, desk.stream(), part);
  open.restore<"core_attn">(0, desk.stream(), part);
  REQUIRE(part);
  desk.check(part, 1, 64, 128);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("manual: released after the end of forward, or after its reload was to start") {
  for (const bool reload : {false, true}) {
    rig desk;
    offloader off(desk.dev, arena_options(size));
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    open.start_offload<"core_attn">(0, desk.stream(), x);
    open.end_forward();
    if (reload) open.start_reload<"core_attn">(0);
    x.reset(desk.stream());
    {
      auto y = off.allocate(size, desk.stream());
      desk.write(y, 2);
    }
    open.restore<"core_attn">(0, desk.stream(), x);
    REQUIRE(x.data() != nullptr);
    desk.check(x, 1);
    x.reset(desk.stream());
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("manual: a reload by hand starts now, whatever the limits say") {
  rig desk;
  auto opts = small_options();
  opts.reload_ahead = 0;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  std::vector<rig::buffer> x(4);
  for (std::size_t i = 0; i < 4; ++i) {
    x[i] = off.allocate(size, desk.stream());
    desk.write(x[i], static_cast<std::uint32_t>(i));
    open.commit<"core_attn">(static_cast<int>(i), desk.stream(), x[i]);
  }
  open.start_reload<"core_attn">(1);
  CHECK(desk.dev.reloads() == 1);
  open.start_reload<"core_attn">(1);  // under way already
  CHECK(desk.dev.reloads() == 1);
  open.start_reload<"core_attn">(3);
  CHECK(desk.dev.reloads() == 2);
  for (const std::size_t i : {3U, 2U, 1U, 0U}) {
    open.restore<"core_attn">(static_cast<int>(i), desk.stream(), x[i]);
    desk.check(x[i], static_cast<std::uint32_t>(i));
    x[i].reset(desk.stream());
  }
  CHECK(desk.dev.reloads() == 4);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("manual: forward goes on after a reload by hand") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  open.commit<"core_attn">(0, desk.stream(), x);
  open.start_reload<"core_attn">(0);
  auto y = off.allocate(size, desk.stream());
  desk.write(y, 2);
  open.commit<"core_attn">(1, desk.stream(), y);
  open.end_forward();
  open.restore<"core_attn">(1, desk.stream(), y);
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
  desk.check(y, 2);
  open.finish();
  CHECK(desk.dev.reloads() == 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("manual: a schedule by hand is right in any order of the device") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    auto opts = arena_options(4 * size);
    opts.reload_ahead = 0;
    opts.host_budget = 6 * size;
    opts.host_step = 6 * size;
    offloader off(desk.dev, opts);
    for (std::uint32_t step = 1; step <= 2; ++step) {
      auto open = off.begin();
      std::vector<rig::buffer> x(6);
      // Offloads one layer behind, reloads one layer ahead.
      for (std::size_t i = 0; i < 6; ++i) {
        x[i] = off.allocate(size, desk.stream());
        desk.write(x[i], step * 10 + static_cast<std::uint32_t>(i));
        open.start_offload<"core_attn">(static_cast<int>(i), desk.stream(), x[i]);
        desk.check(x[i], step * 10 + static_cast<std::uint32_t>(i));
        if (i > 0) x[i - 1].reset(desk.stream());
      }
      x[5].reset(desk.stream());
      for (std::size_t i = 6; i-- > 0;) {
        open.restore<"core_attn">(static_cast<int>(i), desk.stream(), x[i]);
        if (i > 0) open.start_reload<"core_attn">(static_cast<int>(i - 1));
        desk.check(x[i], step * 10 + static_cast<std::uint32_t>(i));
        x[i].reset(desk.stream());
      }
      open.finish();
      off.on_report([](std::string_view) {});
      off.end_step();
    }
    CHECK(desk.dev.reloads() == 12);
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("manual: a module that is not enabled moves nothing") {
  rig desk;
  offloader off(desk.dev, small_options({"expert_fc1"}));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  open.start_offload<"core_attn">(0, desk.stream(), x);
  open.start_reload<"core_attn">(0);
  open.restore<"core_attn">(0, desk.stream(), x);
  CHECK(x);
  CHECK(desk.dev.offloads() + desk.dev.reloads() == 0);
}

TEST_CASE("manual: a reload of what was never committed, or was restored, is a misuse") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  CHECK_THROWS_WITH_AS(open.start_reload<"core_attn">(3), doctest::Contains("never committed"),
                       tidepool::misuse_error);
  auto x = off.allocate(size, desk.stream());
  open.commit<"core_attn">(3, desk.stream(), x);
  open.restore<"core_attn">(3, desk.stream(), x);
  CHECK_THROWS_WITH_AS(open.start_reload<"core_attn">(3), doctest::Contains("restored before"),
                       tidepool::misuse_error);
}
