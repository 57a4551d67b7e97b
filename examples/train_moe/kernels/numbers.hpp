/// Numbers narrower than fp32: their bits, and how fp32 becomes one of them and back.
///
/// Every conversion rounds to nearest, ties to even. bf16 and fp16 overflow to infinity; e4m3,
/// which has none, and e5m2 saturate at ±448 and ±57344. The GPU converts with its own
/// instructions, to the same bits.
#pragma once

#include <bit>
#include <cstdint>

#include "../model/config.hpp"

namespace moe {

/// What the elements of an operand are.
enum class number_type : std::uint8_t { fp32, bf16, fp16, e4m3, e5m2 };

[[nodiscard]] constexpr index bytes_of(number_type type) {
  switch (type) {
    case number_type::fp32:
      return 4;
    case number_type::bf16:
    case number_type::fp16:
      return 2;
    case number_type::e4m3:
    case number_type::e5m2:
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

namespace detail {

/// FP8 with so many bits of mantissa, and the others but one of exponent.
template <int Mantissa>
struct fp8 {
  std::uint8_t bits = 0;

  static constexpr std::uint32_t largest_code = Mantissa == 3 ? 0x7e : 0x7b;
  static constexpr std::uint32_t infinity = Mantissa == 3 ? 0x80 : 0x7c;  ///< e4m3 has none
  static constexpr int bias = (1 << (6 - Mantissa)) - 1;
  /// The largest number is 1.75 times two to the power of this.
  static constexpr int largest_exponent = Mantissa == 3 ? 8 : 15;
  static constexpr float largest = 1.75F * (1 << largest_exponent);

  fp8() = default;
  constexpr explicit fp8(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = all & ~sign_of_fp32;
    if (magnitude > infinity_of_fp32) {
      bits = 0x7f;  // not a number
      return;
    }
    std::uint32_t code = 0;
    if (magnitude >= std::bit_cast<std::uint32_t>(largest)) {
      code = largest_code;
    } else if (magnitude < std::bit_cast<std::uint32_t>(two_to(1 - bias))) {
      code = subnormal(magnitude, two_to(24 - bias - Mantissa));
    } else {
      code = rounded(magnitude - (std::uint32_t{127 - bias} << 23), 23 - Mantissa);
    }
    bits = static_cast<std::uint8_t>(code | (all >> 24 & 0x80U));
  }
  constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
    const std::uint32_t magnitude = bits & 0x7fU;
    if (magnitude == infinity) return std::bit_cast<float>(sign | infinity_of_fp32);
    if (magnitude > largest_code) return std::bit_cast<float>(sign | 0x7fc00000U);
    const float value = std::bit_cast<float>(magnitude << (23 - Mantissa)) * two_to(127 - bias);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }

 private:
  static constexpr float two_to(int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(127 + exponent) << 23);
  }
};

}  // namespace detail

/// Of weights and of what they are multiplied with in forward.
using e4m3 = detail::fp8<3>;
/// Of gradients, which differ more in size.
using e5m2 = detail::fp8<2>;

/// The scale of a group of numbers of which `largest` is the largest magnitude: the power of two
/// with which they just fit such codes. Being one, it changes no bit of a mantissa, and what a code
/// stands for is exact in bf16.
template <class Code>
[[nodiscard]] MOE_HOST_DEVICE constexpr float fp8_scale(float largest) {
  const auto all = __builtin_bit_cast(std::uint32_t, largest);
  // Nothing to scale (below 2⁻¹⁰⁰), or nothing that a scale could help.
  if (all < 27U << 23 || all >= 255U << 23) return 1;
  const std::uint32_t above = (all & 0x7fffffU) > 0x600000U ? 1U : 0U;
  return __builtin_bit_cast(float, ((all >> 23) + above - Code::largest_exponent) << 23);
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
/// Where those of the same codes as [in][out] begin, behind them: one that covers all serves both.
[[nodiscard]] constexpr index turned_scales_at(index in, index out, fp8_scaling scaling) {
  return scaling == fp8_scaling::tensor ? 0 : weight_scale_count(in, out, scaling);
}

}  // namespace moe
