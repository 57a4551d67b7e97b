/// How profiles, plans and machines are refused: where, what is wrong, and what to do. Places in
/// messages are JSON pointers: they are those of the file as well as of the members.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "tidepool/core/text.hpp"
#include "tidepool/error.hpp"
#include "tidepool/plan/profile.hpp"

namespace tidepool::inline v0_3_0::plan {

/// A profile or a machine that contradicts itself, or a plan that is not for the profile.
class profile_error : public error {
 public:
  using error::error;
};

/// A file of a profile, a plan or a machine that cannot be read or written; thrown by
/// `plan/json.hpp`.
class file_error : public profile_error {
 public:
  using profile_error::profile_error;
};

namespace detail {

[[nodiscard]] inline std::string number_text(double number) {
  std::array<char, 32> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), result.ptr};
}

// Text with a value for each {}, put together only where somebody reads it. It keeps no text that
// it is given.
class phrase {
 public:
  template <class... Values>
  phrase(const char* pattern = "", const Values&... values)
      : pattern_(pattern), count_(sizeof...(Values)), values_{value(values)...} {}

  [[nodiscard]] std::string text() const {
    std::string result;
    auto rest = pattern_;
    for (std::size_t i = 0; i < count_; ++i) {
      const auto gap = rest.find("{}");
      result.append(rest.substr(0, gap));
      if (const auto* const whole = std::get_if<std::uint64_t>(&values_[i])) {
        result += std::to_string(*whole);
      } else if (const auto* const number = std::get_if<double>(&values_[i])) {
        result += number_text(*number);
      } else {
        result += std::get<std::string_view>(values_[i]);
      }
      rest.remove_prefix(gap + 2);
    }
    return result.append(rest);
  }

 private:
  using value = std::variant<std::uint64_t, double, std::string_view>;

  std::string_view pattern_;
  std::size_t count_;
  std::array<value, 3> values_;
};

// Whose data are refused: of a file, or of a struct.
struct subject {
  std::string_view kind;                   // profile, plan or machine
  std::optional<std::string_view> file{};  // its name

  [[noreturn]] void refuse(std::string_view place, std::string_view problem,
                           std::string_view remedy) const {
    auto text = "tidepool: " + std::string(kind);
    if (file) text.append(" ").append(tidepool::detail::text::in_quotes(*file));
    if (!place.empty()) text.append(" at ").append(place);
    text.append(": ").append(problem).append("; ").append(remedy);
    if (file) throw file_error(text);
    throw profile_error(text);
  }
  void require(bool holds, const phrase& place, const phrase& problem,
               std::string_view remedy) const {
    if (!holds) refuse(place.text(), problem.text(), remedy);
  }

  void time(double value, const phrase& place, std::string_view what) const {
    require(std::isfinite(value) && value >= 0, place, {"{} is {}", what, value},
            "give microseconds, finite and not negative");
  }
  void rate(double value, const phrase& place, std::string_view unit) const {
    if (std::isfinite(value) && value > 0) return;
    refuse(place.text(), "the rate is " + number_text(value),
           "give " + std::string(unit) + ", finite and above 0");
  }
  void link(const link_rates& rates, std::string_view place) const {
    rate(rates.out, {"{}/out", place}, "GB/s");
    rate(rates.in, {"{}/in", place}, "GB/s");
    rate(rates.both, {"{}/both", place}, "GB/s");
    time(rates.latency_us, {"{}/latency_us", place}, "the latency");
  }
};

}  // namespace detail

}  // namespace tidepool::plan
