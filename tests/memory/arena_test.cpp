#include "tidepool/memory/arena.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>

#include "lane_bench.hpp"
#include "tidepool/device/virtual.hpp"

namespace {

using tidepool::block_alignment;
using tidepool::fence;
using tidepool::machine;

using bench = tidepool::test::lane_bench<tidepool::virtual_device>;
using tidepool::arena;

constexpr std::size_t unit = block_alignment;

}  // namespace

TEST_CASE("arena: takes its budget once, exactly, and gives it back") {
  bench on(1, machine{.device_bytes = 10 * unit});
  {
    const arena all(on.pages, on.order, 8 * unit);
    CHECK(on.dev.memory().free == 2 * unit);
    CHECK(on.dev.device_allocations == 1);
    CHECK(all.reserved() == 8 * unit);
    CHECK(all.peak() == 8 * unit);
    CHECK(all.budget() == 8 * unit);
    CHECK(all.largest_free() == 8 * unit);
    CHECK(all.allocations() == 1);
  }
  CHECK(on.dev.memory().free == 10 * unit);
}

TEST_CASE("arena: a budget between two multiples of the alignment is not exceeded") {
  bench on(1, machine{.device_bytes = 8 * unit});
  arena all(on.pages, on.order, 3 * unit + 7);
  CHECK(all.reserved() == 3 * unit);
  CHECK(all.acquire(3 * unit, bench::id(0)));
}

TEST_CASE("arena: hands out every byte of its budget, and not one more") {
  bench on(1);
  arena all(on.pages, on.order, 5 * unit);
  const auto first = all.acquire(2 * unit, bench::id(0));
  const auto second = all.acquire(1, bench::id(0));
  const auto third = all.acquire(2 * unit, bench::id(0));
  CHECK(first);
  CHECK(second);
  CHECK(third);
  CHECK(all.largest_free() == 0);
  CHECK_FALSE(all.acquire(1, bench::id(0)));
  CHECK(on.dev.device_allocations == 1);
}

TEST_CASE("arena: a full one with something in flight gives the oldest with its fence") {
  bench on(2);
  arena all(on.pages, on.order, 2 * unit);
  const auto first = all.acquire(unit, bench::id(0));
  const auto second = all.acquire(unit, bench::id(0));
  const auto old = on.record(1);
  const auto young = on.record(1);
  all.release(second.memory, young);
  all.release(first.memory, old);
  const auto again = all.acquire(unit, bench::id(0));
  REQUIRE(again);
  CHECK(again.memory.data == first.memory.data);
  CHECK(again.ready.order() == old.order);
  CHECK_FALSE(on.joined(0, again.ready));
  on.join(0, again.ready);
  CHECK(all.acquire(unit, bench::id(0)).memory.data == second.memory.data);
  CHECK(on.dev.waits == 1);  // acquiring makes no join by itself
}

TEST_CASE("arena: what is joined comes before what is older") {
  bench on(3);
  arena all(on.pages, on.order, 3 * unit);
  const auto first = all.acquire(unit, bench::id(0));
  static_cast<void>(all.acquire(unit, bench::id(0)));
  const auto third = all.acquire(unit, bench::id(0));
  const auto old = on.record(1);
  const auto young = on.record(2);
  on.join(0, young);
  all.release(first.memory, old);
  all.release(third.memory, young);
  CHECK(all.acquire(unit, bench::id(0)).memory.data == third.memory.data);
}

TEST_CASE("arena: a device that has less says so, with both numbers and the option") {
  bench on(1, machine{.device_bytes = 4 * unit});
  const auto make = [&](std::size_t budget) { const arena refused(on.pages, on.order, budget); };
  CHECK_THROWS_WITH_AS(make(5 * unit), doctest::Contains("--device-budget"),
                       tidepool::out_of_budget);
  try {
    make(5 * unit);
  } catch (const tidepool::out_of_budget& error) {
    CHECK(error.requested == 5 * unit);
    CHECK(error.budget == 4 * unit);
  }
  CHECK(on.dev.memory().free == 4 * unit);
}

TEST_CASE("arena: a budget below one block is refused") {
  bench on(1);
  CHECK_THROWS_WITH_AS(arena(on.pages, on.order, unit - 1),
                       doctest::Contains("give it a larger --device-budget"),
                       tidepool::out_of_budget);
}

TEST_CASE("arena: a place in it is taken with the fence of what was there") {
  bench on(2);
  arena all(on.pages, on.order, 8 * unit);
  tidepool::block mine;
  fence ready;
  REQUIRE(all.take_at(5 * unit, 2 * unit, bench::id(0), mine, ready));
  const auto low = all.acquire(5 * unit, bench::id(0));
  REQUIRE(low);
  CHECK(static_cast<std::byte*>(mine.data) - static_cast<std::byte*>(low.memory.data) ==
        static_cast<std::ptrdiff_t>(5 * unit));
  CHECK_FALSE(all.take_at(6 * unit, unit, bench::id(1), mine, ready));
  CHECK_FALSE(all.take_at(8 * unit, unit, bench::id(1), mine, ready));
  all.release(mine, fence(on.order.record(bench::id(0))));
  REQUIRE(all.take_at(6 * unit, unit, bench::id(1), mine, ready));
  CHECK(ready.order() != 0);
}

TEST_CASE("arena: ends that a place cuts off wait for no neighbour") {
  bench on(3);
  arena all(on.pages, on.order, 8 * unit);
  tidepool::block low;
  tidepool::block high;
  tidepool::block middle;
  fence ready;
  REQUIRE(all.take_at(0, 4 * unit, bench::id(0), low, ready));
  REQUIRE(all.take_at(4 * unit, 4 * unit, bench::id(0), high, ready));
  all.release(low, fence(on.order.record(bench::id(0))));
  all.release(high, fence(on.order.record(bench::id(1))));
  REQUIRE(all.take_at(2 * unit, 4 * unit, bench::id(2), middle, ready));
  CHECK(ready.order() != 0);
  fence of_low;
  CHECK(all.take_at(0, 2 * unit, bench::id(0), low, of_low));
  CHECK(of_low.order() == 0);  // its own past
  fence of_high;
  CHECK(all.take_at(6 * unit, 2 * unit, bench::id(1), high, of_high));
  CHECK(of_high.order() == 0);
}

TEST_CASE("arena: nobody has room for as many bytes as there are numbers") {
  bench on(1);
  arena all(on.pages, on.order, 8 * unit);
  tidepool::block mine;
  fence ready;
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  for (const auto bytes : {most, most - 10, most - unit}) {
    CHECK_FALSE(all.take(bytes, bench::id(0), mine, ready));
    CHECK_FALSE(all.take_at(0, bytes, bench::id(0), mine, ready));
    CHECK_FALSE(all.take_at(unit, bytes, bench::id(0), mine, ready));
  }
  CHECK(all.largest_free() == 8 * unit);
}
