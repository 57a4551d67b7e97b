/// The arithmetic of the FP8 codec: blocks of BF16 numbers as e4m3 codes with a scale each. No
/// device.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tidepool/core/linkage.hpp"

namespace tidepool::inline v0_3_0::codec {

/// Numbers that share a scale; the last block may have fewer.
inline constexpr std::size_t block = 128;

/// The number of blocks, and of scales, of `elements` numbers.
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr std::size_t blocks_in(std::size_t elements) {
  return elements / block + (elements % block == 0 ? 0 : 1);
}

/// Bytes from the first code to the first scale: one for each number, and up to 15 unused bytes, so
/// that scales can be read 16 bytes at a time.
[[nodiscard]] constexpr std::size_t scales_offset(std::size_t elements) {
  return (elements + 15) / 16 * 16;
}
/// Bytes of codes and scales together.
[[nodiscard]] constexpr std::size_t packed_bytes(std::size_t elements) {
  return scales_offset(elements) + blocks_in(elements) * sizeof(float);
}

/// BF16 bits without the sign from this value on are an infinity or NaN.
inline constexpr std::uint32_t bf16_infinity = 0x7f80;
inline constexpr std::uint32_t bf16_nan = 0x7fff;  ///< the NaN that decoding writes
inline constexpr std::uint32_t e4m3_nan = 0x7f;    ///< the code of infinities and NaN
inline constexpr float e4m3_largest = 448;         ///< the largest number that has a code

/// The magnitude that becomes 448 in a block, as the bits of an fp32. It is the block's largest
/// finite magnitude, whose BF16 bits are `largest`, but never below 448·2⁻¹²⁴: e4m3 then still has
/// every number of BF16 down to the smallest, 2⁻¹³³, and with a smaller one the inverse of the
/// scale would overflow. A block without finite numbers, or of zeros alone, has 448, and so the
/// scale 1.
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr std::uint32_t range_of(std::uint32_t largest) {
  if (largest == 0) return 0x43e00000U;
  constexpr std::uint32_t least = 0x05e0;
  return (largest > least ? largest : least) << 16;
}

/// The BF16 number nearest to a finite one, given as fp32 bits; ties to even.
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr std::uint32_t bf16_nearest(std::uint32_t bits) {
  return (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
}

/// The e4m3 code nearest to a BF16 number, ties to even. `inverse` is 448 over the range of its
/// block. Infinities and NaN become e4m3's NaN; zeros keep their sign.
[[nodiscard]] constexpr std::uint8_t code_of(std::uint16_t number, float inverse) {
  const std::uint32_t magnitude = number & 0x7fffU;
  if (magnitude >= bf16_infinity) return static_cast<std::uint8_t>(e4m3_nan);
  const float scaled = std::bit_cast<float>(magnitude << 16) * inverse;
  const auto bits = std::bit_cast<std::uint32_t>(scaled);
  std::uint32_t code = 0;
  if (scaled < 0x1p-6F) {
    // The code is a multiple of 2⁻⁹, the last place of 2¹⁴, so that the addition rounds.
    code = std::bit_cast<std::uint32_t>(scaled + 0x1p14F) - std::bit_cast<std::uint32_t>(0x1p14F);
  } else {
    const std::uint32_t odd = bits >> 20 & 1U;
    code = (bits - (120U << 23) + 0x7ffffU + odd) >> 20;  // a carry goes into the exponent
  }
  return static_cast<std::uint8_t>(code | (number >> 8 & 0x80U));
}

/// The BF16 number that a code stands for.
[[nodiscard]] constexpr std::uint16_t number_of(std::uint8_t code, float scale) {
  const std::uint32_t magnitude = code & 0x7fU;
  if (magnitude == e4m3_nan) return static_cast<std::uint16_t>(bf16_nan);
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120F * scale;
  return static_cast<std::uint16_t>(bf16_nearest(std::bit_cast<std::uint32_t>(value)) |
                                    (code & 0x80U) << 8);
}

/// Encodes `elements` numbers on the CPU. A GPU gives the same bits if the CPU's arithmetic is
/// IEEE's (no -ffast-math).
constexpr void encode(std::uint8_t* codes, float* scales, const std::uint16_t* numbers,
                      std::size_t elements) {
  for (std::size_t first = 0; first < elements; first += block) {
    const auto end = std::min(first + block, elements);
    std::uint32_t largest = 0;
    for (auto i = first; i < end; ++i) {
      const std::uint32_t magnitude = numbers[i] & 0x7fffU;
      if (magnitude < bf16_infinity) largest = std::max(largest, magnitude);
    }
    const auto range = std::bit_cast<float>(range_of(largest));
    scales[first / block] = range / e4m3_largest;
    const float inverse = e4m3_largest / range;
    for (auto i = first; i < end; ++i) codes[i] = code_of(numbers[i], inverse);
  }
}

/// Decodes `elements` codes on the CPU.
constexpr void decode(std::uint16_t* numbers, const std::uint8_t* codes, const float* scales,
                      std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) numbers[i] = number_of(codes[i], scales[i / block]);
}

}  // namespace tidepool::codec
