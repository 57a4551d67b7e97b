// The arithmetic of the FP8 codec: what comes back, how far off, and from what blocks.
#include "tidepool/codec/fp8_numbers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "fp8_blocks.hpp"

namespace {

namespace codec = tidepool::codec;
using tidepool::test::bf16_of;
using tidepool::test::bits_of;
using tidepool::test::coded;
using tidepool::test::hard_blocks;
using tidepool::test::value_of;

double largest_of(const std::vector<std::uint16_t>& numbers, std::size_t block) {
  double largest = 0;
  const auto end = std::min((block + 1) * codec::block, numbers.size());
  for (auto i = block * codec::block; i < end; ++i) {
    if (std::isfinite(value_of(numbers[i])))
      largest = std::max(largest, std::abs(value_of(numbers[i])));
  }
  return largest;
}

// Every e4m3 code, decoded by its definition.
double e4m3(unsigned code) {
  const unsigned exponent = code >> 3 & 15U, mantissa = code & 7U;
  const double magnitude =
      exponent == 0 ? mantissa * 0x1p-9 : std::ldexp(8 + mantissa, static_cast<int>(exponent) - 10);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

// The nearest by looking at all of them; of two that are as near, the one with an even code.
std::uint8_t nearest(double scaled) {
  unsigned best = 0;
  for (unsigned code = 1; code < 0x7f; ++code) {
    const double here = std::abs(e4m3(code) - scaled), there = std::abs(e4m3(best) - scaled);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best);
}

}  // namespace

TEST_CASE("fp8: every BF16 number gets the nearest code, ties to even, at every scale") {
  std::size_t wrong = 0, seen = 0;
  for (std::uint32_t largest = 1; largest < codec::bf16_infinity; largest += 61) {
    const auto inverse = 448 / std::bit_cast<float>(codec::range_of(largest));
    for (std::uint32_t below = 0; below <= std::min(largest, 40U * 128U); below += 37) {
      const auto number = static_cast<std::uint16_t>(largest - below);
      const auto expected = nearest(static_cast<float>(value_of(number)) * inverse);
      const auto negative = static_cast<std::uint16_t>(number | 0x8000U);
      if (codec::code_of(number, inverse) != expected) ++wrong;
      if (codec::code_of(negative, inverse) != (expected | 0x80)) ++wrong;
      ++seen;
    }
  }
  CHECK(seen > 50'000);
  CHECK(wrong == 0);
}

TEST_CASE(
    "fp8: the largest number of a block is 448 and comes back to the bit, unless it is subnormal "
    "or nearly so") {
  for (std::uint32_t largest = 1; largest < codec::bf16_infinity; ++largest) {
    const std::vector<std::uint16_t> numbers{0, static_cast<std::uint16_t>(largest | 0x8000U)};
    const auto made = coded(numbers);
    REQUIRE(std::isnormal(made.scales[0]));
    REQUIRE(std::isnormal(1 / made.scales[0]));
    if (value_of(numbers[1]) > -448 * 0x1p-124) {
      REQUIRE(made.scales[0] == 0x1p-124F);
    } else {
      REQUIRE(made.codes[1] == 0xfe);
      REQUIRE(made.back == numbers);
    }
  }
}

TEST_CASE("fp8: no number comes back further off than the bound") {
  for (const auto& each : hard_blocks()) {
    CAPTURE(each.first);
    const auto& numbers = each.second;
    const auto [codes, scales, back] = coded(numbers);
    REQUIRE(scales.size() == codec::blocks_in(numbers.size()));
    std::size_t beyond = 0, lost = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double x = value_of(numbers[i]), y = value_of(back[i]);
      if (!std::isfinite(x)) {
        if (!std::isnan(y)) ++lost;
        continue;
      }
      const double largest = largest_of(numbers, i / codec::block);
      const double scale = largest == 0 ? 1 : std::max(largest / 448, 0x1p-124);
      REQUIRE(scales[i / codec::block] == static_cast<float>(scale));
      if (!(std::abs(y - x) <= std::max(0.063 * std::abs(x), scale / 990) + 0x1p-134)) ++beyond;
      if (std::signbit(x) != std::signbit(y)) ++lost;
    }
    CHECK(beyond == 0);
    CHECK(lost == 0);
  }
}

TEST_CASE(
    "fp8: what e4m3 holds at the block's scale comes back to the bit, from the least to the most") {
  std::size_t wrong = 0;
  for (int power = -124; power <= 119; ++power) {
    for (const double odd : {1.0, 1.3, 1.9}) {
      const double scale = value_of(bf16_of(std::ldexp(448 * odd, power))) / 448;
      if (!std::isfinite(std::bit_cast<float>(bits_of(static_cast<float>(512 * scale))))) continue;
      std::vector<std::uint16_t> numbers;
      for (unsigned code = 0; code < 0x7f; ++code) numbers.push_back(bf16_of(e4m3(code) * scale));
      numbers.push_back(bf16_of(-448 * scale));
      REQUIRE(numbers.size() == codec::block);
      const auto [codes, scales, back] = coded(numbers);
      REQUIRE(scales[0] == static_cast<float>(scale));
      for (unsigned code = 0; code < 0x7f; ++code) wrong += codes[code] == code ? 0 : 1;
      wrong += codes[127] == 0xfe ? 0 : 1;
      wrong += back == numbers ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("fp8: what was decoded is encoded to the same codes, and decodes to the same bits") {
  for (const auto& each : hard_blocks()) {
    CAPTURE(each.first);
    const auto& numbers = each.second;
    const auto once = coded(numbers);
    const auto twice = coded(once.back);
    CHECK(twice.codes == once.codes);
    CHECK(twice.back == once.back);
  }
}

TEST_CASE("fp8: blocks of zeros have scale 1 and keep the signs") {
  std::vector<std::uint16_t> numbers(2 * codec::block + 3, 0);
  numbers[5] = numbers[codec::block] = 0x8000;
  const auto [codes, scales, back] = coded(numbers);
  CHECK(scales == std::vector<float>(3, 1));
  CHECK(codes[5] == 0x80);
  CHECK(codes[6] == 0);
  CHECK(back == numbers);
}

TEST_CASE(
    "fp8: NaN and infinities come back as NaN, and the others of their block as without them") {
  std::vector<std::uint16_t> numbers(codec::block);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = bf16_of(0.01 * static_cast<double>(i));
  const auto calm = coded(numbers);
  auto wild = numbers;
  const std::vector<std::uint16_t> strange{0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7f81, 0xffff};
  std::copy(strange.begin(), strange.end(), wild.begin() + 20);
  const auto [codes, scales, back] = coded(wild);
  CHECK(scales == calm.scales);
  for (std::size_t i = 0; i < wild.size(); ++i) {
    CAPTURE(i);
    const bool replaced = i >= 20 && i < 20 + strange.size();
    CHECK(codes[i] == (replaced ? 0x7f : calm.codes[i]));
    CHECK(back[i] == (replaced ? 0x7fff : calm.back[i]));
  }
  const auto nothing_else = coded(std::vector<std::uint16_t>(codec::block, 0xff80));
  CHECK(nothing_else.scales[0] == 1);
  CHECK(std::all_of(nothing_else.back.begin(), nothing_else.back.end(),
                    [](std::uint16_t each) { return each == 0x7fff; }));
}

TEST_CASE("fp8: numbers near the largest do not become infinite") {
  std::vector<std::uint16_t> numbers(codec::block);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<std::uint16_t>(0x7f7fU - i / 2 + (i % 2 == 0 ? 0U : 0x8000U));
  }
  const auto back = coded(numbers).back;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    CAPTURE(i);
    CHECK(std::isfinite(value_of(back[i])));
    CHECK(std::abs(value_of(back[i]) - value_of(numbers[i])) <=
          std::abs(value_of(numbers[i])) / 16);
  }
}

TEST_CASE("fp8: a tail is a block of its own, and nothing behind it is touched") {
  for (const std::size_t elements : {1U, 7U, 8U, 9U, 127U, 128U, 129U, 200U, 255U, 257U}) {
    CAPTURE(elements);
    std::vector<std::uint16_t> numbers(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      numbers[i] = bf16_of(i < codec::block ? 1e6 : 1e-3 * static_cast<double>(i));
    }
    const auto blocks = codec::blocks_in(elements);
    CHECK(blocks == (elements + 127) / 128);
    CHECK(codec::packed_bytes(elements) >= elements + 4 * blocks);
    CHECK(codec::packed_bytes(elements) < elements + 4 * blocks + 16);
    std::vector<std::uint8_t> codes(elements + 8, 0xab);
    std::vector<float> scales(blocks + 1, -1);
    codec::encode(codes.data(), scales.data(), numbers.data(), elements);
    CHECK(std::all_of(codes.end() - 8, codes.end(), [](auto each) { return each == 0xab; }));
    CHECK(scales.back() == -1);
    if (blocks > 1) CHECK(scales[blocks - 1] < 1e-2);
  }
}

TEST_CASE("fp8: the helpers of these tests round as BF16 does") {
  CHECK(bf16_of(1.0) == 0x3f80);
  CHECK(bf16_of(1 + 0x1p-8) == 0x3f80);
  CHECK(bf16_of(1 + 3 * 0x1p-8) == 0x3f82);
  CHECK(bf16_of(-0x1p-133) == 0x8001);
  CHECK(bits_of(1.0F) == 0x3f800000U);
}
