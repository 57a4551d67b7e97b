// Passes: where they begin and end, what an end without `finish` means, and what the next one
// finds.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "heap_counter.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/trace/record.hpp"

namespace {

using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;
using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;

void work(rig& desk, rig::stream_ref on, double us) {
  desk.dev.launch(on, us * 1000, [] {});
}

// A group of each layer, saved and given up by the trainer.
void forward(rig& desk, offloader& off, offloader::chunk& open, std::vector<rig::buffer>& saved) {
  for (std::size_t l = 0; l < saved.size(); ++l) {
    saved[l] = off.allocate(size, desk.stream());
    desk.write(saved[l], static_cast<std::uint32_t>(l));
    open.commit<"fc1">(static_cast<int>(l), desk.stream(), saved[l]);
  }
}
void restore(rig& desk, offloader::chunk& open, std::vector<rig::buffer>& saved, std::size_t l) {
  open.restore<"fc1">(static_cast<int>(l), desk.stream(), saved[l]);
  desk.check(saved[l], static_cast<std::uint32_t>(l));
  saved[l].reset(desk.stream());
}

}  // namespace

TEST_CASE("passes: in a trace they begin and end where the call was that came before") {
  rig desk;
  const auto second = desk.dev.make_stream();
  offloader off(desk.dev, small_options());
  off.start_trace("", desk.stream());
  auto x = off.allocate(size, desk.stream());
  work(desk, second.ref(), 50);
  auto y = off.allocate(size, second.ref());
  auto open = off.begin();
  work(desk, desk.stream(), 200);
  open.commit<"fc1">(0, desk.stream(), x);
  open.end_forward();
  work(desk, second.ref(), 300);
  open.restore<"fc1">(0, second.ref(), x);
  open.finish();
  x.reset(second.ref());
  y.reset(second.ref());
  const auto passes = off.finish_trace().passes;
  REQUIRE(passes.size() == 2);
  CHECK(passes[0].start >= 50);
  CHECK(passes[0].start < 200);
  CHECK(passes[0].end >= 200);
  CHECK(passes[0].end < 350);
  CHECK(passes[1].start >= 350);
}

TEST_CASE("passes: a forward pass ends with its end_forward, or else with the first restore") {
  for (const bool said : {true, false}) {
    CAPTURE(said);
    rig desk;
    offloader off(desk.dev, small_options());
    off.start_trace("", desk.stream());
    auto x = off.allocate(size, desk.stream());
    auto open = off.begin();
    work(desk, desk.stream(), 100);
    open.commit<"fc1">(0, desk.stream(), x);
    if (said) open.end_forward();
    work(desk, desk.stream(), 100);
    open.restore<"fc1">(0, desk.stream(), x);
    work(desk, desk.stream(), 100);
    open.finish();
    x.reset(desk.stream());
    const auto passes = off.finish_trace().passes;
    REQUIRE(passes.size() == 2);
    CHECK_FALSE(passes[0].backward);
    CHECK(passes[0].end >= (said ? 100 : 200));
    CHECK(passes[0].end < (said ? 200 : 300));
    CHECK(passes[1].backward);
    CHECK(passes[1].start >= 200);
    CHECK(passes[1].end >= 300);
  }
}

TEST_CASE(
    "passes: one that is destroyed after its last restore is learnt like one that is finished") {
  for (const bool finishes : {true, false}) {
    CAPTURE(finishes);
    rig desk;
    auto opts = small_options();
    opts.margin = true;
    offloader off(desk.dev, opts);
    for (int step = 0; step < 2; ++step) {
      auto open = off.begin();
      std::vector<rig::buffer> saved(3);
      forward(desk, off, open, saved);
      for (std::size_t l = 3; l-- > 0;) restore(desk, open, saved, l);
      if (finishes) open.finish();
      open = {};
      off.end_step();
      CHECK(off.profile().chunks.size() == 1);
    }
    CHECK(off.counters().modules.at(0).groups_resident > 0);
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("passes: in the place of one that was given up the next is reloaded ahead") {
  rig desk;
  auto opts = small_options();
  opts.reload_ahead = 1;
  offloader off(desk.dev, opts);
  for (int given_up = 0; given_up < 3; ++given_up) {
    auto open = off.begin();
    std::vector<rig::buffer> saved(1);
    forward(desk, off, open, saved);
  }
  auto open = off.begin();
  std::vector<rig::buffer> saved(2);
  forward(desk, off, open, saved);
  open.end_forward();
  CHECK(desk.dev.reloads() == 1);
  restore(desk, open, saved, 1);
  CHECK(desk.dev.reloads() == 2);
  restore(desk, open, saved, 0);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE(
    "passes: a group that was forgotten once is reloaded ahead after a step that restored it") {
  rig desk;
  auto opts = small_options();
  opts.reload_ahead = 1;
  offloader off(desk.dev, opts);
  for (int step = 0; step < 4; ++step) {
    CAPTURE(step);
    auto open = off.begin();
    std::vector<rig::buffer> saved(1);
    forward(desk, off, open, saved);
    const auto before = desk.dev.reloads();
    open.end_forward();
    // The step after the one that forgot it waits whether that happens again.
    CHECK(desk.dev.reloads() == before + (step == 2 ? 0U : 1U));
    if (step == 1) {
      open.forget<"fc1">(0);
    } else {
      restore(desk, open, saved, 0);
    }
    open.finish();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("passes: one that had to give way before its backward pass is reloaded ahead once more") {
  rig desk;
  auto opts = arena_options(2 * size);
  opts.reload_ahead = 4;
  offloader off(desk.dev, opts);
  auto waiting = off.begin({.microbatch = 0});
  std::vector<rig::buffer> saved(1);
  forward(desk, off, waiting, saved);
  waiting.end_forward();
  CHECK(desk.dev.reloads() == 1);
  auto large = off.allocate(2 * size, desk.stream());
  CHECK(off.counters().evictions == 1);
  large.reset(desk.stream());
  auto next = off.begin({.microbatch = 1});
  next.end_forward();
  CHECK(desk.dev.reloads() == 2);
  restore(desk, waiting, saved, 0);
  CHECK(desk.dev.reloads() == 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("passes: their ends need no memory, however many are open at once") {
  for (std::size_t count = 1; count < 20; ++count) {
    CAPTURE(count);
    rig desk;
    offloader off(desk.dev, small_options());
    std::vector<offloader::chunk> open;
    for (std::size_t i = 0; i < count; ++i) open.push_back(off.begin());
    const auto before = tidepool::test::heap_allocations();
    for (auto& each : open) each = {};
    CHECK(tidepool::test::heap_allocations() == before);
  }
}

TEST_CASE("passes: what only others hold on the device is read behind the stream that wrote it") {
  rig desk;
  const auto second = desk.dev.make_stream();
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 3, 100'000);
  auto y = x.share();
  const auto held = x.share();
  open.commit<"fc1">(0, desk.stream(), x);
  open.commit<"fc1">(1, desk.stream(), y);
  open.restore<"fc1">(1, second.ref(), y);
  CHECK(desk.dev.reloads() == 0);
  desk.check_rows(y.data(), {size, 1, size, 0}, 3, 0, second.ref());
  y.reset(second.ref());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("passes: what came back is free without the work that its stream was given afterwards") {
  rig desk;
  const auto second = desk.dev.make_stream();
  offloader off(desk.dev, arena_options(size));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit<"fc1">(0, desk.stream(), x);
  open.restore<"fc1">(0, desk.stream(), x);
  auto restored = desk.dev.make_event();
  desk.dev.record(restored, desk.stream());
  desk.dev.wait(second.ref(), restored);
  work(desk, desk.stream(), 5000);
  x.reset(second.ref());
  auto y = off.allocate(size, second.ref());
  double ended = 0;
  desk.dev.launch(second.ref(), 1000, [&] { ended = desk.dev.now_ns(); });
  desk.dev.synchronize();
  CHECK(ended < 5'000'000);
}

TEST_CASE("passes: a host block that nobody has read is taken again without a wait for a reload") {
  rig desk;
  const auto second = desk.dev.make_stream();
  auto opts = small_options();
  opts.host_budget = 2 * size;
  opts.host_step = 2 * size;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(size, second.ref());
  open.commit<"fc1">(0, desk.stream(), x);
  open.restore<"fc1">(0, desk.stream(), x);
  open.finish();
  auto used = desk.dev.make_event();
  desk.dev.record(used, desk.stream());
  desk.dev.wait(second.ref(), used);
  auto next = off.begin();
  next.commit<"fc1">(0, second.ref(), x);
  next.forget<"fc1">(0);
  const auto waits = desk.dev.waits;
  next.commit<"fc1">(1, second.ref(), y);
  CHECK(desk.dev.waits == waits + 1);  // for who wrote it
}

TEST_CASE("passes: a host block that a failed commit gave back is taken again without a wait") {
  rig desk;
  const auto second = desk.dev.make_stream();
  auto opts = small_options();
  opts.places = {tidepool::place_kind::peer, tidepool::place_kind::host};
  opts.peer_budget = size;
  opts.host_budget = size;
  opts.host_step = size;
  offloader off(desk.dev, opts);
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(size, desk.stream());
  auto z = off.allocate(size, second.ref());
  {
    auto open = off.begin();
    open.commit<"fc1">(0, desk.stream(), x);  // to the neighbour
    open.restore<"fc1">(0, desk.stream(), x);
    open.finish();
  }
  auto used = desk.dev.make_event();
  desk.dev.record(used, desk.stream());
  desk.dev.wait(second.ref(), used);
  auto open = off.begin();
  open.commit<"fc1">(0, desk.stream(), y);  // in its place there
  desk.dev.before_copy = [] { throw tidepool::device_error("no copy", 1); };
  CHECK_THROWS_AS(open.commit<"fc1">(1, second.ref(), x), tidepool::device_error);
  desk.dev.before_copy = nullptr;
  const auto waits = desk.dev.waits;
  open.commit<"fc1">(2, second.ref(), z);
  CHECK(desk.dev.waits == waits + 1);  // for who wrote it
  CHECK(off.counters().places.at(1).bytes_offloaded == size);
}

TEST_CASE("passes: one that is assigned keeps to the modules that may leave") {
  using two = rig::offloader<tidepool::modules<"fc1", "act">>;
  rig desk;
  two off(desk.dev, small_options({"fc1"}));
  two::chunk open;
  open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit<"act">(0, desk.stream(), x);
  open.end_forward();
  CHECK(off.counters().modules[1].bytes_offloaded == 0);
  open.restore<"act">(0, desk.stream(), x);
  open.finish();
}
