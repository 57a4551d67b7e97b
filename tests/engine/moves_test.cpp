// What is moved into has all of what was moved out of: each member of these classes counts.
#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "messages.hpp"
#include "rig.hpp"

TEST_SUITE_BEGIN("engine");

namespace {

using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 4096;

void train_step(rig& desk, offloader& off, std::uint32_t tag) {
  auto open = off.begin();
  offloader::buffer saved[3];
  for (int l = 0; l < 3; ++l) {
    saved[l] = off.allocate(size, desk.stream());
    desk.write(saved[l], tag);
    open.commit<"fc1">(l, desk.stream(), saved[l]);
  }
  open.end_forward();
  for (int l = 3; l-- > 0;) {
    open.restore<"fc1">(l, desk.stream(), saved[l]);
    desk.check(saved[l], tag);
    saved[l].reset(desk.stream());
  }
  open.finish();
  off.end_step();
}

}  // namespace

TEST_CASE("moves: a view that leaves whole still does, and one that does not still does not") {
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    rig desk;
    offloader off(desk.dev, small_options());
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 7);
    rig::view part = x.view({.offset = 0, .width = 256, .whole_storage = !whole});
    part = x.view({.offset = 1024, .width = 256, .whole_storage = whole});
    CHECK(part.whole_storage() == whole);
    x.reset(desk.stream());
    open.commit<"fc1">(0, desk.stream(), part);
    CHECK(off.counters().modules[0].bytes_offloaded == (whole ? size : 256));
    open.restore<"fc1">(0, desk.stream(), part);
    desk.check(part, 7, 1024, 256);
    part.reset(desk.stream());
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("moves: a graph takes another's place, with the memory that it was captured with") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  train_step(desk, off, 1);
  auto first = off.capture(desk.stream(), [&] { train_step(desk, off, 2); });
  // Captured elsewhere, so that its layout of memory is another.
  auto held = off.allocate(256, desk.stream());
  CHECK(says(message_of([&] { first.launch(desk.stream()); }), "memory"));
  held.reset(desk.stream());
  auto kept = std::move(first);
  auto second = off.capture(desk.stream(), [&] { train_step(desk, off, 3); });
  first = std::move(second);
  for (int i = 0; i < 3; ++i) {
    first.launch(desk.stream());
    kept.launch(desk.stream());
  }
  train_step(desk, off, 4);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("moves: graphs of parts of a step change places, and run in the order of their capture") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  train_step(desk, off, 1);
  auto open = off.begin();
  offloader::buffer saved;
  auto one = off.capture(desk.stream(), [&] {
    saved = off.allocate(size, desk.stream());
    desk.write(saved, 2);
    open.commit<"fc1">(0, desk.stream(), saved);
  });
  auto two = off.capture(desk.stream(), [&] {
    open.restore<"fc1">(0, desk.stream(), saved);
    desk.check(saved, 2);
    saved.reset(desk.stream());
  });
  std::swap(one, two);
  two.launch(desk.stream());
  one.launch(desk.stream());
  CHECK(says(message_of([&] { one.launch(desk.stream()); }), "order of their capture"));
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("moves: state on the host takes its name along") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto state = off.state_on_host(size, "moments of layer 0");
  auto fresh = state.create(desk.stream());
  desk.write(fresh, 1);
  state.write_back(fresh, desk.stream());
  auto other = off.state_on_host(size, "moments of layer 1");
  other = std::move(state);
  auto held = other.fetch(desk.stream());
  CHECK(says(message_of([&] { auto again = other.fetch(desk.stream()); }), "moments of layer 0"));
  held.reset(desk.stream());
}

TEST_SUITE_END();
