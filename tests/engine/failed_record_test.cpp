// A step goes on where its record for a plan cannot; its end says so, and the next is the first.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "faulty_device.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "sanitizers.hpp"

namespace {

using namespace tidepool::test;
using device = faulty_device<tidepool::virtual_device>;
using offloader = tidepool::test::planning<tidepool::offloader<device, tidepool::modules<"fc1">>>;

constexpr std::size_t size = 2048;

tidepool::options recorded() {
  auto opts = arena_options(4 * size);
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 200;
  return opts;
}

void evaluate(offloader& off, device::stream_ref on) {
  auto chunk = off.begin({.forward_only = true});
  off.allocate(size, on).reset(on);
  chunk.finish();
}

// Every call that a step has; those that fail are made again. False where its end failed.
bool step(offloader& off, device::stream_ref on) {
  const auto until_done = [](const auto& call) {
    for (int tries = 0;; ++tries) {
      try {
        return call();
      } catch (const tidepool::device_error&) {
        REQUIRE(tries == 0);
      }
    }
  };
  offloader::chunk chunk;
  until_done([&] { chunk = off.begin(); });
  offloader::buffer whole;
  offloader::buffer other;
  until_done([&] { whole = off.allocate(size, on); });
  until_done([&] { other = off.allocate(size, on); });
  auto part = whole.view({.offset = 0, .width = size / 2});
  until_done([&] { whole.reset(on); });
  until_done([&] { chunk.commit<"fc1">(0, on, part, other); });
  until_done([&] { chunk.restore<"fc1">(0, on, part, other); });
  CHECK(part);
  CHECK(other);
  until_done([&] { part.reset(on); });
  until_done([&] { other.reset(on); });
  chunk.finish();
  try {
    off.end_step();
    return true;
  } catch (const tidepool::device_error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("recorded step: an event that is refused costs the record, and nothing else") {
  bool fired = true;
  int ends_failed = 0;
  for (std::uint64_t number = 1; fired; number += tidepool::test::thinned_if_short) {
    CAPTURE(number);
    device dev;
    auto stream = dev.make_stream();
    offloader off(dev, recorded());
    off.on_report([](auto) {});
    evaluate(off, stream.ref());
    dev.arm({call_kind::record, number, manner::once});
    const bool ended = step(off, stream.ref());
    fired = dev.tripped();
    dev.disarm();
    // What failed after the end of the first step is told at the end of the second.
    const bool both_ended = step(off, stream.ref()) && ended;
    if (!both_ended) ++ends_failed;
    for (int i = 0; i < 2; ++i) CHECK(step(off, stream.ref()));
    CHECK(off.current_plan());
    // All memory has come back.
    auto all = off.allocate(4 * size, stream.ref());
    all.reset(stream.ref());
    dev.synchronize();
  }
  CHECK(ends_failed > (tidepool::test::thinned_if_short == 1 ? 5 : 0));
}

TEST_CASE("recorded step: one whose measuring failed leaves nothing to plan of") {
  rig desk;
  auto opts = arena_options(8192);
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 200;
  tidepool::test::planning<rig::offloader<tidepool::modules<"fc1">>> off(desk.dev, opts);
  off.on_report([](auto) {});
  int calls = 0;
  off.on_measure([&] {
    if (++calls == 1) throw std::runtime_error("the other rank is gone");
  });
  const auto whole = [&] {
    auto chunk = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    chunk.commit<"fc1">(0, desk.stream(), x);
    chunk.restore<"fc1">(0, desk.stream(), x);
    desk.check(x, 1);
    x.reset(desk.stream());
    chunk.finish();
  };
  whole();
  CHECK_THROWS_AS(off.end_step(), std::runtime_error);
  { auto nothing = off.begin(); }  // given up before its first call
  off.end_step();
  for (int i = 0; i < 3; ++i) {
    whole();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("recorded step: a record that could not begin leaves none of its marks to the next") {
  device dev;
  auto stream = dev.make_stream();
  offloader off(dev, recorded());
  off.on_report([](auto) {});
  REQUIRE(step(off, stream.ref()));
  dev.arm({call_kind::record, 1, manner::once});
  off.end_step();  // of no chunk; the record of the next step begins here
  CHECK(dev.tripped());
  dev.disarm();
  CHECK_FALSE(step(off, stream.ref()));
  {
    auto chunk = off.begin();  // a step of one event, which has no time
    chunk.end_forward();
    chunk.finish();
  }
  off.end_step();
  for (int i = 0; i < 3; ++i) CHECK(step(off, stream.ref()));
  CHECK(off.current_plan());
}
