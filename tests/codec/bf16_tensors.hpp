// Tensors of BF16 numbers of every kind, for the packed form and its kernels.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tidepool/buffer.hpp"

namespace tidepool::test {

struct bf16_number {  // as a trainer's own type
  std::uint16_t bits;
};

}  // namespace tidepool::test

template <>
inline constexpr bool tidepool::is_bfloat16<tidepool::test::bf16_number> = true;

namespace tidepool::test {

using bf16_numbers = std::vector<std::uint16_t>;

enum class bf16_kind {
  gauss,
  gated,  // silu(x) * y: many small numbers
  relu,   // half of them are 0
  zeros,  // of both signs
  subnormal,
  one_far,     // rare exponents that no nibble can tell
  not_finite,  // rare infinities and NaNs
  huge,
  random  // any bits
};
inline constexpr std::array bf16_kinds{
    bf16_kind::gauss,      bf16_kind::gated,     bf16_kind::relu,
    bf16_kind::zeros,      bf16_kind::subnormal, bf16_kind::one_far,
    bf16_kind::not_finite, bf16_kind::huge,      bf16_kind::random};

[[nodiscard]] inline std::uint16_t bf16_bits(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

[[nodiscard]] inline std::uint16_t draw_bf16(bf16_kind what, std::mt19937& from) {
  std::normal_distribution<float> normal;
  const auto any = [&] { return static_cast<unsigned>(from()); };
  const auto bits = [](unsigned number) { return static_cast<std::uint16_t>(number); };
  switch (what) {
    case bf16_kind::gated: {
      const auto x = normal(from);
      return bf16_bits(x / (1 + std::exp(-x)) * normal(from));
    }
    case bf16_kind::relu:
      return bf16_bits(std::max(0.0F, normal(from)));
    case bf16_kind::zeros:
      return bits(any() & 0x8000U);
    case bf16_kind::subnormal:
      return bits(any() & 0x807fU);
    case bf16_kind::one_far:
      return any() % 700 == 0 ? bits(any()) : bf16_bits(normal(from));
    case bf16_kind::not_finite:
      return any() % 300 == 0 ? bits(any() | 0x7f80U) : bf16_bits(normal(from));
    case bf16_kind::huge:
      return bits(any() | 0x7000U);
    case bf16_kind::random:
      return bits(any());
    case bf16_kind::gauss:
      break;
  }
  return bf16_bits(normal(from));
}

[[nodiscard]] inline bf16_numbers bf16_tensor(bf16_kind what, std::size_t count,
                                              std::mt19937& from) {
  bf16_numbers made(count);
  for (auto& each : made) each = draw_bf16(what, from);
  return made;
}

}  // namespace tidepool::test
