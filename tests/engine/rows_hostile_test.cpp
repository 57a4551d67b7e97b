// Counts of rows at their borders and beyond, and trainers that launch, ask and repeat in bad
// order.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "counted_desk.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/rows.hpp"

namespace {

using tidepool::device_count;
using tidepool::machine;
using tidepool::misuse_error;
using tidepool::row_overflow;
using tidepool::unasked_overflow;
using tidepool::test::counted_trainer;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = counted_trainer::offloader;

constexpr auto capacity = counted_trainer::capacity;
constexpr auto row_bytes = counted_trainer::row_bytes;

// What is told of a tensor of 16 rows, of which 4 move, behind a count that is `value`; eagerly,
// and behind a launch.
struct told_of_count {
  std::optional<row_overflow> eagerly, launched;
  std::size_t wrong = 0;  // words of the rows that move
};
template <class Count>
told_of_count tell(Count value, std::uint64_t seed) {
  rig desk(machine{.order_seed = seed});
  offloader off(desk.dev, counted_trainer::roomy());
  Count count = 0;
  const auto step = [&] {
    auto pass = off.begin();
    auto x = off.allocate(capacity * row_bytes, desk.stream());
    desk.write(x, 7);
    desk.dev.launch(desk.stream(), 1000, [&count, value] { count = value; });
    x.counts_rows({.count = &count, .row_bytes = row_bytes, .planned_rows = 4});
    pass.commit<"expert_fc1">(3, desk.stream(), x);
    // The memory of the count gets other contents at once.
    desk.dev.launch(desk.stream(), 1000, [&count] { count = 1; });
    pass.restore<"expert_fc1">(3, desk.stream(), x);
    desk.check_rows(x.data(), {4 * row_bytes, 1, 4 * row_bytes, 0}, 7, 0, desk.stream());
    x.reset(desk.stream());
    pass.finish();
    off.end_step();
  };
  told_of_count told;
  step();
  told.eagerly = off.rows_overflowed();
  auto graph = off.capture(desk.stream(), step);
  graph.launch(desk.stream());
  told.launched = off.rows_overflowed();
  told.wrong = desk.wrong();
  return told;
}

}  // namespace

TEST_CASE_TEMPLATE("rows: a count is told if and only if it is beyond the plan", Count,
                   std::uint32_t, std::int32_t, std::uint64_t, std::int64_t) {
  using limits = std::numeric_limits<Count>;
  std::vector<Count> values{
      0, 1, 3, 4, 5, 15, 16, 17, limits::max(), limits::min(), static_cast<Count>(-1)};
  if constexpr (sizeof(Count) == 8) values.push_back(Count{1} << 32U);  // its low half is 0
  for (const auto value : values) {
    CAPTURE(value);
    using plain = std::conditional_t<sizeof(Count) == 8, std::uint64_t, std::uint32_t>;
    const auto rows = std::uint64_t{static_cast<plain>(value)};  // a count below nothing is none
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const auto told = tell(value, seed);
      CHECK(told.wrong == 0);
      for (const auto& each : {told.eagerly, told.launched}) {
        CHECK(each.has_value() == (rows > 4));
        if (!each) continue;
        CHECK(each->rows == rows);
        CHECK(each->planned == 4);
        CHECK(each->layer == 3);
      }
    }
  }
}

TEST_CASE("rows: one address may hold a short count and a long one") {
  for (const bool short_first : {true, false}) {
    CAPTURE(short_first);
    rig desk;
    offloader off(desk.dev, small_options());
    const std::uint64_t rows = (std::uint64_t{1} << 32U) + 2;
    const device_count narrow(reinterpret_cast<const std::uint32_t*>(&rows));
    auto a = off.allocate(256, desk.stream());
    auto b = off.allocate(256, desk.stream());
    a.counts_rows({.count = short_first ? narrow : &rows, .row_bytes = 16, .planned_rows = 4});
    b.counts_rows({.count = short_first ? &rows : narrow, .row_bytes = 16, .planned_rows = 4});
    auto pass = off.begin();
    pass.commit<"expert_fc1">(0, desk.stream(), a, b);
    const auto told = off.rows_overflowed();
    REQUIRE(told);
    CHECK(told->rows == rows);
  }
}

TEST_CASE("rows: steps overflow in turn, repeats overflow, too, and no loss has another bit") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, counted_trainer::roomy());
    counted_trainer work{desk, off};
    work.planned = 4;
    work.step();
    CHECK_FALSE(off.rows_overflowed());
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    for (int launch = 0; launch < 12; ++launch) {
      CAPTURE(launch);
      // No row at all, the plan to the row, all of the room, and steps beyond a second plan of 8.
      constexpr std::size_t most[]{0, 4, 16, 5, 9, 16};
      const auto rows = most[static_cast<std::size_t>(launch) % 6];
      work.choose([&](int layer) { return layer == launch % 4 ? rows : rows / 2; });
      const auto loss = work.loss;
      graph.launch(desk.stream());
      for (const std::size_t wider : {8, 16}) {
        const auto told = off.rows_overflowed();
        CHECK(told.has_value() == (rows > work.planned));
        if (!told) break;
        CHECK(told->rows == rows);
        CHECK(told->planned == work.planned);
        static_cast<void>(work.all_wrong());
        work.wrong = 0;
        work.loss = loss;
        --work.round;
        work.planned = wider;
        work.step();
      }
      CHECK_FALSE(off.rows_overflowed());
      work.planned = 4;
      CHECK(work.all_wrong() == 0);
      CHECK(work.loss == loss + work.expected_loss());
    }
  }
}

TEST_CASE("rows: a graph that is gone before anybody asked has told all the same") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.planned = 4;
  work.step();
  CHECK_FALSE(off.rows_overflowed());
  work.choose([](int) { return 6; });
  {
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    graph.launch(desk.stream());
  }
  // Other captures must not get the room of its counts.
  CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(), [] {})), unasked_overflow);
  auto other = off.capture(desk.stream(), [&] { work.step(); });
  CHECK_FALSE(off.rows_overflowed());
  other.launch(desk.stream());
  CHECK(off.rows_overflowed()->rows == 6);
}

TEST_CASE("rows: a step without an end, launched again and again, is asked after a while") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.planned = 4;
  work.step();
  CHECK_FALSE(off.rows_overflowed());
  auto graph = off.capture(desk.stream(), [&] {
    work.forward();
    work.backward();
  });
  work.choose([](int) { return 5; });
  graph.launch(desk.stream());
  work.choose([](int) { return 3; });
  const auto launches = [&] {
    for (int i = 0; i < 20'000; ++i) graph.launch(desk.stream());
  };
  CHECK_THROWS_AS(launches(), unasked_overflow);
  graph.launch(desk.stream());
  CHECK_FALSE(off.rows_overflowed());
}

TEST_CASE(
    "rows: who asks in the middle of a step is told of that part alone, and of the rest later") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.planned = 4;
  work.choose([](int layer) { return layer == 1 ? 7 : 4; });
  work.forward();
  CHECK(off.rows_overflowed()->layer == 1);
  CHECK_FALSE(off.rows_overflowed());
  work.backward();
  off.end_step();
  CHECK_FALSE(off.rows_overflowed());
  work.choose([](int layer) { return layer == 2 ? 5 : 4; });
  work.step();
  CHECK(off.rows_overflowed()->layer == 2);
}
