#include "tidepool/core/key_map.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <unordered_map>

using tidepool::detail::key_map;

TEST_CASE("key_map: as a map of the library's, whatever comes and goes") {
  for (const std::uint64_t step : {1, 4096, 1 << 20}) {  // addresses are multiples
    key_map map;
    std::unordered_map<std::uint64_t, std::uint32_t> expected;
    std::mt19937_64 random(step);
    for (std::uint32_t i = 0; i < 20000; ++i) {
      const auto key = random() % 300 * step;
      const auto known = expected.find(key);
      const auto found = map.find(key);
      REQUIRE(found == (known == expected.end() ? key_map::none : known->second));
      if (known == expected.end()) {
        map.insert(key, i);
        expected[key] = i;
      } else if (random() % 3 != 0) {
        map.erase(key);
        expected.erase(known);
      }
      REQUIRE(map.size() == expected.size());
    }
    for (const auto& [key, value] : expected) CHECK(map.find(key) == value);
    map.clear();
    CHECK(map.size() == 0);
    for (const auto& [key, value] : expected) CHECK(map.find(key) == key_map::none);
  }
}

TEST_CASE("key_map: a search passes over few slots, wherever keys differ") {
  constexpr std::uint64_t count = 4096;
  const auto check = [&](const char* keys, auto key_of) {
    CAPTURE(keys);
    key_map map;
    for (std::uint64_t i = 0; i < count; ++i) {
      map.insert(key_of(i), static_cast<std::uint32_t>(i));
    }
    std::size_t all = 0;
    std::size_t most = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto passed = map.passed_over(key_of(i));
      all += passed;
      most = std::max(most, passed);
    }
    CHECK(all < count);  // half full, and well spread: about a third of this
    CHECK(most < 64);
  };
  for (unsigned shift = 0; shift <= 52; ++shift) {
    CAPTURE(shift);
    check("in one run of bits", [=](std::uint64_t i) { return i << shift; });
    check("beside a constant", [=](std::uint64_t i) { return (i << shift) + 0x7F0000001000U; });
    if (shift < 32) continue;
    check("in two runs", [=](std::uint64_t i) { return (i % 64) << shift | i / 64; });
  }
}
