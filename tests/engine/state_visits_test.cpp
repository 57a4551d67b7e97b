// State that lives on the host: what a visit waits for, what it costs others, and when it fails.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "caching_allocator.hpp"
#include "faulty_device.hpp"
#include "heap_fault.hpp"
#include "rig.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/error.hpp"
#include "tidepool/host_state.hpp"

namespace {

using tidepool::device_error;
using tidepool::machine;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<>;
using host_state = tidepool::host_state<rig::device_type>;

constexpr std::size_t size = 2048;

host_state written(rig& desk, offloader& off, std::uint32_t tag) {
  auto state = off.state_on_host(size, "moments");
  auto fresh = state.create(desk.stream());
  desk.write(fresh, tag);
  state.write_back(fresh, desk.stream());
  return state;
}

}  // namespace

TEST_CASE("state visits: who waits for its buffer waits for what its stream wrote there") {
  for (std::uint64_t seed = 0; seed <= 20; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    const auto second = desk.dev.make_stream();
    offloader off(desk.dev, arena_options(size));
    auto state = written(desk, off, 1);
    auto here = state.fetch(second.ref());
    desk.write_bytes(here.data(), size, 2, second.ref(), 50'000);
    off.wait_for(here, desk.stream());
    desk.check(here, 2);
    here.reset(desk.stream());
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("state visits: after a write_back that failed, its stream is still waited for") {
  for (std::uint64_t seed = 0; seed <= 20; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    const auto second = desk.dev.make_stream();
    auto fetched = desk.dev.make_event();
    offloader off(desk.dev, arena_options(size));
    auto state = written(desk, off, 1);
    auto here = state.fetch(desk.stream());
    desk.dev.record(fetched, desk.stream());
    desk.dev.wait(second.ref(), fetched);
    desk.write_bytes(here.data(), size, 2, second.ref(), 50'000);
    desk.dev.before_wait = [] { throw device_error("no wait", 1); };
    CHECK_THROWS_AS(state.write_back(here, second.ref()), device_error);
    desk.dev.before_wait = {};
    here.reset(desk.stream());
    auto other = off.allocate(size, desk.stream());
    desk.write(other, 3);
    desk.dev.launch(desk.stream(), 90'000, [] {});
    desk.check(other, 3);
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("state visits: a pool does not grow for each state whose copy is under way") {
  rig desk;
  auto opts = small_options();
  opts.device_step = size;
  opts.max_inflight = 1;
  offloader off(desk.dev, opts);
  std::array<host_state, 40> all;
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = written(desk, off, i);
  CHECK(off.counters().device_reserved <= 3 * size);  // one in use, and two under way
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    auto here = all[i].fetch(desk.stream());
    desk.check(here, i);
    here.reset(desk.stream());
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("state visits: fetched ahead behind a launch, it is copied once") {
  rig desk;
  offloader off(desk.dev, arena_options(4 * size));
  off.on_report([](auto) {});
  auto state = written(desk, off, 1);
  const auto visit = [&] {
    auto here = state.fetch(desk.stream());
    desk.write(here, 7);
    state.write_back(here, desk.stream());
  };
  off.begin().finish();
  off.end_step();
  visit();
  auto graph = off.capture(desk.stream(), visit);
  graph.launch(desk.stream());
  desk.dev.synchronize();
  const auto before = desk.dev.reloads();
  CHECK(state.prefetch());
  auto here = state.fetch(desk.stream());
  desk.check(here, 7);
  here.reset(desk.stream());
  CHECK(desk.dev.reloads() - before == 1);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("state visits: one that cannot be fetched ahead for want of host memory is not there") {
  using device = tidepool::test::faulty_device<tidepool::virtual_device>;
  using tidepool::test::heap_now;
  bool failed = true;
  for (std::uint64_t k = 1; failed && k < 50; ++k) {
    CAPTURE(k);
    device dev{machine{}};
    const auto stream = dev.make_stream();
    tidepool::offloader<device, tidepool::all_modules> off(dev, arena_options(size));
    auto state = off.state_on_host(size, "moments");
    auto fresh = state.create(stream.ref());
    state.write_back(fresh, stream.ref());
    failed = false;
    heap_now = {true, 0, k};
    try {
      static_cast<void>(state.prefetch());
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    heap_now = {};
    CHECK((failed || k > 1));
    CHECK_NOTHROW(off.allocate(size, stream.ref()).reset(stream.ref()));
    CHECK(state.prefetch());
  }
  CHECK_FALSE(failed);
}

TEST_CASE("state visits: fetched ahead it does not pass a budget, whoever had to before") {
  rig desk;
  tidepool::test::caching_allocator<rig::device_type> from(desk.dev, desk.stream());
  auto opts = small_options();
  opts.device_budget = 2 * size;
  offloader off(desk.dev, opts,
                {.memory = tidepool::memory_on<rig::device_type>(
                     desk.stream(), [&](std::size_t bytes) { return from.take(bytes); },
                     [&](void* data) { from.give(data); })});
  auto state = written(desk, off, 1);
  desk.dev.synchronize();
  std::array<rig::buffer, 3> needed;
  for (auto& each : needed) each = off.allocate(size, desk.stream());
  CHECK(off.counters().budget_exceeded == 1);
  CHECK_FALSE(state.prefetch());
  for (auto& each : needed) each.reset(desk.stream());
  CHECK(state.prefetch());
}

TEST_CASE("state visits: where no graph was launched, one that goes makes no stream wait") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto state = written(desk, off, 1);
  const auto records = desk.dev.records;
  const auto waits = desk.dev.waits;
  { const auto gone = std::move(state); }
  CHECK(desk.dev.records == records);
  CHECK(desk.dev.waits == waits);
}

TEST_CASE("step end: what was adopted goes back to its owner once the device is done with it") {
  rig desk;
  tidepool::test::caching_allocator<rig::device_type> from(desk.dev, desk.stream());
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto* const data = from.take(size);
  auto x = off.adopt(data, size, desk.stream(), [&, data] { from.give(data); });
  desk.write(x, 1);
  open.commit(off.module("core_attn"), 0, desk.stream(), x);
  open.end_forward();
  open.restore(off.module("core_attn"), 0, desk.stream(), x);
  desk.check(x, 1);
  x.reset(desk.stream());
  open.finish();
  desk.dev.synchronize();
  CHECK(off.counters().borrowed == size);
  CHECK(from.in_use() == size);
  off.end_step();
  CHECK(off.counters().borrowed == 0);
  CHECK(from.in_use() == 0);
  CHECK(desk.wrong() == 0);
}
