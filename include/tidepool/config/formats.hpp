/// Converts the text of an option to a value and back; refusals name option, value, remedy.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "tidepool/core/text.hpp"
#include "tidepool/error.hpp"
#include "tidepool/module.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail::text {

/// An option as the user gave it.
struct setting {
  std::string name;        ///< as written: `--max-inflight`, `TIDEPOOL_MAX_INFLIGHT`
  std::string_view value;  ///< trimmed, never empty
};

[[noreturn]] inline void refuse(const setting& given, std::string_view problem,
                                std::string_view remedy) {
  throw option_error(
      join(std::array<std::string_view, 7>{"tidepool: option ", given.name, " is ",
                                           in_quotes(given.value), ": ", problem, "; "},
           "") +
      std::string(remedy));
}

inline constexpr std::string_view negative = "a negative number has no meaning";

[[nodiscard]] inline bool is_negative(std::string_view text) {
  return text.size() > 1 && text[0] == '-' && text[1] >= '0' && text[1] <= '9';
}

/// The largest count or size. A larger value comes from a negative number that code converted.
inline constexpr std::size_t most = std::numeric_limits<std::size_t>::max() / 2;

/// The text of a count: `-1` if code gave -1 to an unsigned member.
[[nodiscard]] inline std::string count_text(std::size_t number) {
  return number > most ? "-" + std::to_string(0 - number) : std::to_string(number);
}

/// Reads a whole number of at least 0 from all of `text`, which is a part of the value.
template <class Integer>
[[nodiscard]] Integer read_integer(const setting& given, std::string_view text,
                                   std::string_view remedy) {
  constexpr auto last = std::min<std::size_t>(std::numeric_limits<Integer>::max(), most);
  if (is_negative(text)) refuse(given, negative, remedy);
  Integer number{};
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, number);
  if (code == std::errc::result_out_of_range || static_cast<std::size_t>(number) > last) {
    refuse(given, "the number is above " + std::to_string(last), remedy);
  }
  if (code != std::errc{}) refuse(given, in_quotes(text) + " is not a whole number", remedy);
  if (stop != end) {
    refuse(given, in_quotes({stop, static_cast<std::size_t>(end - stop)}) + " follows the number",
           remedy);
  }
  return number;
}

/// A plain number: `2`.
template <class Integer>
struct number_format {
  static Integer read(const setting& given) {
    return read_integer<Integer>(given, given.value, "give a whole number such as 2");
  }
  static std::string write(Integer number) {
    if constexpr (std::is_unsigned_v<Integer>) return count_text(number);
    return std::to_string(number);
  }
};

/// A number of elements, not bytes; it takes no unit.
struct elements_format {
  static std::size_t read(const setting& given) {
    return read_integer<std::size_t>(given, given.value,
                                     "give a number of elements (not bytes) such as 1048576");
  }
  static std::string write(std::size_t number) { return count_text(number); }
};

struct byte_unit {
  std::string_view name;
  std::size_t bytes;
};

/// Units, the largest first and binary before decimal, because `write` takes the first that
/// divides.
inline constexpr std::array<byte_unit, 9> byte_units{{{"TiB", std::size_t{1} << 40},
                                                      {"GiB", std::size_t{1} << 30},
                                                      {"MiB", std::size_t{1} << 20},
                                                      {"KiB", std::size_t{1} << 10},
                                                      {"TB", 1'000'000'000'000},
                                                      {"GB", 1'000'000'000},
                                                      {"MB", 1'000'000},
                                                      {"KB", 1'000},
                                                      {"B", 1}}};

/// Bytes: `512MiB`, `1.5GiB`, `40GB` (powers of ten), `4096B`, and `0`.
struct bytes_format {
  static constexpr std::string_view remedy =
      "give a size such as 512MiB (B, KiB, MiB, GiB, TiB; KB, MB, GB, TB are powers of ten)";

  static std::size_t read(const setting& given) {
    const auto bytes = read(given, given.value);
    // A user who writes 10 forgot the unit, because nobody wants so few bytes.
    const bool has_unit = given.value.find_first_not_of("0123456789") != std::string_view::npos;
    if (has_unit || bytes == 0 || bytes >= std::size_t{1} << 20) return bytes;
    refuse(given, "the unit is missing", "say it: for instance 10GiB, or " + write(bytes));
  }

  static std::size_t read(const setting& given, std::string_view text) {
    constexpr std::string_view digits = "0123456789";
    const std::size_t whole_end = std::min(text.find_first_not_of(digits), text.size());
    if (whole_end == 0 && text.starts_with('-')) {
      static_cast<void>(read_integer<std::size_t>(given, text, remedy));
    }
    if (whole_end == 0) refuse(given, in_quotes(text) + " is no size", remedy);
    const auto whole = read_integer<std::size_t>(given, text.substr(0, whole_end), remedy);
    text.remove_prefix(whole_end);

    std::string_view decimals;
    if (text.starts_with('.')) {
      decimals = text.substr(1, text.find_first_not_of(digits, 1) - 1);
      text.remove_prefix(decimals.size() + 1);
      // Six digits of a TiB still fit 64 bits.
      if (decimals.empty() || decimals.size() > 6) {
        refuse(given, "one to six digits may follow the point", remedy);
      }
    }

    if (text.empty()) text = "B";
    const auto unit = std::ranges::find_if(
        byte_units, [&](const byte_unit& each) { return equal_ignoring_case(each.name, text); });
    if (unit == byte_units.end()) refuse(given, in_quotes(text) + " is no unit of bytes", remedy);
    if (!decimals.empty() && unit->bytes == 1) refuse(given, "a byte has no fraction", remedy);

    std::size_t part = 0;
    if (!decimals.empty()) part = read_integer<std::size_t>(given, decimals, remedy) * unit->bytes;
    for (std::size_t i = 0; i < decimals.size(); ++i) part /= 10;
    if (whole > (most - part) / unit->bytes) refuse(given, "the size is above 8388607TiB", remedy);
    return whole * unit->bytes + part;
  }

  static std::string write(std::size_t bytes) {
    if (bytes > most) return count_text(bytes);
    for (const byte_unit& unit : byte_units) {
      if (bytes != 0 && unit.bytes % 1024 == 0 && bytes % unit.bytes == 0) {
        return std::to_string(bytes / unit.bytes).append(unit.name);
      }
    }
    return std::to_string(bytes) + (bytes == 0 ? "" : "B");
  }
};

/// Bytes as Megatron's options have them: a bare number is one of bytes, however small.
struct megatron_bytes_format : bytes_format {
  static std::size_t read(const setting& given) { return bytes_format::read(given, given.value); }
};

/// The remedy for a negative number where `word` stands for "not set".
[[nodiscard]] inline std::string zero_or(std::string_view word) {
  return "give 0 or more, or " + std::string(word) +
         " (std::nullopt in code) for no limit of your own";
}

/// A value of `Format`, or the word that stands for "not set".
template <class Format, fixed_string Word = "none">
struct optional_format {
  static auto read(const setting& given) -> std::optional<decltype(Format::read(given))> {
    if (given.value == Word.view()) return std::nullopt;
    if (is_negative(given.value)) refuse(given, negative, zero_or(Word.view()));
    return Format::read(given);
  }
  template <class Value>
  static std::string write(const std::optional<Value>& value) {
    return value ? Format::write(*value) : std::string(Word.view());
  }
};

/// A share: `0.5`.
struct fraction_format {
  static double read(const setting& given) {
    constexpr std::string_view remedy = "give a number from 0 to 1 such as 0.5";
    // Allowed characters are listed, because from_chars reads `nan` and `inf` as numbers.
    if (given.value.find_first_not_of("0123456789.eE+-") != std::string_view::npos) {
      refuse(given, "the value is not a number", remedy);
    }
    double number = 0;
    const char* const end = given.value.data() + given.value.size();
    const auto [stop, code] = std::from_chars(given.value.data(), end, number);
    if (code != std::errc{} || stop != end) refuse(given, "the value is not a number", remedy);
    if (!(number >= 0.0 && number <= 1.0)) refuse(given, "a fraction is in [0, 1]", remedy);
    return number;
  }
  static std::string write(double number) {
    std::array<char, 32> text{};
    const auto result = std::to_chars(text.data(), text.data() + text.size(), number);
    return {text.data(), result.ptr};
  }
};

/// `true` or `false`, or another common word for them.
struct toggle_format {
  static std::optional<bool> word(std::string_view text) {
    for (const std::string_view yes : {"true", "on", "yes", "1"}) {
      if (equal_ignoring_case(text, yes)) return true;
    }
    for (const std::string_view no : {"false", "off", "no", "0"}) {
      if (equal_ignoring_case(text, no)) return false;
    }
    return std::nullopt;
  }
  static bool read(const setting& given) {
    const std::optional<bool> on = word(given.value);
    if (!on) refuse(given, "the value is neither true nor false", "give true or false");
    return *on;
  }
  static std::string write(bool on) { return on ? "true" : "false"; }
};

/// A word out of a few, each the name of a value of `Kind`. `Words` has `names`, `what` and `all`.
template <class Kind, class Words>
struct word_format {
  static Kind read(const setting& given) {
    const auto& names = Words::names;
    const auto found = std::find(names.begin(), names.end(), given.value);
    if (found == names.end()) {
      const std::string_view close = nearest(given.value, names);
      const std::string choice = "give " + std::string(Words::all);
      refuse(given, "there is no such " + std::string(Words::what),
             close.empty() ? choice : "did you mean " + in_quotes(close) + "? " + choice);
    }
    return static_cast<Kind>(found - names.begin());
  }
  static std::string write(Kind kind) {
    const auto index = static_cast<std::size_t>(kind);
    return index < Words::names.size() ? std::string(Words::names[index]) : std::to_string(index);
  }
};

struct memory_words {
  static constexpr std::array<std::string_view, 3> names{"pool", "arena", "slots"};
  static constexpr std::string_view what = "kind of memory";
  static constexpr std::string_view all = "pool, arena or slots";
};
using memory_format = word_format<memory_kind, memory_words>;

struct policy_words {
  static constexpr std::array<std::string_view, 2> names{"megatron", "automatic"};
  static constexpr std::string_view what = "policy";
  static constexpr std::string_view all = "megatron or automatic";
};
using policy_format = word_format<policy_kind, policy_words>;

struct host_words {
  static constexpr std::array<std::string_view, 6> names{"automatic",      "huge-pages", "pinned",
                                                         "write-combined", "system",     "managed"};
  static constexpr std::string_view what = "kind of host memory";
  static constexpr std::string_view all =
      "automatic, huge-pages, pinned, write-combined, system or managed";
};
using host_kind_format = word_format<host_kind, host_words>;

}  // namespace tidepool::detail::text
