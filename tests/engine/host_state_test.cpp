// State that lives on the host and visits the device.
#include "tidepool/host_state.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "faulty_device.hpp"
#include "messages.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/trace/summary.hpp"

namespace {

using tidepool::machine;
using tidepool::misuse_error;
using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn">>;
using host_state = tidepool::host_state<rig::device_type>;

constexpr std::size_t size = 2048;

std::vector<host_state> states_of(rig& desk, offloader& off, int count) {
  std::vector<host_state> all;
  for (int i = 0; i < count; ++i) {
    all.push_back(off.state_on_host(size, "moments of layer " + std::to_string(i)));
    auto fresh = all.back().create(desk.stream());
    desk.write(fresh, static_cast<std::uint32_t>(i));
    all.back().write_back(fresh, desk.stream());
  }
  return all;
}

}  // namespace

TEST_CASE("host_state: every update sees the one before it, with room for two on the device") {
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    for (const bool ahead : {false, true}) {
      CAPTURE(seed);
      CAPTURE(ahead);
      rig desk(machine{.order_seed = seed});
      offloader off(desk.dev, arena_options(2 * size));
      constexpr int layers = 5;
      auto all = states_of(desk, off, layers);
      for (std::uint32_t step = 0; step < 3; ++step) {
        for (int l = 0; l < layers; ++l) {
          const auto tag = step * layers + static_cast<std::uint32_t>(l);
          auto& state = all[static_cast<std::size_t>(l)];
          auto here = state.fetch(desk.stream());
          if (ahead) all[static_cast<std::size_t>((l + 1) % layers)].prefetch();
          desk.check(here, tag);
          desk.write(here, tag + layers);
          state.write_back(here, desk.stream());
          CHECK_FALSE(here);
        }
      }
      CHECK(desk.wrong() == 0);
      CHECK(off.counters().live_peak <= 2 * size);
      CHECK(off.counters().state_written == (3 + 1) * layers * size);
      CHECK(off.counters().state_fetched >= 3 * layers * size);
    }
  }
}

TEST_CASE("host_state: one that was moved from has no bytes") {
  rig desk(machine{});
  offloader off(desk.dev, arena_options(2 * size));
  auto all = states_of(desk, off, 1);
  CHECK(all[0].size() == size);
  const host_state taken = std::move(all[0]);
  CHECK(taken.size() == size);
  CHECK(all[0].size() == 0);  // NOLINT(bugprone-use-after-move): what is asked here
}

TEST_CASE("host_state: what is only read need not be written back, and may be read again") {
  rig desk(machine{.order_seed = 4});
  offloader off(desk.dev, arena_options(size));
  auto all = states_of(desk, off, 2);
  for (int turn = 0; turn < 3; ++turn) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      auto page = all[i].fetch(desk.stream());
      desk.check(page, i);
      page.reset(desk.stream());
    }
  }
  CHECK(desk.wrong() == 0);
  CHECK(off.counters().state_written == 2 * size);
}

TEST_CASE("host_state: new contents do not overtake a copy in that still reads the old ones") {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    rig desk(machine{.order_seed = seed});
    const auto second = desk.dev.make_stream();
    offloader off(desk.dev, arena_options(2 * size));
    auto all = states_of(desk, off, 1);
    desk.dev.synchronize();
    auto spare = off.allocate(size, second.ref());
    REQUIRE(all[0].prefetch());
    CHECK_FALSE(all[0].prefetch());  // on its way
    spare.reset(second.ref());
    // Into the spare block, so that this stream need not wait for the copy in, which writes the
    // other one.
    auto fresh = all[0].create(second.ref());
    desk.write_bytes(fresh.data(), size, 9, second.ref());
    rig::buffer last;
    if (seed % 2 == 0) {
      last = off.allocate(size, second.ref());
      desk.write_bytes(last.data(), size, 10, second.ref());
    }
    all[0].write_back(fresh, second.ref());
    if (last) desk.check_rows(last.data(), {size, 1, size, 0}, 10, 0, second.ref());
    last.reset(second.ref());
    auto back = all[0].fetch(desk.stream());
    desk.check(back, 9);
    back.reset(desk.stream());
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("host_state: new contents do not overtake a reader on another stream") {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    rig desk(machine{.order_seed = seed});
    const auto second = desk.dev.make_stream();
    auto opts = small_options();
    opts.device_step = size;  // each block a step of its own, so that they share no fence
    offloader off(desk.dev, opts);
    auto all = states_of(desk, off, 1);
    auto spare = off.allocate(size, second.ref());
    desk.dev.synchronize();
    auto old = all[0].fetch(desk.stream());
    desk.check(old, 0);
    old.reset(desk.stream());
    spare.reset(second.ref());
    auto fresh = all[0].create(second.ref());
    desk.write_bytes(fresh.data(), size, 9, second.ref(), 1);
    all[0].write_back(fresh, second.ref());
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("host_state: what was fetched ahead and is in use gives way to nobody") {
  rig desk;
  offloader off(desk.dev, arena_options(size));
  auto all = states_of(desk, off, 1);
  REQUIRE(all[0].prefetch());
  auto here = all[0].fetch(desk.stream());
  CHECK_THROWS_AS(static_cast<void>(off.allocate(size, desk.stream())), tidepool::out_of_budget);
  desk.check(here, 0);
  here.reset(desk.stream());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("host_state: what was fetched ahead gives way to saved tensors, and comes again") {
  rig desk(machine{.order_seed = 2});
  offloader off(desk.dev, arena_options(size));
  auto all = states_of(desk, off, 1);
  REQUIRE(all[0].prefetch());
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 50);
  CHECK_FALSE(all[0].prefetch());  // no room
  CHECK_THROWS_AS(static_cast<void>(all[0].fetch(desk.stream())), tidepool::out_of_budget);
  desk.check(x, 50);
  x.reset(desk.stream());
  auto back = all[0].fetch(desk.stream());
  desk.check(back, 0);
  back.reset(desk.stream());
  CHECK(desk.wrong() == 0);
  CHECK(off.counters().evictions == 1);
}

TEST_CASE("host_state: misuse is refused in words") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto state = off.state_on_host(size, "pages");
  CHECK(says(message_of([&] { static_cast<void>(state.fetch(desk.stream())); }),
             "fetch of pages: nothing was ever written"));
  CHECK_FALSE(state.prefetch());
  auto fresh = state.create(desk.stream());
  CHECK(says(message_of([&] { static_cast<void>(state.create(desk.stream())); }),
             "create of pages: it is on the device already"));
  auto other = off.allocate(size, desk.stream());
  CHECK(says(message_of([&] { state.write_back(other, desk.stream()); }),
             "write_back of pages: this is not the buffer"));
  CHECK(other);
  state.write_back(fresh, desk.stream());
  auto here = state.fetch(desk.stream());
  CHECK(says(message_of([&] { static_cast<void>(state.fetch(desk.stream())); }),
             "fetch of pages: it is on the device already"));
  here.reset(desk.stream());
  other.reset(desk.stream());
  auto moved = std::move(state);
  CHECK(says(message_of([&] { static_cast<void>(state.create(desk.stream())); }), "is empty"));
}

TEST_CASE("host_state: a host budget that is spent is named, and memory returns with the state") {
  rig desk;
  auto opts = small_options();
  opts.host_budget = 4096;
  opts.host_step = 1024;
  offloader off(desk.dev, opts);
  auto first = off.state_on_host(3000, "first");
  CHECK_THROWS_AS(static_cast<void>(off.state_on_host(3000, "second")), tidepool::out_of_budget);
  first = {};
  auto second = off.state_on_host(3000, "second");
  CHECK(second.size() == 3000);
}

TEST_CASE("host_state: it may go before its buffer, and after its offloader") {
  rig desk(machine{.order_seed = 7});
  host_state kept;
  {
    offloader off(desk.dev, small_options());
    auto all = states_of(desk, off, 3);
    auto here = all[0].fetch(desk.stream());
    all[0] = {};
    desk.check(here, 0);
    all[1].prefetch();
    here.reset(desk.stream());
    kept = std::move(all[2]);
  }
  CHECK(kept.size() == size);
  kept = {};
  CHECK(desk.wrong() == 0);
}

TEST_CASE("host_state: a capture that fails leaves the contents from before it") {
  rig desk(machine{.order_seed = 3});
  offloader off(desk.dev, arena_options(2 * size));
  auto all = states_of(desk, off, 1);
  auto empty = off.state_on_host(size, "empty");
  auto open = off.begin();
  open.finish();
  auto x = off.allocate(size, desk.stream());
  auto step = off.begin();
  step.commit<"core_attn">(0, desk.stream(), x);
  step.restore<"core_attn">(0, desk.stream(), x);
  x.reset(desk.stream());
  step.finish();
  off.end_step();
  struct own_error {};
  const auto body = [&] {
    REQUIRE(all[0].prefetch());
    auto fresh = empty.create(desk.stream());
    CHECK_THROWS_AS(empty.write_back(fresh, desk.stream()), misuse_error);
    fresh.reset(desk.stream());
    throw own_error{};
  };
  CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(), body)), own_error);
  CHECK_THROWS_AS(static_cast<void>(empty.fetch(desk.stream())), misuse_error);
  auto back = all[0].fetch(desk.stream());
  desk.check(back, 0);
  back.reset(desk.stream());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("host_state: its buffer is no saved tensor") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto all = states_of(desk, off, 1);
  auto here = all[0].fetch(desk.stream());
  auto open = off.begin();
  const auto text = message_of([&] { open.commit<"core_attn">(0, desk.stream(), here); });
  CHECK(says(text, "belongs to a host_state; write_back it"));
  CHECK(here);
  here.reset(desk.stream());
}

TEST_CASE("host_state: one that is made between launches of a graph disturbs nothing") {
  rig desk(machine{.order_seed = 6});
  offloader off(desk.dev, small_options());
  const auto step = [&] {
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    open.commit<"core_attn">(0, desk.stream(), x);
    open.restore<"core_attn">(0, desk.stream(), x);
    desk.check(x, 1);
    x.reset(desk.stream());
    open.finish();
  };
  for (int i = 0; i < 2; ++i) {
    step();
    off.end_step();
  }
  auto graph = off.capture(desk.stream(), step);
  graph.launch(desk.stream());
  auto state = off.state_on_host(size, "late");
  auto fresh = state.create(desk.stream());
  desk.write(fresh, 3);
  state.write_back(fresh, desk.stream());
  step();
  auto back = state.fetch(desk.stream());
  desk.check(back, 3);
  back.reset(desk.stream());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("host_state: one that finds no room on the host changes nothing for a graph") {
  rig desk;
  auto opts = arena_options(4 * size);
  opts.host_budget = 4 * size;
  offloader off(desk.dev, opts);
  const auto step = [&] {
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    open.commit<"core_attn">(0, desk.stream(), x);
    open.restore<"core_attn">(0, desk.stream(), x);
    x.reset(desk.stream());
    open.finish();
    off.end_step();
  };
  step();
  auto graph = off.capture(desk.stream(), step);
  graph.launch(desk.stream());
  CHECK_THROWS_AS(static_cast<void>(off.state_on_host(8 * size, "moments")),
                  tidepool::out_of_budget);
  graph.launch(desk.stream());
}

TEST_CASE("host_state: one that goes after a launch gives its host memory back") {
  rig desk;
  auto opts = arena_options(4 * size);
  opts.host_step = size;
  opts.host_budget = 2 * size;
  offloader off(desk.dev, opts);
  auto kept = states_of(desk, off, 1);
  const auto visit = [&] {
    auto x = kept[0].fetch(desk.stream());
    kept[0].write_back(x, desk.stream());
  };
  off.begin().finish();
  off.end_step();
  visit();
  auto going = off.state_on_host(size, "going");
  auto graph = off.capture(desk.stream(), visit);
  CHECK_THROWS_AS(static_cast<void>(off.state_on_host(size, "more")), tidepool::out_of_budget);
  graph.launch(desk.stream());
  { const auto gone = std::move(going); }
  const auto more = off.state_on_host(size, "more");
  CHECK(desk.wrong() == 0);
}

TEST_CASE("host_state: fetched ahead after a launch, it has what the graph wrote") {
  for (std::uint64_t seed = 0; seed <= 12; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options(4 * size));
    auto states = states_of(desk, off, 1);
    const auto visit = [&] {
      auto x = states[0].fetch(desk.stream());
      desk.write(x, 7, 50'000);
      states[0].write_back(x, desk.stream());
    };
    off.begin().finish();
    off.end_step();
    visit();
    auto graph = off.capture(desk.stream(), visit);
    auto x = states[0].fetch(desk.stream());
    desk.write(x, 3);
    states[0].write_back(x, desk.stream());
    graph.launch(desk.stream());
    states[0].prefetch();
    x = states[0].fetch(desk.stream());
    desk.check(x, 7);
    x.reset(desk.stream());
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("host_state: one that was fetched ahead of a capture is fetched in its graph") {
  for (std::uint64_t seed = 0; seed <= 12; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options(4 * size));
    off.on_report([](auto) {});
    auto states = states_of(desk, off, 1);
    const auto read = [&] {
      auto x = states[0].fetch(desk.stream());
      desk.check(x, 0);
      x.reset(desk.stream());
    };
    off.begin().finish();
    off.end_step();
    read();
    REQUIRE(states[0].prefetch());
    auto graph = off.capture(desk.stream(), read);
    const auto reloads = desk.dev.reloads();
    for (int i = 0; i < 2; ++i) graph.launch(desk.stream());
    CHECK(states[0].prefetch());
    CHECK(desk.dev.reloads() - reloads == 1);
    read();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("host_state: one that is fetched ahead in a capture is there for the next of the step") {
  rig desk(machine{.order_seed = 5});
  offloader off(desk.dev, arena_options(4 * size));
  off.on_report([](auto) {});
  auto states = states_of(desk, off, 1);
  off.begin().finish();
  off.end_step();
  REQUIRE(states[0].prefetch());
  auto ahead = off.capture(desk.stream(), [&] { CHECK(states[0].prefetch()); });
  auto use = off.capture(desk.stream(), [&] {
    auto x = states[0].fetch(desk.stream());
    desk.check(x, 0);
    x.reset(desk.stream());
  });
  for (int i = 0; i < 2; ++i) {
    ahead.launch(desk.stream());
    use.launch(desk.stream());
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("host_state: one that was moved from holds nothing") {
  rig desk;
  offloader off(desk.dev, small_options());
  host_state none;
  CHECK_FALSE(none);
  auto state = off.state_on_host(size, "moments");
  CHECK(state);
  none = std::move(state);
  CHECK(none);
  CHECK_FALSE(state);
}

TEST_CASE("host_state: when it is gone, a buffer of it that is held is like any other") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  rig::buffer x;
  {
    auto states = states_of(desk, off, 1);
    x = states[0].fetch(desk.stream());
    CHECK_THROWS_AS(open.commit<"core_attn">(0, desk.stream(), x), misuse_error);
  }
  open.commit<"core_attn">(0, desk.stream(), x);
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("host_state: what a visit that failed had queued is not copied with the next") {
  rig desk;
  auto opts = small_options();
  opts.copy_piece = size / 2;
  offloader off(desk.dev, opts);
  auto states = states_of(desk, off, 1);
  const auto fail_at_second = [&] {
    desk.dev.before_copy = [copies = 0]() mutable {
      if (++copies == 2) throw tidepool::device_error("the second copy fails", 1);
    };
  };
  fail_at_second();
  CHECK_THROWS_AS(static_cast<void>(states[0].fetch(desk.stream())), tidepool::device_error);
  desk.dev.before_copy = {};
  auto before = desk.dev.reloads();
  auto x = states[0].fetch(desk.stream());
  CHECK(desk.dev.reloads() - before == 2);
  desk.check(x, 0);
  fail_at_second();
  CHECK_THROWS_AS(states[0].write_back(x, desk.stream()), tidepool::device_error);
  desk.dev.before_copy = {};
  before = desk.dev.offloads();
  states[0].write_back(x, desk.stream());
  CHECK(desk.dev.offloads() - before == 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("host_state: a visit that fails once it is on the device leaves no memory taken there") {
  rig desk;
  offloader off(desk.dev, arena_options(size));
  auto states = states_of(desk, off, 1);
  const auto fetch = [&] { return states[0].fetch(desk.stream()); };
  const auto reloads = desk.dev.reloads();
  desk.dev.before_wait = [&] {
    if (desk.dev.reloads() > reloads) throw tidepool::device_error("no wait", 1);
  };
  CHECK_THROWS_AS(static_cast<void>(fetch()), tidepool::device_error);
  desk.dev.before_wait = nullptr;
  {
    const auto other = off.allocate(size, desk.stream());
    CHECK(off.counters().evictions == 0);
  }
  auto x = fetch();
  desk.check(x, 0);
  x.reset(desk.stream());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("host_state: contents of which a part alone was written are not read") {
  using device = tidepool::test::faulty_device<tidepool::virtual_device>;
  device dev;
  auto stream = dev.make_stream();
  auto opts = arena_options(4 * size);
  opts.copy_piece = size / 2;
  tidepool::offloader<device, tidepool::modules<"core_attn">> off(dev, opts);
  auto state = off.state_on_host(size, "moments");
  auto first = state.create(stream.ref());
  state.write_back(first, stream.ref());
  auto changed = state.fetch(stream.ref());
  dev.arm({tidepool::test::call_kind::copy, 2, tidepool::test::manner::once});
  CHECK_THROWS_AS(state.write_back(changed, stream.ref()), tidepool::device_error);
  dev.disarm();
  SUBCASE("the update is written after all") {
    state.write_back(changed, stream.ref());
    CHECK(state.fetch(stream.ref()));
  }
  SUBCASE("the update is given up") {
    changed.reset(stream.ref());
    CHECK_FALSE(state.prefetch());
    CHECK(says(message_of([&] { static_cast<void>(state.fetch(stream.ref())); }),
               "the last write_back failed"));
    auto again = state.create(stream.ref());
    state.write_back(again, stream.ref());
    CHECK(state.fetch(stream.ref()));
  }
}
