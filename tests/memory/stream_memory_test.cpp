#include "tidepool/memory/stream_memory.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

#include "lane_bench.hpp"
#include "tidepool/device/virtual.hpp"

namespace {

using tidepool::block_alignment;
using tidepool::borrowed_memory;

using bench = tidepool::test::lane_bench<tidepool::virtual_device>;

constexpr std::size_t unit = block_alignment;

}  // namespace

TEST_CASE("stream_memory: it counts what it holds, the most ever, and its calls") {
  bench on(2);
  borrowed_memory borrowed(on.order);
  std::uintptr_t next = 0;
  std::size_t room = 6 * unit;
  const auto made = tidepool::memory_on<bench::device_type>(
      on.streams[0].ref(),
      [&](std::size_t bytes) -> void* {
        if (bytes > room) return nullptr;
        room -= bytes;
        return reinterpret_cast<void*>(++next << 40);
      },
      [&](void*, std::size_t bytes) { room += bytes; });
  auto& all = *made;
  all.attach(on.order, borrowed);
  CHECK(all.reserved() == 0);
  CHECK(all.peak() == 0);
  CHECK(all.budget() == 0);
  CHECK(all.allocations() == 0);
  const auto first = all.acquire(2 * unit - 1, bench::id(0));
  const auto second = all.acquire(3 * unit, bench::id(0));
  REQUIRE(first);
  REQUIRE(second);
  CHECK(all.reserved() == 5 * unit);
  CHECK_FALSE(all.acquire(2 * unit, bench::id(0)));
  CHECK(all.reserved() == 5 * unit);
  CHECK(all.allocations() == 2);
  all.release(first.memory, {});
  CHECK(all.reserved() == 3 * unit);
  CHECK(all.peak() == 5 * unit);
  CHECK(room == 3 * unit);
  all.release(second.memory, {});
  CHECK(all.reserved() == 0);
  CHECK(all.peak() == 5 * unit);
  CHECK(room == 6 * unit);
}
