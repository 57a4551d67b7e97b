#include "tidepool/memory/ranges.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "heap_counter.hpp"

namespace {

using tidepool::block;
using tidepool::block_alignment;
using tidepool::fence;
using tidepool::grant;
using tidepool::lane_id;
using tidepool::max_lanes;
using tidepool::ranges;
using tidepool::ticket;

constexpr std::size_t unit = block_alignment;

const auto always = [](const fence&) { return true; };
const auto never = [](const fence&) { return false; };
// Joined unless there is anything to wait for.
const auto nothing_known = [](const fence& ready) { return ready.order() == 0; };

// Regions that nobody touches need no memory behind them.
std::byte* region(std::size_t number) { return reinterpret_cast<std::byte*>((number + 1) << 40); }

ticket at(int lane, std::uint64_t position, std::uint64_t order) {
  return {static_cast<lane_id>(lane), position, order};
}

std::size_t offset(const block& of) {
  return (reinterpret_cast<std::uintptr_t>(of.data) & ((std::uintptr_t{1} << 40) - 1)) / unit;
}
std::size_t offset(const grant& of) { return offset(of.memory); }

block taken(ranges& book, std::size_t units) {
  return book.acquire(units * unit, always, false).memory;
}

// A book over one region of `units`, all of it in use, one block per unit.
struct full_book {
  ranges book;
  std::vector<block> parts;

  explicit full_book(std::size_t units) {
    book.add_region(region(0), units * unit);
    for (std::size_t i = 0; i < units; ++i) parts.push_back(taken(book, 1));
  }
  void release(std::size_t which, std::uint64_t order) {
    book.release(parts[which].index, at(0, order, order));
  }
};

}  // namespace

TEST_CASE("ranges: nothing to give without a region, nor more than there is") {
  ranges book;
  CHECK_FALSE(book.acquire(1, always, true));
  book.add_region(region(0), 4 * unit);
  CHECK_FALSE(book.acquire(4 * unit + 1, always, true));
  CHECK(book.largest_free() == 4 * unit);
  const auto whole = book.acquire(4 * unit, always, false);
  REQUIRE(whole);
  CHECK(whole.memory.data == region(0));
  CHECK(whole.memory.bytes == 4 * unit);
  CHECK_FALSE(book.acquire(1, always, true));
  CHECK(book.largest_free() == 0);
}

TEST_CASE("ranges: blocks are aligned, and as long as they are, not as asked for") {
  ranges book;
  book.add_region(region(0), 8 * unit);
  const auto small = book.acquire(1, always, false);
  const auto odd = book.acquire(unit + 1, always, false);
  REQUIRE(small);
  REQUIRE(odd);
  CHECK(small.memory.bytes == unit);
  CHECK(odd.memory.bytes == 2 * unit);
  CHECK(book.used_bytes() == 3 * unit);
  CHECK(book.free_bytes() == 5 * unit);
  CHECK(reinterpret_cast<std::uintptr_t>(odd.memory.data) % unit == 0);
}

TEST_CASE("ranges: a released range comes back with its fence") {
  full_book all(1);
  all.release(0, 7);
  const auto again = all.book.acquire(unit, never, true);
  REQUIRE(again);
  CHECK(again.ready.position(0) == 7);
  CHECK(again.ready.order() == 7);
}

TEST_CASE("ranges: a request that may not wait takes only what is joined") {
  full_book all(2);
  all.release(0, 5);
  CHECK_FALSE(all.book.acquire(unit, nothing_known, false));
  all.book.release(all.parts[1].index, fence{});
  const auto free = all.book.acquire(unit, nothing_known, false);
  REQUIRE(free);
  CHECK(offset(free) == 1);
}

TEST_CASE("ranges: what is joined comes before what is older") {
  full_book all(3);
  all.release(0, 5);
  all.book.release(all.parts[2].index, fence{});
  const auto free = all.book.acquire(unit, nothing_known, true);
  REQUIRE(free);
  CHECK(offset(free) == 2);
}

TEST_CASE("ranges: of those to wait for, the oldest") {
  full_book all(6);
  all.release(4, 40);
  all.release(0, 10);
  all.release(2, 20);
  CHECK(offset(all.book.acquire(unit, never, true)) == 0);
  CHECK(offset(all.book.acquire(unit, never, true)) == 2);
  CHECK(offset(all.book.acquire(unit, never, true)) == 4);
}

TEST_CASE("ranges: one of its own class comes before an older one that would have to be cut up") {
  ranges book;
  book.add_region(region(0), 8 * unit);
  const auto large = taken(book, 4);
  static_cast<void>(taken(book, 1));
  const auto small = taken(book, 1);
  static_cast<void>(taken(book, 2));
  book.release(large.index, at(0, 1, 1));
  book.release(small.index, at(0, 2, 2));
  CHECK(offset(book.acquire(unit, never, true)) == offset(small));
  CHECK(offset(book.acquire(unit, never, true)) >= offset(large));  // then the only one there is
}

TEST_CASE("ranges: two sizes that alternate come from the two ends, and leave room for the large") {
  ranges book;
  book.add_region(region(0), 22 * unit);
  std::vector<std::uint32_t> small;
  for (int i = 0; i < 2; ++i) {
    static_cast<void>(taken(book, 7));
    small.push_back(taken(book, 4).index);
  }
  for (const auto index : small) book.release(index, {});
  // Between the large ones they would be two holes of 4.
  CHECK(book.acquire(8 * unit, always, false));
}

TEST_CASE("ranges: a joined request takes the smallest class that fits, to spare the large ones") {
  ranges book;
  book.add_region(region(0), 64 * unit);
  const auto large = taken(book, 32);
  static_cast<void>(taken(book, 1));
  const auto small = taken(book, 4);
  static_cast<void>(taken(book, 27));
  book.release(large.index, {});
  book.release(small.index, {});
  CHECK(offset(book.acquire(4 * unit, always, false)) == offset(small));
}

TEST_CASE("ranges: neighbours are joined, and carry the fences of all of them") {
  full_book all(4);
  all.book.release(all.parts[1].index, at(1, 5, 50));
  all.book.release(all.parts[2].index, at(2, 6, 60));
  all.book.release(all.parts[3].index, at(1, 4, 40));
  CHECK(all.book.largest_free() == 3 * unit);
  const auto run = all.book.acquire(3 * unit, never, true);
  REQUIRE(run);
  CHECK(offset(run) == 1);
  CHECK(run.ready.position(1) == 5);
  CHECK(run.ready.position(2) == 6);
  CHECK(run.ready.order() == 60);
}

TEST_CASE("ranges: no more neighbours are joined than needed, and the rest keeps its own fence") {
  full_book all(4);
  for (std::size_t i = 0; i < 4; ++i) all.release(i, i + 1);
  const auto run = all.book.acquire(2 * unit, never, true);
  REQUIRE(run);
  CHECK(offset(run) == 0);
  CHECK(run.ready.order() == 2);
  CHECK(all.book.acquire(unit, never, true).ready.order() == 3);
  CHECK(all.book.acquire(unit, never, true).ready.order() == 4);
}

TEST_CASE("ranges: among many free ones a request that cuts joins neighbours, with all fences") {
  const auto up_to = [](std::uint64_t known) {
    return [known](const fence& ready) { return ready.position(0) <= known; };
  };
  for (const std::uint64_t known : {3, 9}) {
    ranges book(64);
    book.add_region(region(0), 400 * unit);
    std::vector<block> pairs;
    for (int i = 0; i < 200; ++i) pairs.push_back(taken(book, 2));
    for (std::size_t i = 0; i < 200; ++i) book.release(pairs[i].index, at(0, i + 1, i + 1));
    const auto whole = book.acquire(2 * unit, up_to(known), false);  // which is not cut
    REQUIRE(whole);
    book.release(whole.memory.index, at(0, 1, 1));
    CHECK_FALSE(book.acquire(3 * unit, up_to(1), false));

    const auto all = 2 * known;  // units; eight neighbours are as many as it takes
    REQUIRE(offset(book.acquire(unit, up_to(known), false)) == all - 1);
    CHECK_FALSE(book.acquire(unit, up_to(known - 1), false));  // by another lane: it has to wait
    CHECK_FALSE(book.acquire(all * unit, up_to(known), false));
    const auto rest = book.acquire((all - 1) * unit, up_to(known - 1), true);
    REQUIRE(rest);
    CHECK(offset(rest) == 0);
    CHECK(rest.ready.position(0) == known);
  }
}

TEST_CASE("ranges: the run whose fence is oldest") {
  full_book all(7);
  // Two runs of three, parted by a block in use; the right one was free earlier.
  for (const auto [which, order] : std::array<std::array<std::size_t, 2>, 6>{
           {{4, 1}, {5, 2}, {6, 3}, {0, 4}, {1, 5}, {2, 6}}}) {
    all.release(which, order);
  }
  const auto run = all.book.acquire(3 * unit, never, true);
  REQUIRE(run);
  CHECK(offset(run) == 4);
  CHECK(run.ready.order() == 3);
}

TEST_CASE("ranges: a run that is joined comes before a single range that is not") {
  ranges book;
  book.add_region(region(0), 5 * unit);
  const auto first = taken(book, 1);
  const auto second = taken(book, 1);
  static_cast<void>(taken(book, 1));
  const auto pair = taken(book, 2);
  book.release(pair.index, at(0, 9, 9));
  book.release(first.index, fence{});
  book.release(second.index, fence{});
  const auto run = book.acquire(2 * unit, nothing_known, true);
  REQUIRE(run);
  CHECK(offset(run) == 0);
}

TEST_CASE("ranges: snug requests fill the run that is filled best, whatever its fences") {
  full_book all(9);
  // Runs of one, of three and of two, all in flight but the second.
  for (const std::size_t which : {0, 6, 7}) all.release(which, 1 + which);
  for (const std::size_t which : {2, 3, 4}) all.book.release(all.parts[which].index, fence{});
  const auto snug = [&](std::size_t units) {
    grant result;
    if (const auto found = all.book.find_snug(units * unit, nothing_known)) {
      all.book.take(found, units * unit, result.memory, result.ready);
    }
    return result;
  };
  const auto pair = snug(2);
  CHECK(offset(pair) == 6);
  CHECK(pair.ready.order() == 8);
  CHECK(offset(snug(1)) == 0);
  const auto rest = snug(3);
  CHECK(offset(rest) == 2);
  CHECK(rest.ready.order() == 0);
  CHECK_FALSE(snug(1));
}

TEST_CASE("ranges: of the run that a snug request fills only what it needs is joined") {
  // Small ones come from the end of a run, large ones from its front.
  for (const std::size_t units : {1, 4}) {
    CAPTURE(units);
    ranges book;
    book.add_region(region(0), 8 * unit);
    const auto left = taken(book, 4);
    const auto right = taken(book, 4);
    book.release(left.index, at(0, 9, 9));
    book.release(right.index, at(1, 8, 8));
    grant got;
    const auto found = book.find_snug(units * unit, nothing_known);
    REQUIRE(found);
    book.take(found, units * unit, got.memory, got.ready);
    CHECK(got.ready.position(0) == (units == 4 ? 9 : 0));
    CHECK(got.ready.position(1) == (units == 4 ? 0 : 8));
    CHECK(book.find_snug(4 * unit, nothing_known));
  }
}

TEST_CASE("ranges: snug requests wait for nothing while eight of the largest would stay free") {
  ranges book;
  book.add_region(region(0), 12 * unit);
  const auto first = taken(book, 1);
  book.release(first.index, at(0, 9, 9));
  for (const std::size_t expected : {1, 2, 3, 4, 0}) {
    grant got;
    const auto found = book.find_snug(unit, nothing_known);
    REQUIRE(found);
    book.take(found, unit, got.memory, got.ready);
    CHECK(offset(got) == expected);
  }
}

TEST_CASE("ranges: a sparing request leaves the last room for the largest block whole") {
  // By their offsets: 0 in flight, 2 to 5 free, 6 to 9 used or free, 12 in flight or joined.
  struct layout {
    bool second_run;
    bool joined_unit;
    std::size_t expected;
  };
  for (const auto& each :
       {layout{false, false, 0}, layout{false, true, 12}, layout{true, false, 5}}) {
    CAPTURE(each.expected);
    ranges book;
    book.add_region(region(0), 14 * unit);
    const auto in_flight = taken(book, 1);
    static_cast<void>(taken(book, 1));
    const auto large = taken(book, 4);
    static_cast<void>(taken(book, 1));
    const auto between = taken(book, 1);
    static_cast<void>(taken(book, 1));
    const auto second = taken(book, 4);
    static_cast<void>(taken(book, 1));
    book.release(in_flight.index, at(0, 9, 1));
    book.release(large.index, fence{});
    book.release(between.index, each.joined_unit ? fence{} : at(0, 9, 2));
    if (each.second_run) book.release(second.index, fence{});
    const auto found = book.find_sparing(unit, nothing_known);
    REQUIRE(found);
    grant got;
    book.take(found, unit, got.memory, got.ready);
    CHECK(offset(got) == each.expected);
    CHECK(got.ready.position(0) == (each.expected == 0 ? 9 : 0));
    CHECK(book.largest_free() == 4 * unit);
  }
}

TEST_CASE("ranges: a sparing request without another way takes the last room") {
  ranges book;
  book.add_region(region(0), 6 * unit);
  const auto large = taken(book, 4);
  static_cast<void>(taken(book, 2));
  book.release(large.index, fence{});
  for (const std::size_t expected : {3, 2, 1, 0}) {
    const auto found = book.find_sparing(unit, nothing_known);
    REQUIRE(found);
    grant got;
    book.take(found, unit, got.memory, got.ready);
    CHECK(offset(got) == expected);
  }
  CHECK_FALSE(book.find_sparing(unit, nothing_known));
}

TEST_CASE("ranges: regions are no neighbours") {
  ranges book;
  book.add_region(region(0), 2 * unit);
  book.add_region(region(0) + 2 * unit, 2 * unit);  // even where their addresses touch
  CHECK(book.largest_free() == 2 * unit);
  CHECK_FALSE(book.acquire(3 * unit, always, true));
  CHECK(book.acquire(2 * unit, always, true));
  CHECK(book.acquire(2 * unit, always, true));
}

// Random requests against a map of units.
TEST_CASE("ranges: random programs never overlap, lose or invent a byte, or forget a fence") {
  struct unit_state {
    bool used = false;
    fence ready;
  };
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto any = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
    ranges book;
    std::map<std::byte*, std::vector<unit_state>> model;  // by region
    std::size_t total = 0;
    const auto add_region = [&] {
      const auto units = 8 + any(120);
      auto* const base = region(model.size());
      book.add_region(base, units * unit);
      model[base].resize(units);
      total += units * unit;
    };
    const auto longest = [&] {
      std::size_t best = 0;
      for (const auto& [base, units] : model) {
        std::size_t run = 0;
        for (const auto& each : units) best = std::max(best, run = each.used ? 0 : run + 1);
      }
      return best * unit;
    };
    const auto units_of = [&](const block& of) {
      auto* const data = static_cast<std::byte*>(of.data);
      auto found = model.upper_bound(data);
      --found;
      const auto first = static_cast<std::size_t>(data - found->first) / unit;
      REQUIRE(first * unit == static_cast<std::size_t>(data - found->first));
      const auto count = of.bytes / unit;
      REQUIRE(first + count <= found->second.size());
      return std::span(found->second).subspan(first, count);
    };
    add_region();
    std::vector<block> held;
    std::size_t used = 0;
    std::array<std::uint64_t, max_lanes> position{};
    std::array<std::uint64_t, max_lanes> known{};
    std::uint64_t order = 0;
    for (int i = 0; i < 1500; ++i) {
      if (i == 400) add_region();
      if (any(100) == 0) known = position;  // a lane that has waited for everything
      if (held.empty() || any(5) < 3) {
        const auto bytes = 1 + any(any(4) == 0 ? 40 * unit : 5 * unit);
        const bool may_wait = any(2) == 0;
        const auto joined = [&](const fence& ready) {
          for (std::size_t lane = 0; lane < max_lanes; ++lane) {
            if (ready.position(lane) > known[lane]) return false;
          }
          return true;
        };
        const auto room = longest();
        CHECK(book.largest_free() == room);
        const auto how = may_wait ? any(3) : 0;
        grant got;
        if (const auto found = how == 1   ? book.find_snug(bytes, joined)
                               : how == 2 ? book.find_sparing(bytes, joined)
                                          : book.find(bytes, joined, may_wait)) {
          book.take(found, bytes, got.memory, got.ready);
        }
        if (!got) {
          if (may_wait) CHECK(room < tidepool::aligned(bytes));
          continue;
        }
        CHECK(got.memory.bytes == tidepool::aligned(bytes));
        if (!may_wait) CHECK(joined(got.ready));
        for (auto& each : units_of(got.memory)) {
          CHECK_FALSE(each.used);
          each.used = true;
          if (joined(each.ready)) continue;  // the asker need not hear of it again
          for (std::size_t lane = 0; lane < max_lanes; ++lane) {
            CHECK(got.ready.position(lane) >= each.ready.position(lane));
          }
        }
        used += tidepool::aligned(bytes);
        held.push_back(got.memory);
      } else {
        const auto which = any(held.size());
        fence after;
        for (auto parts = any(3); parts > 0; --parts) {
          const auto lane = any(max_lanes);
          after.add(ticket{static_cast<lane_id>(lane), ++position[lane], ++order});
        }
        for (auto& each : units_of(held[which])) each = {false, after};
        used -= held[which].bytes;
        book.release(held[which].index, after);
        held[which] = held.back();
        held.pop_back();
      }
      CHECK(book.used_bytes() == used);
      CHECK(book.free_bytes() == total - used);
    }
    // When all is free and joined, every region comes back in one piece.
    for (const auto& each : held) book.release(each.index, {});
    std::set<std::size_t> sizes;
    for (const auto& [base, units] : model) sizes.insert(units.size());
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
      CHECK(book.acquire(*size * unit, always, false));
    }
  }
}

TEST_CASE("ranges: a place that is free is taken where it was asked for") {
  ranges book;
  book.add_region(region(0), 4 * unit);
  book.add_region(region(1), 8 * unit);
  block mine;
  fence ready;
  REQUIRE(book.take_at(region(1) + 3 * unit, 2 * unit, always, mine, ready));
  CHECK(mine.data == region(1) + 3 * unit);
  CHECK(mine.bytes == 2 * unit);
  CHECK(book.used_bytes() == 2 * unit);
  CHECK(book.free_bytes() == 10 * unit);
  block other;
  CHECK_FALSE(book.take_at(region(1) + 2 * unit, 2 * unit, always, other, ready));
  CHECK_FALSE(book.take_at(region(1) + 4 * unit, unit, always, other, ready));
  CHECK_FALSE(book.take_at(region(1) + 5 * unit, 4 * unit, always, other, ready));  // beyond
  CHECK_FALSE(book.take_at(region(2), unit, always, other, ready));
  CHECK_FALSE(other);
  CHECK(book.free_bytes() == 10 * unit);
  REQUIRE(book.take_at(region(1), 3 * unit, always, other, ready));
  REQUIRE(book.take_at(region(1) + 5 * unit, 3 * unit, always, other, ready));
  CHECK(book.largest_free() == 4 * unit);
}

TEST_CASE("ranges: a place of several parts comes with the fences of all of them") {
  full_book all(6);
  all.release(1, 10);
  all.release(2, 30);
  all.release(3, 20);
  block mine;
  fence ready;
  CHECK_FALSE(all.book.take_at(region(0) + 2 * unit, 3 * unit, never, mine, ready));
  REQUIRE(all.book.take_at(region(0) + 2 * unit, 2 * unit, never, mine, ready));
  CHECK(ready.position(0) == 30);
  fence left;
  block first;
  REQUIRE(all.book.take_at(region(0) + unit, unit, never, first, left));
  CHECK(left.position(0) == 10);
  CHECK(all.book.free_bytes() == 0);
  all.book.release(mine.index, fence{});
  fence joined;
  REQUIRE(all.book.take_at(region(0) + 3 * unit, unit, always, mine, joined));
  CHECK(joined.order() == 0);
}

TEST_CASE("ranges: places and requests go on beside each other without ever sharing a byte") {
  std::mt19937_64 random(17);
  constexpr std::size_t units = 64;
  ranges book;
  book.add_region(region(0), units * unit);
  std::vector<block> held;
  std::array<bool, units> used{};
  const auto mark = [&](const block& of, bool now) {
    bool as_expected = true;
    for (std::size_t i = offset(of); i < offset(of) + of.bytes / unit; ++i) {
      as_expected = as_expected && used.at(i) != now;
      used.at(i) = now;
    }
    return as_expected;
  };
  bool good = true;
  for (int i = 0; i < 20'000; ++i) {
    const auto roll = random() % 3;
    if (roll == 0 && !held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      good = good && mark(held.back(), false);
      book.release(held.back().index,
                   at(0, static_cast<std::uint64_t>(i) + 1, static_cast<std::uint64_t>(i) + 1));
      held.pop_back();
      continue;
    }
    const std::size_t size = 1 + random() % 9;
    block mine;
    fence ready;
    if (roll == 1) {
      const std::size_t from = random() % units;
      const bool free = from + size <= units &&
                        std::none_of(used.begin() + static_cast<std::ptrdiff_t>(from),
                                     used.begin() + static_cast<std::ptrdiff_t>(from + size),
                                     [](bool each) { return each; });
      const bool got = book.take_at(region(0) + from * unit, size * unit, never, mine, ready);
      good = good && got == free && (!got || offset(mine) == from);
    } else if (const auto found = book.acquire(size * unit, never, true)) {
      mine = found.memory;
    }
    if (!mine) continue;
    good = good && mine.bytes == size * unit && mark(mine, true);
    held.push_back(mine);
  }
  CHECK(good);
  for (const auto& each : held) book.release(each.index, fence{});
  book.join_if_unused();
  CHECK(taken(book, units).data == region(0));
}

TEST_CASE("ranges: without host memory for its book nothing is taken, and nothing is lost") {
  for (const bool placed : {true, false}) {
    CAPTURE(placed);
    ranges book;
    constexpr std::size_t units = 64;
    book.add_region(region(0), units * unit);
    std::vector<block> held;
    held.reserve(units);
    int failures = 0;
    for (std::size_t i = 0; i < units; i += 2) {
      block mine;
      fence ready;
      const auto take = [&] {
        if (placed) return book.take_at(region(0) + i * unit, unit, always, mine, ready);
        const auto found = book.find(unit, always, true);
        if (found) book.take(found, unit, mine, ready);
        return static_cast<bool>(found);
      };
      const auto before = book.free_bytes();
      try {
        const tidepool::test::no_heap refused;
        static_cast<void>(take());
      } catch (const std::bad_alloc&) {
        ++failures;
        CHECK_FALSE(mine);
        CHECK(book.free_bytes() == before);
        REQUIRE(take());
      }
      held.push_back(mine);
    }
    CHECK(failures > 0);
    for (const auto& each : held) book.release(each.index, fence{});
    book.join_if_unused();
    CHECK(book.free_bytes() == units * unit);
    CHECK(taken(book, units).data == region(0));
  }
}
