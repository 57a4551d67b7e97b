/// Numbers narrower than fp32: every code, ties, overflow, what is not a number, and scales.
#include "../../examples/train_moe/kernels/numbers.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using moe::bf16;
using moe::e4m3;
using moe::e5m2;
using moe::fp16;

constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T>
T from_bits(std::uint32_t bits) {
  T number;
  number.bits = static_cast<decltype(number.bits)>(bits);
  return number;
}

template <class T>
float round_trip(float value) {
  return static_cast<float>(T(value));
}

/// The value of a code, from its fields.
double value_of(std::uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int sign = static_cast<int>(code >> (exponent_bits + mantissa_bits)) & 1;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const auto mantissa = static_cast<double>(code & ((1U << mantissa_bits) - 1));
  const double unit = std::ldexp(1.0, -mantissa_bits);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa * unit, 1 - bias)
                                         : std::ldexp(1 + mantissa * unit, exponent - bias);
  return sign != 0 ? -magnitude : magnitude;
}

/// Between two neighbours: what is nearer, and in the middle the one with an even code.
template <class T>
void check_rounding_above(std::uint32_t code) {
  const auto low = static_cast<float>(from_bits<T>(code));
  const auto high = static_cast<float>(from_bits<T>(code + 1));
  const float middle = low + (high - low) / 2;
  CHECK(T(middle).bits == (code % 2 == 0 ? code : code + 1));
  CHECK(T(std::nextafter(middle, low)).bits == code);
  CHECK(T(std::nextafter(middle, high)).bits == code + 1);
  CHECK(T(-middle).bits == (T(middle).bits | from_bits<T>(T(-1.0F).bits ^ T(1.0F).bits).bits));
}

TEST_CASE("every code of e4m3 is what its fields say, and comes back") {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto value = static_cast<float>(from_bits<e4m3>(code));
    if ((code & 0x7f) == 0x7f) {
      CHECK(std::isnan(value));
      CHECK(e4m3(value).bits == 0x7f);
      continue;
    }
    CHECK(static_cast<double>(value) == value_of(code, 4, 3));
    CHECK(e4m3(value).bits == code);
  }
}

TEST_CASE("e4m3 rounds to nearest, ties to even, and saturates") {
  for (std::uint32_t code = 0; code < 0x7e; ++code) check_rounding_above<e4m3>(code);
  for (const float large : {448.0F, 449.0F, 464.0F, 480.0F, 1e30F, infinity}) {
    CHECK(round_trip<e4m3>(large) == 448);
    CHECK(round_trip<e4m3>(-large) == -448);
  }
  CHECK(std::isnan(round_trip<e4m3>(std::numeric_limits<float>::quiet_NaN())));
  CHECK(e4m3(-0.0F).bits == 0x80);
  CHECK(round_trip<e4m3>(0x1p-10F) == 0);  // half of the smallest: to even
  CHECK(round_trip<e4m3>(0x1.8p-10F) == 0x1p-9F);
}

TEST_CASE("every code of e5m2 is what its fields say, and comes back unless it is infinite") {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto value = static_cast<float>(from_bits<e5m2>(code));
    if ((code & 0x7f) > 0x7c) {
      CHECK(std::isnan(value));
      CHECK(e5m2(value).bits == 0x7f);
    } else if ((code & 0x7f) == 0x7c) {
      CHECK(value == (code == 0x7c ? infinity : -infinity));
      CHECK(e5m2(value).bits == code - 1);
    } else {
      CHECK(static_cast<double>(value) == value_of(code, 5, 2));
      CHECK(e5m2(value).bits == code);
    }
  }
}

TEST_CASE("e5m2 rounds to nearest, ties to even, and saturates") {
  for (std::uint32_t code = 0; code < 0x7b; ++code) check_rounding_above<e5m2>(code);
  for (const float large : {57344.0F, 57345.0F, 61440.0F, 65536.0F, 1e30F, infinity}) {
    CHECK(round_trip<e5m2>(large) == 57344);
    CHECK(round_trip<e5m2>(-large) == -57344);
  }
  CHECK(round_trip<e5m2>(0x1p-17F) == 0);  // half of the smallest: to even
  CHECK(round_trip<e5m2>(0x1.8p-17F) == 0x1p-16F);
}

TEST_CASE("every code of fp16 and bf16 is what its fields say, and comes back") {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto half = static_cast<float>(from_bits<fp16>(code));
    const auto brain = static_cast<float>(from_bits<bf16>(code));
    if (std::isfinite(half)) {
      REQUIRE(static_cast<double>(half) == value_of(code, 5, 10));
      REQUIRE(fp16(half).bits == code);
    } else {
      REQUIRE((code & 0x7c00) == 0x7c00);
      REQUIRE(std::isnan(half) == ((code & 0x3ff) != 0));
      REQUIRE(std::isnan(round_trip<fp16>(half)) == std::isnan(half));
    }
    if (std::isfinite(brain)) {
      REQUIRE(static_cast<double>(brain) == value_of(code, 8, 7));
      REQUIRE(bf16(brain).bits == code);
    } else {
      REQUIRE((code & 0x7f80) == 0x7f80);
      REQUIRE(std::isnan(brain) == ((code & 0x7f) != 0));
      REQUIRE(std::isnan(round_trip<bf16>(brain)) == std::isnan(brain));
    }
  }
}

TEST_CASE("fp16 and bf16 round to nearest, ties to even, and overflow to infinity") {
  for (std::uint32_t code = 0; code < 0x7bff; code += 7) check_rounding_above<fp16>(code);
  for (std::uint32_t code = 0x80; code < 0x7f7f; code += 7) check_rounding_above<bf16>(code);
  CHECK(round_trip<fp16>(65504) == 65504);
  CHECK(round_trip<fp16>(std::nextafter(65520.0F, 0.0F)) == 65504);
  CHECK(round_trip<fp16>(65520) == infinity);
  CHECK(round_trip<fp16>(-infinity) == -infinity);
  CHECK(round_trip<bf16>(std::numeric_limits<float>::max()) == infinity);
  CHECK(round_trip<bf16>(-infinity) == -infinity);
}

template <class Code>
void check_least_scale() {
  for (const float unit : {1.0F, 0.999F, 1.001F, 1.01F, 0.5F, 1e-20F, 3e20F, 0.3F}) {
    const float largest = unit * Code::largest, scale = moe::fp8_scale<Code>(largest);
    CAPTURE(largest);
    int exponent = 0;
    CHECK(std::frexp(scale, &exponent) == 0.5F);
    CHECK(largest / scale <= Code::largest);
    CHECK(largest / (scale / 2) > Code::largest);
  }
  CHECK(moe::fp8_scale<Code>(Code::largest) == 1);
  CHECK(moe::fp8_scale<Code>(0) == 1);
  CHECK(moe::fp8_scale<Code>(infinity) == 1);
}

TEST_CASE("the scale of a group is the least power of two with which it fits e4m3") {
  check_least_scale<e4m3>();
}

TEST_CASE("the scale of a group of gradients is the least power of two with which it fits e5m2") {
  check_least_scale<e5m2>();
}

TEST_CASE("scales of a matrix: one, or one for each 128 of a row") {
  CHECK(moe::scale_count(10, 300, moe::fp8_scaling::tensor) == 1);
  CHECK(moe::scale_count(10, 300, moe::fp8_scaling::block) == 30);
  CHECK(moe::scale_count(10, 128, moe::fp8_scaling::block) == 10);
  CHECK(moe::weight_scale_count(1000, 1000, moe::fp8_scaling::tensor) == 4);
  CHECK(moe::weight_scale_count(128, 256, moe::fp8_scaling::block) == 8);
  CHECK(moe::weight_scale_count(513, 129, moe::fp8_scaling::block) == 16);
}

}  // namespace
