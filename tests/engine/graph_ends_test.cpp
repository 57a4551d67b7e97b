// Graphs that end or fail with work still queued, and what they leave to others.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "engines.hpp"
#include "faulty_device.hpp"
#include "heap_fault.hpp"
#include "messages.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/graph.hpp"
#include "tidepool/places/lending.hpp"

namespace {

using tidepool::device_error;
using tidepool::machine;
using tidepool::virtual_device;
using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using modules = tidepool::modules<"fc1">;
using offloader = rig::offloader<modules>;

constexpr std::size_t size = 2048;

// One tensor that leaves and comes back, on any device.
template <class Offloader, class Stream>
void step(Offloader& off, Stream stream) {
  auto open = off.begin();
  auto x = off.allocate(size, stream);
  open.template commit<"fc1">(0, stream, x);
  open.template restore<"fc1">(0, stream, x);
  x.reset(stream);
  open.finish();
  off.end_step();
}

struct own_error {};

}  // namespace

TEST_CASE("graph: eager work comes after copies from before a capture that could not end") {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options(size));
    step(off, desk.stream());
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    open.commit<"fc1">(0, desk.stream(), x);
    const auto body = [&] { desk.dev.before_record = [] { throw device_error("no record", 1); }; };
    CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(), body)), device_error);
    desk.dev.before_record = nullptr;
    auto y = off.allocate(size, desk.stream());  // in the place of what is still being copied
    desk.write(y, 2);
    y.reset(desk.stream());
    open.restore<"fc1">(0, desk.stream(), x);
    desk.check(x, 1);
    wrong += desk.wrong();
    x.reset(desk.stream());
    open.finish();
  }
  CHECK(wrong == 0);
}

TEST_CASE("graph: memory goes back to the device once the last launch has run") {
  tidepool::test::faulty_device<virtual_device> dev;
  const auto stream = dev.make_stream();
  {
    tidepool::offloader<decltype(dev), modules> off(dev, arena_options(2 * size));
    step(off, stream.ref());
    auto graph = off.capture(stream.ref(), [&] { step(off, stream.ref()); });
    graph.launch(stream.ref());
    CHECK(dev.flying() > 0);
  }
  CHECK(dev.held().device_blocks == 0);
  CHECK(dev.freed_in_use() == 0);
}

TEST_CASE("unwinding: behind a launch, too, no work of others is run in the middle of it") {
  rig desk;
  const auto second = desk.dev.make_stream();
  int ran = 0;
  const auto fail = [&] {
    offloader off(desk.dev, arena_options(2 * size));
    int here = 1;  // of a frame that is gone when the offloader is
    step(off, desk.stream());
    auto graph = off.capture(desk.stream(), [&] { step(off, desk.stream()); });
    graph.launch(desk.stream());
    desk.dev.launch(desk.stream(), 1000, [&ran, at = &here] { ran += *at; });
    desk.dev.launch(second.ref(), 1000, [&ran] { ++ran; });
    throw own_error();
  };
  CHECK_THROWS_AS(fail(), own_error);
  CHECK(ran == 0);
  desk.dev.synchronize();
  CHECK(ran == 1);
}

TEST_CASE("graph: one that took another's place asks for the lender as that one did") {
  virtual_device neighbour;
  auto lent = tidepool::lend(neighbour, 4096, "rank 1");
  rig desk;
  offloader off(desk.dev, small_options());
  const auto nothing = [&] { desk.dev.launch(desk.stream(), 10, [] {}); };
  off.borrow(lent.handle(), tidepool::lender_gone::moves_on);
  step(off, desk.stream());
  auto moved = off.capture(desk.stream(), nothing);
  auto whole = off.capture(desk.stream(), [&] { step(off, desk.stream()); });
  moved = std::move(whole);
  moved.launch(desk.stream());
  lent.take_back();
  CHECK_THROWS_AS(moved.launch(desk.stream()), tidepool::lender_error);
  whole.launch(desk.stream());  // has what the other had, and copies nothing
  desk.dev.synchronize();
}

TEST_CASE("graph: a launch behind another misses a tensor that went where no event could be had") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  step(off, desk.stream());
  auto x = off.allocate(size, desk.stream());
  auto graph = off.capture(desk.stream(), [&] { desk.dev.launch(desk.stream(), 10, [] {}); });
  graph.launch(desk.stream());
  graph.launch(desk.stream());
  desk.dev.before_record = [] { throw device_error("no event", 1); };
  x = {};
  desk.dev.before_record = nullptr;
  CHECK(says(message_of([&] { graph.launch(desk.stream()); }),
             "launch: the memory is not as it was when this graph was captured (a tensor of 2048"
             " bytes"));
}

TEST_CASE("graph: a launch behind another on its stream takes nothing from the heap") {
  using tidepool::test::heap_now;
  tidepool::test::faulty_device<virtual_device> dev;
  const auto stream = dev.make_stream();
  tidepool::offloader<decltype(dev), modules> off(dev, arena_options(2 * size));
  step(off, stream.ref());
  const auto held = off.allocate(size, stream.ref());
  auto graph = off.capture(stream.ref(), [&] { step(off, stream.ref()); });
  graph.launch(stream.ref());
  heap_now = {};
  for (int i = 0; i < 3; ++i) {
    const tidepool::test::heap_watch on(true);
    graph.launch(stream.ref());
  }
  CHECK(heap_now.seen == 0);
}

TEST_CASE("graph: which tensors of a capture went is forgotten once no graph can ask for it") {
  using device = rig::device_type;
  using tidepool::detail::engine;
  using tidepool::detail::graph_gate;
  for (const bool captures_next : {false, true}) {
    CAPTURE(captures_next);
    rig desk;
    auto* const on = new engine(std::make_unique<tidepool::detail::hardware_of<device>>(desk.dev),
                                arena_options(2 * size), {"fc1"}, 1);
    on->adopt({}, {});
    const auto capture = [&](auto body) {
      const auto origin = tidepool::detail::lane_to_release<device>(*on, desk.stream());
      graph_gate::of(*on).begin(origin);
      body();
      static_cast<void>(graph_gate::of(*on).end(origin));
    };
    rig::buffer x;
    capture([&] {
      const auto lane = tidepool::detail::lane_of<device>(*on, desk.stream());
      x = tidepool::detail::buffer_of<device>(on->allocate(size, size, lane));
    });
    x.reset(desk.stream());
    const auto& gone = on->memory().gone();
    CHECK(gone.size() == 1);
    if (captures_next) {
      capture([&] { CHECK(gone.empty()); });
    } else {
      static_cast<void>(tidepool::detail::lane_of<device>(*on, desk.stream()));
      CHECK(gone.empty());
    }
    engine::release(on);
  }
}

TEST_CASE("graph: a tensor in hand that moved in a capture is missed, though its copy is there") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  step(off, desk.stream());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  auto y = x.share();
  auto z = x.share();
  open.commit<"fc1">(0, desk.stream(), x);
  open.commit<"fc1">(1, desk.stream(), y);
  const auto* const before = z.data();
  auto graph = off.capture(desk.stream(), [&] {
    z.reset(desk.stream());
    auto in_its_place = off.allocate(size, desk.stream());
    auto beside = off.allocate(size, desk.stream());
    open.restore<"fc1">(1, desk.stream(), y);
    in_its_place.reset(desk.stream());
    beside.reset(desk.stream());
  });
  REQUIRE(y.data() != before);
  const auto eager = [&] { static_cast<void>(off.allocate(size, desk.stream())); };
  CHECK(says(message_of(eager), "a tensor is not where its handle says"));
  graph.launch(desk.stream());
  eager();
  desk.check(y, 1);
  CHECK(desk.wrong() == 0);
}
