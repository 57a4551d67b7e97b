/// What the FP8 codec computes: blocks of BF16 numbers as e4m3 codes with a scale each. No device.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TIDEPOOL_DETAIL_EVERYWHERE __host__ __device__
#else
#define TIDEPOOL_DETAIL_EVERYWHERE
#endif

namespace tidepool::codec {

/// Numbers that share a scale; the last block may have fewer.
inline constexpr std::size_t block = 128;

[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr std::size_t blocks_in(std::size_t elements) {
  return elements / block + (elements % block == 0 ? 0 : 1);
}

/// Bytes from the first code to the first scale: one for each number, and up to 15 that mean
/// nothing, so that scales can be read 16 bytes at a time.
[[nodiscard]] constexpr std::size_t scales_offset(std::size_t elements) {
  return (elements + 15) / 16 * 16;
}
/// Bytes of codes and scales together.
[[nodiscard]] constexpr std::size_t packed_bytes(std::size_t elements) {
  return scales_offset(elements) + blocks_in(elements) * sizeof(float);
}

/// From here on the bits of a BF16 number without its sign are an infinity or not a number.
inline constexpr std::uint32_t bf16_infinity = 0x7f80;
inline constexpr std::uint32_t bf16_largest = 0x7f7f;
inline constexpr std::uint32_t bf16_nan = 0x7fff;
inline constexpr std::uint32_t e4m3_nan = 0x7f;

/// The exponent field of the scale, as fp32, of a block whose largest finite magnitude has the bits
/// `largest`: the scale is the least power of two with which that magnitude is at most 448, the
/// largest that e4m3 has, but never below 2⁻¹²⁴. That of a block without such a number, or with
/// nothing but zeros, is 1.
///
/// A power of two changes no mantissa. So encoding rounds once, decoding never, and what was
/// decoded is encoded to the same codes again. 448 is 1.75·2⁸; 2⁻¹²⁴ times the smallest code, 2⁻⁹,
/// is the smallest number of BF16.
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr std::uint32_t scale_exponent(
    std::uint32_t largest) {
  if (largest == 0) return 127;
  const std::uint32_t above = (largest & 0x7fU) > 0x60U ? 1 : 0;
  const std::uint32_t exponent = (largest >> 7) + above;
  return (exponent > 11 ? exponent : 11) - 8;
}
/// The exponent field of one over that scale.
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr std::uint32_t inverse_exponent(
    std::uint32_t of_scale) {
  return 254 - of_scale;
}

/// The BF16 number of a product code · scale, given as fp32 bits. It is exact, but for products
/// beyond the largest number, which become that one: rounded up, a number near the largest would
/// decode to infinity.
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr std::uint32_t bf16_of_product(
    std::uint32_t bits) {
  const std::uint32_t magnitude = (bits & 0x7fffffffU) >> 16;
  return (bits >> 16 & 0x8000U) | (magnitude < bf16_largest ? magnitude : bf16_largest);
}

/// The e4m3 code of a BF16 number: nearest, ties to even. `inverse` is one over the scale of its
/// block. What is not finite becomes e4m3's one NaN; zeros keep their sign.
[[nodiscard]] constexpr std::uint8_t code_of(std::uint16_t number, float inverse) {
  const std::uint32_t magnitude = number & 0x7fffU;
  if (magnitude >= bf16_infinity) return static_cast<std::uint8_t>(e4m3_nan);
  const float scaled = std::bit_cast<float>(magnitude << 16) * inverse;
  const auto bits = std::bit_cast<std::uint32_t>(scaled);
  std::uint32_t code = 0;
  if (scaled < 0x1p-6F) {
    // A multiple of 2⁻⁹, which is the last place of 2¹⁴: the addition rounds.
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
  const std::uint32_t sign = (code & 0x80U) << 24;
  return static_cast<std::uint16_t>(bf16_of_product(std::bit_cast<std::uint32_t>(value) | sign));
}

/// The codes and scales of `elements` numbers, on the CPU; a GPU's have the same bits.
constexpr void encode(std::uint8_t* codes, float* scales, const std::uint16_t* numbers,
                      std::size_t elements) {
  for (std::size_t first = 0; first < elements; first += block) {
    const auto end = std::min(first + block, elements);
    std::uint32_t largest = 0;
    for (auto i = first; i < end; ++i) {
      const std::uint32_t magnitude = numbers[i] & 0x7fffU;
      if (magnitude < bf16_infinity) largest = std::max(largest, magnitude);
    }
    const auto exponent = scale_exponent(largest);
    scales[first / block] = std::bit_cast<float>(exponent << 23);
    const auto inverse = std::bit_cast<float>(inverse_exponent(exponent) << 23);
    for (auto i = first; i < end; ++i) codes[i] = code_of(numbers[i], inverse);
  }
}

/// The numbers that they stand for.
constexpr void decode(std::uint16_t* numbers, const std::uint8_t* codes, const float* scales,
                      std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) numbers[i] = number_of(codes[i], scales[i / block]);
}

}  // namespace tidepool::codec
