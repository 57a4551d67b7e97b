#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "heap_counter.hpp"
#include "plain_book.hpp"
#include "tidepool/memory/ranges.hpp"

namespace {

using tidepool::block;
using tidepool::block_alignment;
using tidepool::fence;
using tidepool::lane_id;
using tidepool::ranges;
using tidepool::ticket;
using tidepool::test::few_lanes;
using tidepool::test::plain_book;
using tidepool::test::waited_for;

/// A book and the plain one, which are asked for the same.
struct both_books {
  static constexpr std::size_t most_loose = 20;

  ranges book{most_loose};
  plain_book plain{most_loose};
  std::mt19937_64 random;
  std::size_t unit;  // of all sizes
  std::size_t regions = 0;
  std::vector<block> held;
  std::vector<std::byte*> bases;
  waited_for joined;
  waited_for of_other;  // of a second lane, which asks now and then
  std::array<std::uint64_t, few_lanes> position{};
  std::uint64_t order = 0;
  fence latest;

  both_books(std::uint64_t seed, std::size_t of) : random(seed), unit(of) {}

  [[nodiscard]] std::size_t any(std::size_t count) { return random() % count; }

  /// Regions that nobody touches need no memory behind them; some lie below an earlier one.
  void add_region(std::size_t units) {
    auto* const base = reinterpret_cast<std::byte*>((1 + regions++ * 37 % 101) << 48);
    book.add_region(base, units * unit);
    plain.add_region(base, units * unit);
    bases.push_back(base);
  }

  /// Whether both say the same of a request for so many units.
  bool request(std::size_t units) {
    const auto bytes = units * unit - any(block_alignment);
    const auto need = units * unit;
    const bool may_wait = any(4) > 0;
    ranges::place found;
    std::optional<plain_book::spot> expected;
    switch (any(3)) {
      case 0:
        found = book.find(bytes, joined, may_wait);
        expected = plain.find(need, joined, may_wait);
        break;
      case 1:
        found = book.find_snug(bytes, joined);
        expected = plain.find_snug(need, joined);
        break;
      default:
        found = book.find_sparing(bytes, joined);
        expected = plain.find_sparing(need, joined);
    }
    if (static_cast<bool>(found) != expected.has_value()) return false;
    if (!expected) return true;
    if (found.waits != expected->waits) return false;
    block got;
    fence ready;
    book.take(found, bytes, got, ready);
    const auto& taken = plain.take(*expected, need);
    held.push_back(got);
    return same(got, taken) && same(ready, expected->waits ? taken.ready : fence{});
  }

  bool request_at(std::byte* begin, std::size_t units) {
    block got;
    fence ready;
    const bool found = book.take_at(begin, units * unit, joined, got, ready);
    const auto* const taken = plain.take_at(begin, units * unit);
    if (found != (taken != nullptr)) return false;
    if (!found) return true;
    held.push_back(got);
    return same(got, *taken) && same(ready, joined(taken->ready) ? fence{} : taken->ready);
  }

  void release() {
    std::swap(held[any(held.size())], held.back());
    if (any(3) > 0) {  // else behind what the one before it was
      latest = fence{};
      for (auto parts = any(3); parts > 0; --parts) {
        const auto lane = any(few_lanes);
        latest.add(ticket{static_cast<lane_id>(lane), ++position[lane], ++order});
      }
    }
    book.release(held.back().index, latest);
    plain.release(held.back().data, latest);
    held.pop_back();
  }

  bool drop() {
    std::vector<std::pair<std::byte*, std::size_t>> gone;
    book.drop_unused_regions(
        [&](std::byte* base, std::size_t bytes) { gone.emplace_back(base, bytes); });
    for (const auto& each : gone) std::erase(bases, each.first);
    return gone == plain.drop_unused_regions();
  }

  void join_if_unused() {
    book.join_if_unused();
    plain.join_if_unused();
  }

  [[nodiscard]] bool agree() const {
    return book.used_bytes() == plain.used_bytes() && book.free_bytes() == plain.free_bytes() &&
           book.largest_free() == plain.largest_free();
  }

 private:
  [[nodiscard]] static bool same(const block& got, const plain_book::piece& expected) {
    return got.data == expected.begin && got.bytes == expected.bytes;
  }
  [[nodiscard]] static bool same(const fence& got, const fence& expected) {
    for (std::size_t lane = 0; lane < few_lanes; ++lane) {
      if (got.position(lane) != expected.position(lane)) return false;
    }
    return got.order() == expected.order();
  }
};

/// Requests of a few sizes, from regions of `units`.
struct world {
  std::vector<std::size_t> sizes;
  std::size_t units;
  std::size_t unit = block_alignment;
  bool floods = false;  // much is taken, and then much comes back
};

/// A book of one region, in pieces of one unit that are all in use.
struct cut_up {
  ranges book;
  std::vector<block> pieces;

  explicit cut_up(std::size_t count) {
    book.add_region(reinterpret_cast<std::byte*>(std::size_t{1} << 48), count * block_alignment);
    const waited_for nothing;
    for (std::size_t i = 0; i < count; ++i) {
      pieces.push_back(book.acquire(block_alignment, nothing, false).memory);
    }
  }

  /// Whether a snug request gets the one piece that it fits, which it has to wait for, rather than
  /// one of two neighbours that it need not wait for.
  [[nodiscard]] bool fills_best() {
    book.release(pieces[0].index, ticket{lane_id{}, 1, 1});
    book.release(pieces[2].index, fence{});
    book.release(pieces[3].index, fence{});
    const auto found = book.find_snug(block_alignment, waited_for{});
    REQUIRE(found);
    return found.waits;
  }
};

}  // namespace

TEST_CASE("ranges: every answer is that of a book which simply looks at all pieces") {
  constexpr std::size_t tebibyte = std::size_t{1} << 40;  // so that the same holds for large ones
  const std::vector<world> worlds{
      {{1}, 24},
      {{1, 1, 1, 2, 3}, 40},
      {{1, 2, 3, 4, 5, 6, 7, 8}, 30},
      {{1, 3, 9, 12, 13, 16}, 64},
      {{1, 2, 5, 10, 15, 20, 24}, 96},
      {{1, 2, 6, 12}, 12},
      {{1, 2, 3, 4, 5, 6, 7, 8}, 30, tebibyte},
      {{1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14}, 1200, block_alignment, true}};
  std::size_t gatherings = 0;
  for (std::size_t which = 0; which < worlds.size(); ++which) {
    const auto& [sizes, units, unit, floods] = worlds[which];
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(which);
      CAPTURE(seed);
      both_books all(seed, unit);
      const bool places = seed % 2 == 0;
      all.add_region(units);
      bool good = true;
      for (int i = 0; i < (floods ? 2400 : 700) && good; ++i) {
        if (all.any(4) == 0) std::swap(all.joined, all.of_other);
        const auto lane = all.any(few_lanes);
        if (all.any(6) == 0) all.joined.known[lane] = all.position[lane];
        if (all.bases.empty() || (!floods && all.any(60) == 0 && all.regions < 100)) {
          all.add_region(units / (1 + all.any(2)));
        }
        const auto size = sizes[all.any(sizes.size())];
        const auto roll = all.any(100);
        const bool comes_back = floods ? i % 400 > 200 && roll % 4 != 0 : i % 150 > 130;
        if (comes_back && all.held.size() > (floods ? 9 : 0)) {  // now and then all does
          all.release();
        } else if (roll < 3) {
          good = all.drop();
        } else if (roll < 8) {
          all.join_if_unused();
        } else if (roll < 18 && places) {
          auto* const base = all.bases[all.any(all.bases.size())];
          good = all.request_at(base + all.any(units) * unit, size);
        } else if (roll < (floods ? 20 : 55) && !all.held.empty()) {
          all.release();
        } else {
          good = all.request(size);
        }
        CAPTURE(i);
        good = good && all.agree();
        CHECK(good);
      }
      gatherings += all.plain.gatherings;
    }
  }
  CHECK(gatherings > 10);
}

TEST_CASE("ranges: a snug request looks through as many as 1024 pieces, and no more") {
  CHECK(cut_up(1024).fills_best());
  CHECK_FALSE(cut_up(1025).fills_best());
}

TEST_CASE("ranges: regions that have come and gone are no pieces any more") {
  cut_up all(8);
  auto* const base = reinterpret_cast<std::byte*>(std::size_t{2} << 48);
  std::size_t gone = 0;
  for (int i = 0; i < 1100; ++i) {
    all.book.add_region(base, block_alignment);
    all.book.drop_unused_regions([&](std::byte*, std::size_t bytes) { gone += bytes; });
  }
  CHECK(gone == 1100 * block_alignment);
  CHECK(all.fills_best());
}

TEST_CASE("ranges: a region that finds no host memory for its entry leaves nothing behind") {
  cut_up all(1025);
  const auto& last = all.pieces.back();
  const auto& before = all.pieces[all.pieces.size() - 2];
  all.book.release(last.index, fence{});
  all.book.release(before.index, fence{});
  REQUIRE(
      all.book.acquire(2 * block_alignment, waited_for{}, false));  // so that one entry is spare
  {
    const tidepool::test::no_heap refused;
    CHECK_THROWS_AS(all.book.add_region(nullptr, block_alignment), std::bad_alloc);
  }
  CHECK(all.book.free_bytes() == 0);
  CHECK(all.fills_best());  // of 1024 pieces, still
}
