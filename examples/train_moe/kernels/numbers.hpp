/// Numbers narrower than fp32: their bits, and how fp32 becomes one of them and back.
///
/// Every conversion rounds to nearest, ties to even. bf16 and fp16 overflow to infinity; e4m3,
/// which has none, saturates at ±448. The GPU converts with its own instructions, to the same bits.
#pragma once

#include <bit>
#include <cstdint>

#include "../model/config.hpp"

namespace moe {

/// What the elements of an operand are.
enum class number_type : std::uint8_t { fp32, bf16, fp16, e4m3 };

[[nodiscard]] constexpr index bytes_of(number_type type) {
  switch (type) {
    case number_type::fp32:
      return 4;
    case number_type::bf16:
    case number_type::fp16:
      return 2;
    case number_type::e4m3:
      break;
  }
  return 1;
}

namespace detail {

inline constexpr std::uint32_t sign_of_fp32 = 0x80000000U;
inline constexpr std::uint32_t infinity_of_fp32 = 0x7f800000U;

/// Drops the `bits` lowest bits of a mantissa, rounded; a carry goes into the exponent, as it must.
constexpr std::uint32_t rounded(std::uint32_t magnitude, int bits) {
  const std::uint32_t odd = (magnitude >> bits) & 1U;
  return (magnitude + (1U << (bits - 1)) - 1 + odd) >> bits;
}

/// A magnitude below the smallest normal number, as a multiple of the smallest subnormal one: an
/// fp32 addition to `ulp_is_that`, whose last place is that multiple, does the rounding.
constexpr std::uint32_t subnormal(std::uint32_t magnitude, float ulp_is_that) {
  const float sum = std::bit_cast<float>(magnitude) + ulp_is_that;
  return std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(ulp_is_that);
}

}  // namespace detail

/// The upper half of an fp32.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  constexpr explicit bf16(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const bool nan = (all & ~detail::sign_of_fp32) > detail::infinity_of_fp32;
    bits = static_cast<std::uint16_t>(nan ? 0x7fffU : detail::rounded(all, 16));
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

/// IEEE half precision.
struct fp16 {
  std::uint16_t bits = 0;

  fp16() = default;
  constexpr explicit fp16(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = all & ~detail::sign_of_fp32;
    std::uint32_t half = 0;
    if (magnitude > detail::infinity_of_fp32) {
      bits = 0x7fff;
      return;
    }
    if (magnitude >= std::bit_cast<std::uint32_t>(65520.0F)) {  // rounds beyond the largest
      half = 0x7c00;
    } else if (magnitude < std::bit_cast<std::uint32_t>(0x1p-14F)) {
      half = detail::subnormal(magnitude, 0.5F);
    } else {
      half = detail::rounded(magnitude - (112U << 23), 13);
    }
    bits = static_cast<std::uint16_t>(half | (all >> 16 & 0x8000U));
  }
  constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffU) << 13;
    if (magnitude >= 0x7c00U << 13) {
      return std::bit_cast<float>(sign | magnitude | detail::infinity_of_fp32);
    }
    const float value = std::bit_cast<float>(magnitude) * 0x1p112F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
};

/// FP8 with four bits of exponent and three of mantissa.
struct e4m3 {
  std::uint8_t bits = 0;

  static constexpr float largest = 448;

  e4m3() = default;
  constexpr explicit e4m3(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = all & ~detail::sign_of_fp32;
    std::uint32_t code = 0x7f;  // not a number
    if (magnitude <= detail::infinity_of_fp32) {
      if (magnitude >= std::bit_cast<std::uint32_t>(largest)) {
        code = 0x7e;
      } else if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6F)) {
        code = detail::subnormal(magnitude, 0x1p14F);
      } else {
        code = detail::rounded(magnitude - (120U << 23), 20);
      }
    }
    bits = static_cast<std::uint8_t>(code == 0x7f ? code : code | (all >> 24 & 0x80U));
  }
  constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
    const std::uint32_t magnitude = bits & 0x7fU;
    if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000U);
    const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
};

/// The scale of a group of numbers of which `largest` is the largest magnitude: the power of two
/// with which they just fit e4m3. Being one, it changes no bit of a mantissa, and what a code
/// stands for is exact in bf16.
[[nodiscard]] MOE_HOST_DEVICE constexpr float e4m3_scale(float largest) {
  const auto all = __builtin_bit_cast(std::uint32_t, largest);
  // Nothing to scale (below 2⁻¹⁰⁰), or nothing that a scale could help.
  if (all < 27U << 23 || all >= 255U << 23) return 1;
  // 448 is 1.75 · 2⁸.
  const std::uint32_t above = (all & 0x7fffffU) > 0x600000U ? 1U : 0U;
  return __builtin_bit_cast(float, ((all >> 23) + above - 8) << 23);
}

inline constexpr index scale_block = 128;

/// Blocks that `width` numbers make, with a shorter one at the end.
[[nodiscard]] constexpr index scale_blocks(index width) {
  return (width + scale_block - 1) / scale_block;
}

/// Scales of a matrix.
[[nodiscard]] constexpr index scale_count(index rows, index width, fp8_scaling scaling) {
  if (scaling == fp8_scaling::tensor) return 1;
  return rows * scale_blocks(width);
}

/// Between the scales of a weight's codes that lie above each other. cuBLASLt wants them at
/// multiples of 16 bytes.
[[nodiscard]] constexpr index weight_scale_stride(index in, fp8_scaling scaling) {
  return scaling == fp8_scaling::tensor ? 4 : (scale_blocks(in) + 3) / 4 * 4;
}
/// Scales of w[in][out], of which one covers all of it or a square of 128 × 128.
[[nodiscard]] constexpr index weight_scale_count(index in, index out, fp8_scaling scaling) {
  const index stride = weight_scale_stride(in, scaling);
  return scaling == fp8_scaling::tensor ? stride : stride * scale_blocks(out);
}

}  // namespace moe
