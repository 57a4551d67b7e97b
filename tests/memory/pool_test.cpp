#include "tidepool/memory/pool.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "lane_bench.hpp"
#include "tidepool/device/virtual.hpp"

namespace {

using tidepool::block;
using tidepool::block_alignment;
using tidepool::fence;
using tidepool::machine;

using bench = tidepool::test::lane_bench<tidepool::virtual_device>;
using tidepool::pool;
using tidepool::rounding;

constexpr std::size_t unit = block_alignment;

}  // namespace

TEST_CASE("pool: takes nothing before it is asked, and everything goes back") {
  bench on(1, machine{.device_bytes = 100 * unit});
  {
    pool all(on.pages, on.order, {8 * unit, 0});
    CHECK(all.reserved() == 0);
    CHECK(on.dev.device_allocations == 0);
    CHECK(all.acquire(unit, bench::id(0)));
    CHECK(on.dev.device_held == 1);
  }
  CHECK(on.dev.device_held == 0);
  CHECK(on.dev.memory().free == 100 * unit);
}

TEST_CASE("pool: grows by its step, or by the request where that is larger") {
  bench on(1);
  pool all(on.pages, on.order, {8 * unit, 0});
  CHECK(all.acquire(3 * unit, bench::id(0)));
  CHECK(all.reserved() == 8 * unit);
  CHECK(all.acquire(5 * unit, bench::id(0)));
  CHECK(all.reserved() == 8 * unit);
  CHECK(all.acquire(12 * unit, bench::id(0)));
  CHECK(all.reserved() == 20 * unit);
  CHECK(all.allocations() == 2);
  CHECK(on.dev.device_allocations == 2);
  CHECK(all.used() == 20 * unit);
}

TEST_CASE("pool: without limits it takes what is asked for, as long as the device gives") {
  bench on(1);
  pool all(on.pages, on.order, {});
  CHECK(all.acquire(3 * unit, bench::id(0)));
  CHECK(all.budget() == 0);
  CHECK(all.reserved() == 3 * unit);
}

TEST_CASE("pool: rounds a request up by at most a sixteenth, so that near sizes are the same") {
  CHECK(pool::rounded(33 * unit, rounding::sixteenth) == 34 * unit);
  CHECK(pool::rounded(1000 * unit, rounding::sixteenth) == 1024 * unit);
  for (std::size_t units = 1; units < 3000; ++units) {
    const auto rounded = pool::rounded(units * unit - 1, rounding::sixteenth);
    CHECK(rounded >= units * unit);
    CHECK(rounded % unit == 0);
    CHECK((rounded - units * unit) * 16 <= units * unit);
    CHECK(pool::rounded(rounded, rounding::sixteenth) == rounded);
  }
}

TEST_CASE("pool: pinned memory takes what it needs, not a power of two") {
  bench on(1);
  pool all(on.host, on.order, {unit, 0, rounding::none});
  CHECK(all.acquire(1025 * unit, bench::id(0)));
  CHECK(all.reserved() == 1025 * unit);
  CHECK(on.dev.host_allocations == 1);
  CHECK(on.dev.device_allocations == 0);
}

TEST_CASE("pool: a budget holds exactly") {
  bench on(1);
  pool all(on.pages, on.order, {8 * unit, 13 * unit});
  CHECK(all.budget() == 13 * unit);
  CHECK(all.acquire(8 * unit, bench::id(0)));
  SUBCASE("the last step is what is left") {
    CHECK(all.acquire(2 * unit, bench::id(0)));
    CHECK(all.reserved() == 13 * unit);
    CHECK(all.acquire(3 * unit, bench::id(0)));
    CHECK_FALSE(all.acquire(1, bench::id(0)));
  }
  SUBCASE("more than is left is an empty grant, not a smaller block") {
    CHECK_FALSE(all.acquire(6 * unit, bench::id(0)));
    CHECK(all.reserved() == 8 * unit);
    CHECK(all.acquire(5 * unit, bench::id(0)));
  }
}

TEST_CASE("pool: one with a budget is put together where nothing is in use") {
  for (std::size_t first = 0; first < 4; ++first) {  // to be free, and so the oldest
    CAPTURE(first);
    bench on(1);
    pool all(on.pages, on.order, {4 * unit, 4 * unit});
    std::vector<block> pieces;
    for (int i = 0; i < 4; ++i) pieces.push_back(all.acquire(unit, bench::id(0)).memory);
    std::rotate(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end());
    for (const auto& each : pieces) all.release(each, on.record(0));
    all.coalesce();
    CHECK(all.acquire(unit, bench::id(0)));
    CHECK(all.acquire(3 * unit, bench::id(0)));
  }
}

TEST_CASE("pool: regions that are not in use go back, and make room for one large block") {
  bench on(1);
  pool all(on.pages, on.order, {2 * unit, 8 * unit});
  std::vector<block> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(all.acquire(unit, bench::id(0)).memory);
  CHECK(all.reserved() == 8 * unit);
  CHECK_FALSE(all.give_back_unused());  // all is in use
  for (int i = 1; i < 8; ++i) all.release(pieces[static_cast<std::size_t>(i)], on.record(0));
  CHECK_FALSE(all.acquire(3 * unit, bench::id(0)));
  CHECK(all.give_back_unused());
  CHECK(on.dev.device_held == 1);  // a part of the first is in use
  CHECK(all.reserved() == 2 * unit);
  CHECK(all.peak() == 8 * unit);
  CHECK(all.allocations() == 4);
  const auto large = all.acquire(6 * unit, bench::id(0));
  CHECK(large);
  CHECK(all.allocations() == 5);
  const auto last = all.acquire(unit, bench::id(0));
  CHECK(last);
  CHECK_FALSE(all.acquire(unit, bench::id(0)));
  for (const auto& each : {pieces[0], large.memory, last.memory}) all.release(each, on.record(0));
  CHECK(all.give_back_unused());
  CHECK(all.reserved() == 0);
  CHECK(all.used() == 0);
  CHECK(on.dev.device_held == 0);
  CHECK_FALSE(all.give_back_unused());
  CHECK(all.acquire(8 * unit, bench::id(0)));
}

TEST_CASE("pool: takes the request alone where the device has no whole step left") {
  bench on(1, machine{.device_bytes = 10 * unit});
  pool all(on.pages, on.order, {8 * unit, 0});
  CHECK(all.acquire(8 * unit, bench::id(0)));
  CHECK(all.acquire(unit, bench::id(0)));
  CHECK(all.reserved() == 9 * unit);
  CHECK(all.acquire(unit, bench::id(0)));
  CHECK_FALSE(all.acquire(unit, bench::id(0)));
  CHECK(on.dev.memory().free == 0);
}

TEST_CASE("pool: memory that the lane need not wait for is used again") {
  bench on(2);
  pool all(on.pages, on.order, {4 * unit, 0});
  const auto first = all.acquire(4 * unit, bench::id(0));
  SUBCASE("its own") { all.release(first.memory, on.record(0)); }
  SUBCASE("another lane's, joined") {
    const auto other = on.record(1);
    on.join(0, other);
    all.release(first.memory, other);
  }
  const auto again = all.acquire(4 * unit, bench::id(0));
  CHECK(again.memory.data == first.memory.data);
  CHECK(all.reserved() == 4 * unit);
}

TEST_CASE("pool: grows while less than allow_in_flight is in flight, then waits for the oldest") {
  bench on(2);
  pool all(on.pages, on.order, {4 * unit, 0});
  all.allow_in_flight(8 * unit);
  std::vector<block> parts;
  for (int i = 0; i < 3; ++i) parts.push_back(all.acquire(4 * unit, bench::id(0)).memory);
  CHECK(all.reserved() == 12 * unit);
  all.release(parts[0], on.record(1));
  SUBCASE("4 of 8 units in flight: it grows") {
    const auto more = all.acquire(4 * unit, bench::id(0));
    CHECK(all.reserved() == 16 * unit);
    CHECK(on.joined(0, more.ready));
  }
  SUBCASE("8 besides those it asks for: it waits") {
    all.release(parts[1], on.record(1));
    all.release(parts[2], on.record(1));
    const auto more = all.acquire(4 * unit, bench::id(0));
    CHECK(all.reserved() == 12 * unit);
    CHECK(more.memory.data == parts[0].data);
    CHECK_FALSE(on.joined(0, more.ready));
  }
}

TEST_CASE("pool: the least that may be in flight is a byte") {
  bench on(2);
  pool all(on.pages, on.order, {unit, 0});
  all.allow_in_flight(1);
  const auto first = all.acquire(unit, bench::id(0)).memory;
  const auto second = all.acquire(unit, bench::id(0)).memory;
  all.release(first, on.record(1));
  all.release(second, on.record(1));  // one is in flight beside what is asked for next
  CHECK(all.acquire(unit, bench::id(0)).memory.data == first.data);
  CHECK(all.reserved() == 2 * unit);
}

TEST_CASE("pool: what cannot grow waits, however little is in flight") {
  bench on(2);
  pool all(on.pages, on.order, {4 * unit, 4 * unit});
  all.allow_in_flight(100 * unit);
  const auto first = all.acquire(4 * unit, bench::id(0));
  all.release(first.memory, on.record(1));
  const auto again = all.acquire(4 * unit, bench::id(0));
  REQUIRE(again);
  CHECK_FALSE(on.joined(0, again.ready));
  CHECK(all.reserved() == 4 * unit);
}

TEST_CASE("pool: grows by the order of calls, whatever the device has run meanwhile") {
  const auto trace = [](std::uint64_t order_seed, bool hurried) {
    bench on(3, machine{.order_seed = order_seed});
    pool all(on.pages, on.order, {6 * unit, 0});
    all.allow_in_flight(10 * unit);
    std::mt19937_64 random(99);  // the same calls every time
    std::vector<block> held;
    std::vector<std::pair<std::size_t, std::uint64_t>> seen;
    for (int i = 0; i < 400; ++i) {
      const auto lane = static_cast<int>(random() % 3);
      if (held.size() < 2 || (held.size() < 12 && random() % 2 == 0)) {
        const auto got = all.acquire(1 + random() % (4 * unit), bench::id(lane));
        on.join(lane, got.ready);
        held.push_back(got.memory);
        seen.emplace_back(all.reserved(), got.ready.order());
      } else {
        const auto which = random() % held.size();
        on.dev.launch(on.streams[static_cast<std::size_t>(lane)].ref(), 1000, {});
        all.release(held[which], on.record(lane));
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      }
      if (hurried) on.dev.synchronize();
    }
    return seen;
  };
  const auto idle = trace(0, false);
  CHECK(idle.back().first > 6 * unit);
  CHECK(trace(0, true) == idle);
  CHECK(trace(5, false) == idle);
  CHECK(trace(6, true) == idle);
}

TEST_CASE("pool: without a bound on what is in flight it grows rather than wait") {
  bench on(2);
  pool all(on.pages, on.order, {unit, 0});
  CHECK(all.peak() == 0);
  const auto first = all.acquire(unit, bench::id(0)).memory;
  const auto second = all.acquire(unit, bench::id(0)).memory;
  all.release(first, on.record(1));
  all.release(second, on.record(1));
  const auto more = all.acquire(unit, bench::id(0));
  CHECK(on.joined(0, more.ready));
  CHECK(all.reserved() == 3 * unit);
  CHECK(all.peak() == 3 * unit);
}

TEST_CASE("pool: one without a budget is not put together, so that nobody waits for all of it") {
  bench on(3);
  pool all(on.pages, on.order, {2 * unit, 0});
  const auto mine = all.acquire(unit, bench::id(0)).memory;
  const auto other = all.acquire(unit, bench::id(0)).memory;
  all.release(mine, on.record(0));
  all.release(other, on.record(1));
  all.coalesce();
  CHECK(all.acquire(unit, bench::id(0)).memory.data == mine.data);
  CHECK(all.reserved() == 2 * unit);
}

TEST_CASE("pool: inside a capture a request waits for the last free memory rather than grow") {
  bench on(2);
  pool all(on.pages, on.order, {unit, 0});
  const auto only = all.acquire(unit, bench::id(0)).memory;
  on.order.begin_capture(bench::id(0), {bench::id(1)});
  all.release(only, on.record(1));
  const auto again = all.acquire(unit, bench::id(0));
  CHECK(again.memory.data == only.data);
  CHECK_FALSE(on.joined(0, again.ready));
  CHECK_THROWS_AS(static_cast<void>(all.acquire(unit, bench::id(0))), tidepool::misuse_error);
  on.order.end_capture();
}

TEST_CASE("pool: a larger request never takes less, however large") {
  constexpr auto most = std::numeric_limits<std::size_t>::max() / unit;
  const auto rises_around = [](std::size_t units) {
    for (auto each = units - 3; each < units + 3; ++each) {
      const auto takes = pool::rounded(each * unit, rounding::sixteenth);
      CHECK(takes >= each * unit);
      CHECK(takes <= pool::rounded((each + 1) * unit, rounding::sixteenth));
    }
  };
  // Around every size to which requests of its power of two are rounded, and the last of all.
  for (std::size_t power = 64; power <= most; power *= 2) {
    for (std::size_t part = 0; part < 16; ++part) rises_around(power + power / 16 * part);
  }
  rises_around(most - 3);
}
