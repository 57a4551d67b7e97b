#include "tidepool/memory/borrowed.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lane_bench.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/memory/soft_budget.hpp"

namespace {

using tidepool::borrowed_memory;
using tidepool::lane_id;
using tidepool::memory_owner;

using bench = tidepool::test::lane_bench<tidepool::virtual_device>;

constexpr std::size_t unit = 256;

/// Owners that note who has had memory back, in which order.
struct desk {
  std::vector<int> given;  // outlives what notes there
  bench on{4};
  borrowed_memory all{on.order};

  [[nodiscard]] std::uint32_t hold(int who, int home = 2, std::size_t bytes = unit) {
    memory_owner owner([this, who] { given.push_back(who); });
    return all.hold(owner, bench::id(home), bytes);
  }
};

}  // namespace

TEST_CASE("memory_owner: a callable is called once, whoever has it at the end") {
  int calls = 0;
  {
    memory_owner first([&] { ++calls; });
    memory_owner second(std::move(first));
    CHECK_FALSE(first);  // NOLINT(bugprone-use-after-move)
    CHECK(second);
    memory_owner third;
    third = std::move(second);
    CHECK(calls == 0);
    third.give_back();
    CHECK(calls == 1);
    CHECK_FALSE(third);
    third.give_back();
  }
  CHECK(calls == 1);
  {
    const memory_owner dropped([&] { ++calls; });
  }
  CHECK(calls == 2);
}

TEST_CASE("memory_owner: what cannot be called is destroyed, as a reference count") {
  const auto tensor = std::make_shared<int>(1);
  memory_owner owner(tensor);
  CHECK(tensor.use_count() == 2);
  memory_owner other(std::move(owner));
  CHECK(tensor.use_count() == 2);
  other = memory_owner();
  CHECK(tensor.use_count() == 1);
}

TEST_CASE("memory_owner: as much as it may capture, move-only or not") {
  std::array<char, memory_owner::capacity> text{};
  text[0] = 'x';
  memory_owner large([text] { static_cast<void>(text); });
  CHECK(large);
  memory_owner unique([only = std::make_unique<int>(3)] { static_cast<void>(only); });
  memory_owner moved(std::move(unique));
  CHECK(moved);
}

TEST_CASE("borrowed: what the owner's stream has joined goes back at once") {
  desk of;
  of.all.release(of.hold(1), {});
  CHECK(of.given == std::vector{1});
  of.all.release(of.hold(2), of.on.record(2));  // its own work
  CHECK(of.given == std::vector{1, 2});
  const auto copy = of.on.record(0);
  of.on.join(2, copy);
  of.all.release(of.hold(3), copy);
  CHECK(of.given == std::vector{1, 2, 3});
  CHECK(of.all.held() == 0);
  CHECK(of.all.peak() == unit);
  CHECK(of.all.joins() == 0);
}

TEST_CASE("borrowed: the rest waits, and beyond the slack the oldest is joined") {
  desk of;
  of.all.set_slack(2 * unit);
  for (int i = 1; i <= 4; ++i) {
    of.on.dev.launch(of.on.streams[0].ref(), 100, nullptr);
    of.all.release(of.hold(i), of.on.record(0));
    CHECK(of.all.waiting() <= 2 * unit);
  }
  CHECK(of.given == std::vector{1, 2});
  CHECK(of.all.joins() == 2);
  of.all.give_back(0);
  CHECK(of.given == std::vector{1, 2, 3, 4});
  CHECK(of.all.joins() == 4);
}

TEST_CASE("borrowed: one join takes all with it that came before") {
  desk of;
  std::vector<std::uint32_t> held;
  for (int i = 1; i <= 3; ++i) held.push_back(of.hold(i));
  of.on.dev.launch(of.on.streams[0].ref(), 100, nullptr);
  const auto copy = of.on.record(0);
  for (const auto each : held) of.all.release(each, copy);
  of.all.give_back(2 * unit);
  CHECK(of.given == std::vector{1, 2, 3});
  CHECK(of.all.joins() == 1);
}

TEST_CASE("borrowed: each owner's stream has its own line, the oldest of all is joined first") {
  desk of;
  for (int i = 1; i <= 4; ++i) {
    of.on.dev.launch(of.on.streams[0].ref(), 100, nullptr);
    of.all.release(of.hold(i, i % 2 == 0 ? 2 : 3), of.on.record(0));
  }
  CHECK(of.given.empty());
  of.all.give_back(3 * unit);
  CHECK(of.given == std::vector{1});
  of.all.give_back(2 * unit);
  CHECK(of.given == std::vector{1, 2});
}

TEST_CASE("borrowed: what is over goes back without a join, where the device says so") {
  desk of;
  of.on.dev.launch(of.on.streams[0].ref(), 100, nullptr);
  of.all.release(of.hold(1), of.on.record(0));
  of.all.give_back();
  CHECK(of.given.empty());
  of.on.dev.synchronize();
  of.all.give_back();
  CHECK(of.given == std::vector{1});
  CHECK(of.all.joins() == 0);
}

TEST_CASE("borrowed: a device that cannot say is asked for joins alone") {
  tidepool::test::lane_bench<tidepool::null_device> on(3);
  borrowed_memory all(on.order);
  int given = 0;
  memory_owner owner([&] { ++given; });
  const auto number = all.hold(owner, static_cast<lane_id>(2), unit);
  all.release(number, on.record(0));
  CHECK(given == 0);
  all.give_back(0);
  CHECK(given == 1);
  CHECK(on.dev.waits == 1);
}

TEST_CASE("borrowed: a position older than the ring is asked for later on its lane") {
  desk of;
  of.all.release(of.hold(1), [&] {
    of.on.dev.launch(of.on.streams[0].ref(), 100, nullptr);
    return of.on.record(0);
  }());
  of.on.dev.synchronize();
  for (std::size_t i = 0; i < 1100; ++i) {
    of.on.dev.launch(of.on.streams[0].ref(), 1, nullptr);
    static_cast<void>(of.on.record(0));
  }
  of.all.give_back();
  CHECK(of.given.empty());  // the event that told it stands for later work now
  of.on.dev.synchronize();
  of.all.give_back();
  CHECK(of.given == std::vector{1});
}

TEST_CASE("borrowed: owners may call back, and numbers are used again") {
  desk of;
  std::vector<int>& given = of.given;
  const auto first = of.hold(1);
  memory_owner caller([&] {
    given.push_back(2);
    of.all.give_back(0);  // as an allocator that is about to grow does
    of.all.release(of.hold(3), {});
  });
  const auto second = of.all.hold(caller, bench::id(2), unit);
  const auto copy = of.on.record(0);
  of.all.release(second, copy);
  of.all.release(first, copy);
  of.all.give_back(0);
  CHECK(given == std::vector{2, 1, 3});
  CHECK(of.all.held() == 0);
  CHECK(of.hold(4) <= 2);
}

TEST_CASE("borrowed: at the end all goes back, in use or not") {
  std::vector<int> given;
  {
    bench on(3);
    borrowed_memory all(on.order);
    memory_owner used([&] { given.push_back(1); });
    memory_owner waits([&] { given.push_back(2); });
    static_cast<void>(all.hold(used, bench::id(2), unit));
    all.release(all.hold(waits, bench::id(2), unit), on.record(0));
    CHECK(given.empty());
  }
  CHECK(given == std::vector{1, 2});
}

TEST_CASE("borrowed: what is abandoned is neither held nor waits, whatever is released later") {
  desk of;
  const auto used = of.hold(1);
  of.all.release(of.hold(2), of.on.record(0));
  CHECK(of.all.held() == 2 * unit);
  of.all.abandon();
  CHECK(of.given == std::vector{1, 2});
  CHECK(of.all.held() == 0);
  CHECK(of.all.waiting() == 0);
  static_cast<void>(used);
}

TEST_CASE("borrowed: an owner that is being called starts no second round") {
  desk of;
  std::vector<int>& given = of.given;
  const auto behind = of.hold(1);
  memory_owner caller([&] {
    of.all.give_back(0);
    given.push_back(2);  // a second round would have called the next owner first
  });
  const auto first = of.all.hold(caller, bench::id(2), unit);
  const auto copy = of.on.record(0);
  of.all.release(first, copy);
  of.all.release(behind, copy);
  of.all.give_back(0);
  CHECK(given == std::vector{2, 1});
}

TEST_CASE("soft_budget: without one nothing is refused, and nothing goes back for it") {
  desk of;
  tidepool::detail::soft_budget none(0);
  CHECK_FALSE(none.limits());
  CHECK(tidepool::detail::soft_budget(1).limits());
  of.on.dev.launch(of.on.streams[0].ref(), 100, nullptr);
  of.all.release(of.hold(1), of.on.record(0));
  CHECK_FALSE(none.refuses(of.all, unit, 100 * unit));
  none.make_room(of.all, unit, 100 * unit);
  CHECK(of.given.empty());
  CHECK_FALSE(none.exceed());
}

TEST_CASE("soft_budget: it is passed only after a refusal, and once until it is kept again") {
  desk of;
  tidepool::detail::soft_budget budget(2 * unit);
  CHECK_FALSE(budget.exceed());  // nothing was refused
  CHECK_FALSE(budget.refuses(of.all, unit, unit));
  CHECK_FALSE(budget.exceed());
  CHECK(budget.refuses(of.all, unit, 2 * unit));
  CHECK(budget.exceed());
  CHECK_FALSE(budget.refuses(of.all, unit, 2 * unit));
  CHECK_FALSE(budget.exceed());
  CHECK(budget.exceeded() == 1);
  budget.keep();
  CHECK(budget.refuses(of.all, unit, 2 * unit));
  CHECK(budget.exceed());
  CHECK(budget.exceeded() == 2);
}

TEST_CASE(
    "soft_budget: what waits and fits beside a request is left alone, also where it just does") {
  desk of;
  tidepool::detail::soft_budget budget(4 * unit);
  for (int i = 1; i <= 2; ++i) {
    of.on.dev.launch(of.on.streams[0].ref(), 100, nullptr);
    of.all.release(of.hold(i), of.on.record(0));
  }
  of.on.dev.synchronize();  // so that it could go back at once
  CHECK_FALSE(budget.refuses(of.all, unit, unit));
  CHECK(of.given.empty());
  CHECK_FALSE(budget.refuses(of.all, unit, 2 * unit));
  CHECK(of.given == std::vector{1, 2});
}

TEST_CASE("borrowed: what nobody holds counts for nothing, a single byte for one") {
  desk of;
  CHECK(of.all.peak() == 0);
  CHECK(of.all.held() == 0);
  CHECK(of.all.waiting() == 0);
  CHECK(of.all.joins() == 0);
  CHECK_FALSE(of.all.giving());
  of.all.release(of.hold(1, 2, 1), {});
  CHECK(of.given == std::vector{1});
  CHECK(of.all.peak() == 1);
  of.all.set_slack(0);
  of.on.dev.launch(of.on.streams[0].ref(), 100, nullptr);
  of.all.release(of.hold(2, 2, 1), of.on.record(0));
  CHECK(of.given == std::vector{1, 2});
  CHECK(of.all.joins() == 1);
}
