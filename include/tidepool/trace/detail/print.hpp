/// Numbers, sizes and durations as text: the same text in every locale, and never `nan` or `inf`.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

namespace tidepool::inline v0_3_0::trace::detail {

// Prints `12.50`. Values that are not finite print as zero, because `nan` would make a whole file
// unreadable.
[[nodiscard]] inline std::string fixed(double value, int decimals) {
  constexpr double most = 1e18;
  value = std::isfinite(value) ? std::clamp(value, -most, most) : 0.0;
  std::array<char, 64> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value,
                                    std::chars_format::fixed, decimals);
  const std::string_view digits(text.data(), static_cast<std::size_t>(result.ptr - text.data()));
  const bool minus_zero =
      digits.starts_with('-') && digits.find_first_not_of("-0.") == std::string_view::npos;
  return std::string(digits.substr(minus_zero ? 1 : 0));
}

// Prints as `fixed`, without zeros at the end.
[[nodiscard]] inline std::string trimmed(double value, int decimals) {
  std::string text = fixed(value, decimals);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// Prints three significant digits: `1.23`, `12.3`, `123`.
[[nodiscard]] inline std::string three_digits(double value) {
  const double size = std::abs(value);
  return fixed(value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

struct scale_unit {
  double size;
  std::string_view name;
};

// The units of bytes, and of microseconds, smallest first.
inline constexpr std::array<scale_unit, 5> binary_units{
    {{1, "B"}, {0x1p10, "KiB"}, {0x1p20, "MiB"}, {0x1p30, "GiB"}, {0x1p40, "TiB"}}};
inline constexpr std::array<scale_unit, 4> time_units{
    {{1e-3, "ns"}, {1, "\xc2\xb5s"}, {1e3, "ms"}, {1e6, "s"}}};

// The largest unit of which `value` is at least one after rounding.
template <std::size_t Count>
[[nodiscard]] constexpr scale_unit unit_of(double value, const std::array<scale_unit, Count>& in) {
  std::size_t best = 0;
  while (best + 1 < Count && value >= in[best + 1].size * 0.9995) ++best;
  return in[best];
}

[[nodiscard]] inline std::string with_unit(double value, const scale_unit& unit) {
  const bool whole = unit.size == 1 && unit.name == "B";
  return (whole ? fixed(value, 0) : three_digits(value / unit.size)).append(" ").append(unit.name);
}

// Prints `1.50 GiB`.
[[nodiscard]] inline std::string bytes_text(std::size_t bytes) {
  const auto value = static_cast<double>(bytes);
  return with_unit(value, unit_of(value, binary_units));
}

// Bytes of copies.
struct traffic {
  std::size_t bytes = 0;
  std::size_t spared = 0;  // by packing

  void add(const auto& span) {
    bytes += span.bytes;
    spared += span.spared;
  }
  [[nodiscard]] std::size_t on_link() const { return bytes - std::min(bytes, spared); }
  // Prints `64.0 MiB`, or `64.0 MiB (46.0 MiB on the link)`.
  [[nodiscard]] std::string text() const {
    const auto all = bytes_text(bytes);
    return spared == 0 ? all : all + " (" + bytes_text(on_link()) + " on the link)";
  }
};

// Prints `1.23 ms`, from microseconds.
[[nodiscard]] inline std::string duration_text(double microseconds) {
  if (!(std::abs(microseconds) > 0)) return "0 \xc2\xb5s";
  return with_unit(microseconds, unit_of(std::abs(microseconds), time_units));
}

// The smallest round step (1, 2 or 5 times a power of ten) of which at most `count` fit into
// `range`.
[[nodiscard]] inline double round_step(double range, double count) {
  if (!(range > 0) || !std::isfinite(range)) return 1;
  const double rough = range / std::max(count, 1.0);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power * (1 + 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace tidepool::trace::detail
