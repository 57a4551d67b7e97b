/// What `--precision` stands for: the types of what is multiplied and saved, and the scale of the
/// loss.
///
/// In every precision the residual stream, the weights that AdamW updates, all gradients of
/// weights, norms, the loss and what routing decides are fp32: they are sums over many terms, or
/// few bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <tidepool/error.hpp>

#include "../kernels/numbers.hpp"

namespace moe {

inline constexpr std::array<std::string_view, 4> precision_names{"fp32", "bf16", "fp16", "fp8"};
inline constexpr std::array<std::string_view, 2> scaling_names{"tensor", "block"};
inline constexpr std::array<std::string_view, 3> product_names{"none", "forward", "both"};
inline constexpr std::array<std::string_view, 2> codec_names{"none", "fp8"};

/// The types that a run works with.
struct number_types {
  number_type operands = number_type::fp32;  ///< of every GEMM, as multiplied and as saved
  bool quantises = false;                    ///< inputs of experts are saved as e4m3, with scales
  fp8_scaling scaling = fp8_scaling::block;
  bool multiplies_codes = false;      ///< in forward, where both operands have them
  bool multiplies_gradients = false;  ///< as codes too, in backward
  bool packs = false;  ///< inputs of experts go through Tidepool's FP8 codec, for backward alone

  /// Whether what is saved of them is no operand.
  [[nodiscard]] bool saves_codes() const { return quantises || packs; }
};

inline number_types types_of(const settings& run) {
  switch (run.precision) {
    case precision_kind::fp32:
      break;
    case precision_kind::bf16:
      return {.operands = number_type::bf16, .packs = run.codec == codec_kind::fp8};
    case precision_kind::fp16:
      return {number_type::fp16};
    case precision_kind::fp8:
      return {number_type::bf16, true, run.scaling, run.fp8_gemm != fp8_products::none,
              run.fp8_gemm == fp8_products::both};
  }
  return {};
}

namespace detail {

template <class Enum, class Names>
Enum read_name(const std::string& option, const std::string& value, const Names& names) {
  const auto at = std::find(names.begin(), names.end(), value);
  if (at != names.end()) return static_cast<Enum>(at - names.begin());
  std::string known;
  for (const std::string_view name : names)
    known += (known.empty() ? "" : ", ") + std::string(name);
  throw tidepool::option_error(option + "=" + value + ": use one of " + known);
}

}  // namespace detail

inline precision_kind read_precision(const std::string& value) {
  return detail::read_name<precision_kind>("--precision", value, precision_names);
}
inline fp8_scaling read_scaling(const std::string& value) {
  return detail::read_name<fp8_scaling>("--fp8-scaling", value, scaling_names);
}
/// The option alone means `forward`, as it did before there was more.
inline fp8_products read_products(const std::string& value) {
  if (value.empty() || value == "false") return fp8_products::none;
  if (value == "true") return fp8_products::forward;
  return detail::read_name<fp8_products>("--fp8-gemm", value, product_names);
}
inline codec_kind read_codec(const std::string& value) {
  return detail::read_name<codec_kind>("--codec", value, codec_names);
}
inline std::string name_of(precision_kind precision) {
  return std::string(precision_names[static_cast<std::size_t>(precision)]);
}
inline std::string name_of(fp8_scaling scaling) {
  return std::string(scaling_names[static_cast<std::size_t>(scaling)]);
}
inline std::string name_of(fp8_products products) {
  return std::string(product_names[static_cast<std::size_t>(products)]);
}
inline std::string name_of(codec_kind codec) {
  return std::string(codec_names[static_cast<std::size_t>(codec)]);
}

/// Throws `tidepool::option_error` unless the scale can be taken out of a gradient exactly.
inline void validate(const loss_scaling& scaling) {
  int exponent = 0;
  if (!(scaling.scale >= 1 && scaling.scale <= loss_scaling::most) ||
      std::frexp(scaling.scale, &exponent) != 0.5F) {
    throw tidepool::option_error("--initial-loss-scale=" + std::to_string(scaling.scale) +
                                 ": use a power of two from 1 to 2^40, such as 65536");
  }
  if (scaling.window < 1) {
    throw tidepool::option_error("--loss-scale-window=" + std::to_string(scaling.window) +
                                 ": use 1 or more steps");
  }
}

/// Goes on after one step: an overflow halves the scale, `window` steps without one double it.
/// Throws `tidepool::error` when no scale helps any more.
inline void advance(loss_scaling& scaling, bool overflowed) {
  if (overflowed) {
    ++scaling.skipped;
    scaling.good = 0;
    constexpr int hopeless = 8;
    scaling.at_least = scaling.scale == 1 ? scaling.at_least + 1 : 0;
    if (scaling.at_least == hopeless) {
      throw tidepool::error(
          "--precision=fp16: gradients were not finite in 8 steps in a row at a loss scale of 1;"
          " lower --lr, or take --precision=bf16");
    }
    scaling.scale = std::max(scaling.scale / 2, 1.0F);
    return;
  }
  scaling.at_least = 0;
  if (++scaling.good == scaling.window) {
    scaling.good = 0;
    scaling.scale = std::min(scaling.scale * 2, loss_scaling::most);
  }
}

}  // namespace moe
