#include "tidepool/memory/slots.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <set>
#include <vector>

#include "lane_bench.hpp"
#include "tidepool/device/virtual.hpp"

namespace {

using tidepool::block;
using tidepool::block_alignment;
using tidepool::fence;
using tidepool::machine;
using tidepool::slot_ring;

using bench = tidepool::test::lane_bench<tidepool::virtual_device>;
using tidepool::slots;

constexpr std::size_t unit = block_alignment;

}  // namespace

TEST_CASE("slots: one allocation for each ring, slots aligned, all given back") {
  bench on(1, machine{.device_bytes = 100 * unit});
  {
    const slots all(on.pages, {{unit + 1, 3}, {4 * unit, 2}});
    CHECK(all.reserved() == 14 * unit);
    CHECK(all.peak() == 14 * unit);
    CHECK(all.budget() == 14 * unit);
    CHECK(all.allocations() == 2);
    CHECK(on.dev.device_allocations == 2);
    CHECK(on.dev.memory().free == 86 * unit);
  }
  CHECK(on.dev.memory().free == 100 * unit);
  CHECK(on.dev.device_held == 0);
}

TEST_CASE("slots: a request takes the smallest slot that fits, a larger one where those are gone") {
  bench on(1);
  slots all(on.pages, {{4 * unit, 1}, {unit, 2}});  // in any order
  std::set<void*> data;
  const auto large = all.acquire(2 * unit, bench::id(0));
  REQUIRE(large);
  CHECK(all.largest_free() == unit);
  CHECK_FALSE(all.acquire(2 * unit, bench::id(0)));
  all.release(large.memory, {});
  data.insert(all.acquire(unit, bench::id(0)).memory.data);
  data.insert(all.acquire(1, bench::id(0)).memory.data);
  CHECK(all.largest_free() == 4 * unit);
  data.insert(all.acquire(1, bench::id(0)).memory.data);
  CHECK(data.count(large.memory.data) == 1);
  CHECK(data.size() == 3);
  CHECK_FALSE(all.acquire(1, bench::id(0)));
  CHECK(all.largest_free() == 0);
  CHECK(on.dev.device_allocations == 2);
}

TEST_CASE("slots: larger than every slot is an empty grant") {
  bench on(1);
  slots all(on.pages, {{2 * unit, 2}});
  CHECK_FALSE(all.acquire(2 * unit + 1, bench::id(0)));
}

TEST_CASE("slots: the free slot whose fence is oldest, with that fence") {
  bench on(2);
  slots all(on.pages, {{unit, 3}});
  std::vector<block> held;
  for (int i = 0; i < 3; ++i) held.push_back(all.acquire(unit, bench::id(0)).memory);
  const auto old = on.record(1);
  const auto middle = on.record(1);
  const auto young = on.record(1);
  all.release(held[0], young);
  all.release(held[1], old);
  all.release(held[2], middle);
  const auto first = all.acquire(unit, bench::id(0));
  CHECK(first.memory.data == held[1].data);
  CHECK(first.ready.order() == old.order);
  const auto second = all.acquire(unit, bench::id(0));
  CHECK(second.memory.data == held[2].data);
  CHECK(second.ready.order() == middle.order);
  const auto third = all.acquire(unit, bench::id(0));
  CHECK(third.memory.data == held[0].data);
  CHECK(third.ready.order() == young.order);
}

TEST_CASE("slots: addresses repeat as long as the order of calls does") {
  bench on(2);
  slots all(on.pages, {{unit, 5}});
  const auto pass = [&] {
    std::vector<void*> seen;
    std::vector<block> held;
    for (int i = 0; i < 10; ++i) {
      held.push_back(all.acquire(unit, bench::id(0)).memory);
      seen.push_back(held.back().data);
      if (held.size() == 3) {
        all.release(held.front(), on.record(1));
        held.erase(held.begin());
      }
    }
    for (const auto& each : held) all.release(each, on.record(0));
    return seen;
  };
  const auto first = pass();
  CHECK(pass() == first);
  CHECK(pass() == first);
}

TEST_CASE("slots: no rings, and rings of nothing, are refused with the option's name") {
  bench on(1);
  CHECK_THROWS_WITH_AS(
      slots(on.pages, {}),
      "tidepool: slots: no ring is given; set options::slots, or --slots=BYTESxCOUNT",
      tidepool::option_error);
  CHECK_THROWS_AS(slots(on.pages, {{0, 3}}), tidepool::option_error);
  CHECK_THROWS_AS(slots(on.pages, {{unit, 0}}), tidepool::option_error);
}

TEST_CASE("slots: as many rings as a block's index can name, and no more") {
  bench on(1);
  const auto make = [&](std::size_t rings) {
    const slots made(on.pages, std::vector<slot_ring>(rings, slot_ring{unit, 1}));
  };
  make(256);
  CHECK_THROWS_WITH_AS(make(257), doctest::Contains("257 rings are more than the 256"),
                       tidepool::option_error);
}

TEST_CASE("slots: as many slots in a ring as a block's index can name, and no more") {
  bench on(1, machine{.device_bytes = 10 * unit});
  constexpr std::size_t most = std::size_t{1} << 24;
  const auto make = [&](std::size_t count) { const slots made(on.pages, {{unit, count}}); };
  CHECK_THROWS_AS(make(most), tidepool::out_of_budget);  // such a device would be larger
  CHECK_THROWS_WITH_AS(make(most + 1), doctest::Contains("there may be 16777216"),
                       tidepool::option_error);
}

TEST_CASE("slots: a device that cannot hold them keeps none of them") {
  bench on(1, machine{.device_bytes = 10 * unit});
  const auto make = [&](const std::vector<slot_ring>& rings) {
    const slots refused(on.pages, rings);
  };
  CHECK_THROWS_WITH_AS(make({{unit, 4}, {2 * unit, 4}}), doctest::Contains("4 slots of 512 bytes"),
                       tidepool::out_of_budget);
  CHECK(on.dev.memory().free == 10 * unit);
  CHECK(on.dev.device_held == 0);
}

// Through an offloader `validate` refuses such rings first.
TEST_CASE("slots: a ring of nothing behind a good one leaves nothing behind") {
  bench on(1);
  CHECK_THROWS_AS(slots(on.pages, {{unit, 4}, {unit, 0}}), tidepool::option_error);
  CHECK(on.dev.device_held == 0);
}

TEST_CASE("slots: of those behind the same work the one that came back first is taken first") {
  bench on(2);
  slots all(on.pages, {{unit, 3}});
  std::vector<block> held;
  for (int i = 0; i < 3; ++i) held.push_back(all.acquire(unit, bench::id(0)).memory);
  const auto same = on.record(1);
  for (const auto which : {2U, 0U, 1U}) all.release(held[which], same);
  for (const auto which : {2U, 0U, 1U}) {
    CHECK(all.acquire(unit, bench::id(0)).memory.data == held[which].data);
  }
  CHECK(all.acquire(unit, bench::id(0)).memory.bytes == 0);  // nothing is left
}
