// What pool and slots ask of the device's allocator, call by call.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "heap_fault.hpp"
#include "lane_bench.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/memory/pool.hpp"
#include "tidepool/memory/slots.hpp"

namespace {

using tidepool::block;
using tidepool::block_alignment;
using tidepool::out_of_budget;
using tidepool::pool;
using tidepool::slot_ring;
using tidepool::slots;
using tidepool::test::heap_now;

using bench = tidepool::test::lane_bench<tidepool::virtual_device>;

constexpr std::size_t unit = block_alignment;

/// Hands out addresses with nothing behind them, and takes none of the heap itself.
class strict_pages final : public tidepool::page_allocator {
 public:
  explicit strict_pages(std::size_t most = std::numeric_limits<std::size_t>::max()) : most_(most) {}

  [[nodiscard]] void* try_allocate(std::size_t bytes) override {
    ++asked;
    latest = bytes;
    if (bytes > most_ || made_ == held_.size()) return nullptr;
    held_.at(made_) = true;
    ++held;
    return reinterpret_cast<void*>(++made_ << 40);
  }
  void deallocate(void* pages) noexcept override {
    const auto number = (reinterpret_cast<std::uintptr_t>(pages) >> 40) - 1;
    if (number >= made_ || !held_.at(number)) {
      ++strangers;
      return;
    }
    held_.at(number) = false;
    --held;
  }
  [[nodiscard]] std::size_t free_bytes() const override { return 0; }

  std::size_t asked = 0;
  std::size_t latest = 0;  // bytes
  std::size_t held = 0;
  std::size_t strangers = 0;  // given back, and not held

 private:
  std::size_t most_;
  std::size_t made_ = 0;
  std::array<bool, 64> held_{};
};

/// Runs `uses` with each allocation of the heap failing in turn, until none does.
template <class Uses>
void each_allocation_fails(const Uses& uses) {
  bool failed = true;
  for (std::uint64_t number = 1; failed; ++number) {
    CAPTURE(number);
    strict_pages pages;
    uses(pages, [&](const auto& call) {
      heap_now = {true, heap_now.seen, number};
      try {
        call();
      } catch (const std::bad_alloc&) {
      }
      heap_now.watched = false;
    });
    failed = heap_now.seen >= number;
    heap_now = {};
    CHECK(pages.held == 0);
    CHECK(pages.strangers == 0);
  }
}

}  // namespace

TEST_CASE("pool: whatever host memory it misses, each region goes back to the device once") {
  bench on(1);
  each_allocation_fails([&](strict_pages& pages, const auto& watched) {
    pool all(pages, on.order, {2 * unit, 0});
    std::array<block, 8> got;
    for (auto& each : got) {
      watched([&] { each = all.acquire(unit, bench::id(0)).memory; });
    }
    for (auto& each : got) {
      if (!each) each = all.acquire(unit, bench::id(0)).memory;  // the next call works
      CHECK(each);
    }
    all.release(got[0], tidepool::fence{});
    all.release(got[1], tidepool::fence{});
    static_cast<void>(all.give_back_unused());
    CHECK(all.acquire(unit, bench::id(0)));
  });
}

TEST_CASE("slots: whatever host memory they miss, each ring goes back to the device once") {
  each_allocation_fails([&](strict_pages& pages, const auto& watched) {
    const std::vector<slot_ring> shapes{{unit, 2}, {4 * unit, 1}, {2 * unit, 3}};
    watched([&] { const slots all(pages, shapes); });
  });
}

TEST_CASE("pool: a region that it has given back is not given back again at the end") {
  bench on(1);
  strict_pages pages;
  {
    pool all(pages, on.order, {2 * unit, 0});
    const auto first = all.acquire(2 * unit, bench::id(0)).memory;
    const auto second = all.acquire(2 * unit, bench::id(0)).memory;
    all.release(first, tidepool::fence{});
    CHECK(all.give_back_unused());
    CHECK(pages.held == 1);
    all.release(second, tidepool::fence{});
  }
  CHECK(pages.held == 0);
  CHECK(pages.strangers == 0);
}

TEST_CASE("pool: the device is asked a second time only for less") {
  bench on(1);
  strict_pages pages(4 * unit);
  pool all(pages, on.order, {4 * unit, 0});
  CHECK_FALSE(all.acquire(6 * unit, bench::id(0)));
  CHECK(pages.asked == 1);
  pool steps(pages, on.order, {16 * unit, 0});
  CHECK(steps.acquire(unit, bench::id(0)));
  CHECK(pages.asked == 3);
  CHECK(pages.latest == unit);
}

TEST_CASE("slots: a ring larger than 64 bits hold is refused before the device is asked") {
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  for (const auto count : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
    CAPTURE(count);
    strict_pages pages(0);
    // The largest for which there is room to round each slot up.
    const auto bytes = most / count - unit;
    CHECK_THROWS_AS(slots(pages, {{bytes, count}}), out_of_budget);
    CHECK(pages.asked == 1);
    CHECK(pages.latest / count >= bytes);
    CHECK_THROWS_AS(slots(pages, {{most / count, count}}), out_of_budget);
    CHECK(pages.asked == 1);
  }
}
