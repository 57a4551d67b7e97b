#include "tidepool/core/key_map.hpp"

#include <doctest/doctest.h>

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
