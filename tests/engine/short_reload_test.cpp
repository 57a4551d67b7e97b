// Reloads where memory is short: what counts as needed, what a refused one leaves as it was, and
// what its message blames.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "caching_allocator.hpp"
#include "messages.hpp"
#include "rig.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/fixed.hpp"

namespace {

using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using device = rig::device_type;
using allocator = tidepool::test::caching_allocator<device>;
using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;

options budget_of(std::size_t bytes) {
  auto opts = small_options();
  opts.device_budget = bytes;
  return opts;
}

/// Memory of a trainer's allocator, which goes back to it.
struct bench {
  rig desk;
  allocator from{desk.dev, desk.stream()};

  bench() { from.overwrites = false; }

  [[nodiscard]] auto memory() {
    return tidepool::memory_on<device>(
        desk.stream(), [this](std::size_t bytes) { return from.take(bytes); },
        [this](void* data) { from.give(data); });
  }
  [[nodiscard]] rig::buffer adopt(offloader& off, std::size_t bytes = size) {
    auto* const data = from.take(bytes);
    return off.adopt(data, bytes, desk.stream(), [this, data] { from.give(data); });
  }
};

// What the restore says that is out of memory.
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const tidepool::out_of_budget& why) {
    return why.what();
  }
  return {};
}

}  // namespace

TEST_CASE("short reload: what is still on the device needs no room in the budget") {
  bench on;
  offloader off(on.desk.dev, budget_of(3 * size), {.memory = on.memory()});
  auto open = off.begin();
  auto x = on.adopt(off, 2 * size);
  auto y = on.adopt(off);
  on.desk.write(x, 1);
  on.desk.write(y, 2);
  auto held = x.share();
  open.commit<"fc1">(0, on.desk.stream(), x, y);
  open.end_forward();
  CHECK(on.desk.dev.reloads() == 1);
  open.restore<"fc1">(0, on.desk.stream(), x, y);
  on.desk.check(x, 1);
  on.desk.check(y, 2);
  CHECK(off.counters().budget_exceeded == 0);
  CHECK(on.desk.wrong() == 0);
  for (auto* each : {&x, &y, &held}) each->reset(on.desk.stream());
}

TEST_CASE("short reload: a group of which nothing is away comes back beyond the budget") {
  bench on;
  offloader off(on.desk.dev, budget_of(2 * size), {.memory = on.memory()});
  auto open = off.begin();
  auto x = on.adopt(off, 2 * size);
  auto held = x.share();
  auto more = on.adopt(off);
  CHECK(off.counters().budget_exceeded == 1);
  open.commit<"fc1">(0, on.desk.stream(), x);
  open.end_forward();
  open.restore<"fc1">(0, on.desk.stream(), x);
  CHECK(off.counters().budget_exceeded == 1);
  CHECK(off.counters().evictions == 0);
  for (auto* each : {&x, &held, &more}) each->reset(on.desk.stream());
}

TEST_CASE("short reload: one that the budget refuses makes no stream wait, however small it is") {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{2}, size}) {
    CAPTURE(bytes);
    bench on;
    offloader off(on.desk.dev, budget_of(2 * size), {.memory = on.memory()});
    auto open = off.begin();
    auto x = on.adopt(off, bytes);
    open.commit<"fc1">(0, on.desk.stream(), x);
    auto full = on.adopt(off, 2 * size);
    const auto waits = on.desk.dev.waits;
    open.end_forward();
    CHECK(on.desk.dev.waits == waits);
    CHECK(on.desk.dev.reloads() == 0);
    full.reset(on.desk.stream());
  }
}

TEST_CASE("short reload: a handle that the allocator drops meanwhile starts none in its middle") {
  rig desk;
  allocator from{desk.dev, desk.stream()};
  from.overwrites = false;
  rig::buffer kept;
  int until_dropped = 0;
  offloader off(desk.dev, budget_of(4 * size),
                {.memory = tidepool::memory_on<device>(
                     desk.stream(),
                     [&](std::size_t bytes) {
                       if (until_dropped > 0 && --until_dropped == 0) kept.reset(desk.stream());
                       return from.take(bytes);
                     },
                     [&](void* data) { from.give(data); })});
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(size, desk.stream());
  desk.write(x, 1);
  desk.write(y, 2);
  open.commit<"fc1">(0, desk.stream(), x, y);
  kept = off.allocate(3 * size, desk.stream());
  open.end_forward();
  CHECK(desk.dev.reloads() == 0);
  until_dropped = 2;
  open.restore<"fc1">(0, desk.stream(), x, y);
  CHECK_FALSE(kept);
  desk.check(x, 1);
  desk.check(y, 2);
  CHECK(desk.dev.reloads() == 2);
  CHECK(desk.wrong() == 0);
  x.reset(desk.stream());
  y.reset(desk.stream());
}

TEST_CASE("short reload: a source that has just enough for its tensor is not blamed") {
  rig desk;
  auto* const own = desk.dev.allocate(size);
  {
    tidepool::fixed_block source(own, size);
    offloader off(desk.dev, arena_options(2 * size));
    auto open = off.begin();
    auto x = off.allocate_from(source, size, desk.stream());
    auto y = off.allocate(size, desk.stream());
    open.commit<"fc1">(0, desk.stream(), x, y);
    auto full = off.allocate(2 * size, desk.stream());
    const auto text = refusal_of([&] { open.restore<"fc1">(0, desk.stream(), x, y); });
    CHECK(says(text, "4096 bytes of device memory do not fit"));
    CHECK_FALSE(says(text, "allocate_from"));
    full.reset(desk.stream());
    open.restore<"fc1">(0, desk.stream(), x, y);
    x.reset(desk.stream());
  }
  desk.dev.deallocate(own);
}

TEST_CASE("short reload: a source is told of its own tensor, not of the others of the group") {
  rig desk;
  auto* const own = desk.dev.allocate(512);
  {
    tidepool::fixed_block source(own, 512);
    offloader off(desk.dev, arena_options(2 * size));
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    auto y = off.allocate_from(source, 512, desk.stream());
    open.commit<"fc1">(0, desk.stream(), x, y);
    auto next = off.allocate_from(source, 512, desk.stream());
    const auto text = refusal_of([&] { open.restore<"fc1">(0, desk.stream(), x, y); });
    CHECK(says(text, ": 512 bytes do not fit the source given to allocate_from"));
    next.reset(desk.stream());
    open.restore<"fc1">(0, desk.stream(), x, y);
    y.reset(desk.stream());
  }
  desk.dev.deallocate(own);
}

TEST_CASE("short reload: a restore that is refused takes nothing of its own group away") {
  rig desk;
  auto opts = arena_options(3 * size);
  opts.reload_ahead = 2;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(size, desk.stream());
  desk.write(x, 1);
  desk.write(y, 2);
  auto again = x.share();
  open.commit<"fc1">(0, desk.stream(), x, y);
  open.commit<"fc1">(1, desk.stream(), again);
  open.end_forward();
  CHECK(desk.dev.reloads() == 2);
  open.restore<"fc1">(1, desk.stream(), again);
  again.reset(desk.stream());
  auto first = off.allocate(size, desk.stream());
  auto second = off.allocate(size, desk.stream());
  CHECK(off.counters().evictions == 1);  // what the group of layer 1 has no use for any more
  CHECK_THROWS_AS(open.restore<"fc1">(0, desk.stream(), x, y), tidepool::out_of_budget);
  CHECK(off.counters().evictions == 1);
  first.reset(desk.stream());
  open.restore<"fc1">(0, desk.stream(), x, y);
  CHECK(desk.dev.reloads() == 3);
  desk.check(x, 1);
  desk.check(y, 2);
  CHECK(desk.wrong() == 0);
}

// What a small network saved, layer by layer, in the order of its commits.
TEST_CASE(
    "short reload: a group whose sum fits comes back into memory of which nothing is in use") {
  const std::vector<std::vector<std::size_t>> sizes{{1557504, 200704, 5537792},
                                                    {42467328, 5537792, 9437184},
                                                    {4718592, 9437184, 2359296, 2359296},
                                                    {2359296, 32768, 32768, 32768}};
  tidepool::null_device dev;
  const tidepool::null_device::stream_ref stream(7);
  auto opts = arena_options(std::size_t{60} << 20);
  opts.host_budget = {};
  opts.reload_ahead = 0;
  using null_offloader = tidepool::offloader<tidepool::null_device, tidepool::modules<"fc1">>;
  using list = null_offloader::chunk::handle_list;
  null_offloader off(dev, opts);
  std::byte elsewhere{};
  for (int step = 0; step < 8; ++step) {
    auto open = off.begin();
    std::vector<std::vector<tidepool::buffer<tidepool::null_device>>> saved(sizes.size());
    std::vector<std::vector<tidepool::handle<tidepool::null_device>*>> lists(sizes.size());
    for (std::size_t g = 0; g < sizes.size(); ++g) {
      for (const auto bytes : sizes[g]) {
        saved[g].push_back(off.adopt(&elsewhere, bytes, stream, [] {}));
      }
      for (auto& each : saved[g]) lists[g].push_back(&each);
      open.commit(off.module("fc1"), static_cast<int>(g), stream, list(lists[g]));
    }
    open.end_forward();
    for (auto g = sizes.size(); g-- > 0;) {
      REQUIRE_NOTHROW(open.restore(off.module("fc1"), static_cast<int>(g), stream, list(lists[g])));
      for (auto k = saved[g].size(); k-- > 0;) saved[g][k].reset(stream);
    }
    open.finish();
    off.end_step();
  }
}

TEST_CASE("short reload: what does not fit in the order of its commit does so largest first") {
  rig desk;
  offloader off(desk.dev, arena_options(16 * size));
  const auto take = [&](std::size_t units) { return off.allocate(units * size, desk.stream()); };
  auto open = off.begin();
  rig::buffer x = take(1), y = take(1), z = take(2), w = take(4);
  const auto all = [&](const auto& call) { call(x, 1), call(y, 2), call(z, 3), call(w, 4); };
  all([&](rig::buffer& each, std::uint32_t tag) { desk.write(each, tag); });
  open.commit<"fc1">(0, desk.stream(), x, y, z, w);
  open.end_forward();
  const auto stays = std::array{take(1), take(5), take(2)};
  auto five = take(5);
  auto three = take(3);
  three.reset(desk.stream());
  five.reset(desk.stream());
  open.restore<"fc1">(0, desk.stream(), x, y, z, w);
  all([&](rig::buffer& each, std::uint32_t tag) { desk.check(each, tag); });
  CHECK(desk.wrong() == 0);
}

TEST_CASE("short reload: largest first, too, a group may pass a soft budget") {
  std::vector<std::byte> owned(9 * size);
  rig desk;
  auto opts = arena_options(16 * size);
  opts.reload_ahead = 0;
  offloader off(desk.dev, opts);
  const auto take = [&](std::size_t units) { return off.allocate(units * size, desk.stream()); };
  const auto adopt = [&](std::size_t at, std::size_t units) {
    return off.adopt(owned.data() + at * size, units * size, desk.stream(), [] {});
  };
  auto open = off.begin();
  rig::buffer x = adopt(0, 1), y = adopt(1, 3), z = adopt(4, 3), w = adopt(7, 1);
  const auto all = [&](const auto& call) { call(x, 1), call(y, 2), call(z, 3), call(w, 4); };
  all([&](rig::buffer& each, std::uint32_t tag) { desk.write(each, tag); });
  open.commit<"fc1">(0, desk.stream(), x, y, z, w);
  open.end_forward();
  const auto first = take(4);
  auto five = take(5);
  const auto second = take(4);
  take(3).reset(desk.stream());
  five.reset(desk.stream());
  // It counts in the budget, and lies outside of the arena, in which the group fits in sum.
  const auto borrowed = adopt(8, 1);
  open.restore<"fc1">(0, desk.stream(), x, y, z, w);
  CHECK(off.counters().budget_exceeded == 1);
  all([&](rig::buffer& each, std::uint32_t tag) { desk.check(each, tag); });
  CHECK(desk.wrong() == 0);
}
