// Calls of one tensor inside a capture, and after one that has not run.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "messages.hpp"
#include "rig.hpp"
#include "tidepool/graph.hpp"

namespace {

using tidepool::machine;
using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;

void warm_up(rig& desk, offloader& off) {
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit<"fc1">(0, desk.stream(), x);
  open.restore<"fc1">(0, desk.stream(), x);
  x.reset(desk.stream());
  open.finish();
  off.end_step();
}

}  // namespace

TEST_CASE("captured calls: a second stream that waits for a tensor comes behind its reload") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    const auto second = desk.dev.make_stream();
    auto forked = desk.dev.make_event();
    auto joined = desk.dev.make_event();
    offloader off(desk.dev, arena_options(2 * size));
    warm_up(desk, off);
    auto graph = off.capture(desk.stream(), [&] {
      desk.dev.record(forked, desk.stream());
      desk.dev.wait(second.ref(), forked);
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      desk.write(x, 5);
      open.commit<"fc1">(0, desk.stream(), x);
      open.restore<"fc1">(0, desk.stream(), x);
      off.wait_for(x, second.ref());
      desk.check_rows(x.data(), {size, 1, size, 0}, 5, 0, second.ref());
      desk.dev.record(joined, second.ref());
      desk.dev.wait(desk.stream(), joined);
      x.reset(desk.stream());
      open.finish();
      off.end_step();
    });
    graph.launch(desk.stream());
    graph.launch(desk.stream());
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("captured calls: what a capture has saved that has not run cannot be forgotten") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  warm_up(desk, off);
  std::optional<offloader::chunk> open;
  auto graph = off.capture(desk.stream(), [&] {
    open.emplace(off.begin());
    auto x = off.allocate(size, desk.stream());
    open->commit<"fc1">(0, desk.stream(), x);
  });
  CHECK(says(message_of([&] { open->forget<"fc1">(0); }), "has not run"));
  graph.launch(desk.stream());
  open->forget<"fc1">(0);
  open->finish();
}
