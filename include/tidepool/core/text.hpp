/// Small text helpers of the option reader: trimming, splitting, quoting, names, nearest match.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::inline v0_3_0::detail::text {

[[nodiscard]] inline bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

// The `<cctype>` functions follow the locale, which must not change the meaning of an option's
// text.
[[nodiscard]] constexpr char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

[[nodiscard]] inline char to_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

[[nodiscard]] inline bool equal_ignoring_case(std::string_view left, std::string_view right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](char a, char b) { return to_lower(a) == to_lower(b); });
}

[[nodiscard]] inline std::string_view trim(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// The words between blanks; never an empty one.
[[nodiscard]] inline std::vector<std::string_view> split_blanks(std::string_view text) {
  std::vector<std::string_view> words;
  for (text = trim(text); !text.empty(); text = trim(text)) {
    const auto end =
        static_cast<std::size_t>(std::find_if(text.begin(), text.end(), is_blank) - text.begin());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

/// The trimmed parts between separators, empty ones included.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// The items one after another, `separator` between them.
template <class Range>
[[nodiscard]] std::string join(const Range& items, std::string_view separator) {
  std::string text;
  bool first = true;
  for (const auto& item : items) {
    if (!first) text += separator;
    text += item;
    first = false;
  }
  return text;
}

/// `text` fit for a message: cut when long, control characters replaced.
[[nodiscard]] inline std::string printable(std::string_view text) {
  constexpr std::size_t longest = 96;
  std::string result;
  for (const char c : text.substr(0, longest)) {
    // A terminal would obey an escape sequence that came in through the environment.
    result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  if (text.size() > longest) result += "...";
  return result;
}

/// `printable` in single quotes.
[[nodiscard]] inline std::string in_quotes(std::string_view text) {
  return "'" + printable(text) + "'";
}

/// A size in a message: `512 bytes`, `54.83 MiB`.
[[nodiscard]] inline std::string size_text(std::size_t bytes) {
  constexpr std::array<std::string_view, 4> names{" KiB", " MiB", " GiB", " TiB"};
  if (bytes < 102'400) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  std::size_t unit = 1024, name = 0;
  for (; bytes / unit >= 1024 && name + 1 < names.size(); ++name) unit *= 1024;
  const auto hundredths = bytes % unit / (unit / 1024) * 100 / 1024;  // no product overflows
  std::string text = std::to_string(bytes / unit);
  if (hundredths > 0) text.append(hundredths < 10 ? ".0" : ".") += std::to_string(hundredths);
  if (hundredths > 0 && text.back() == '0') text.pop_back();
  return text.append(names[name]);
}

/// The environment variable of a flag without its dashes: `TIDEPOOL_MAX_INFLIGHT`.
[[nodiscard]] inline std::string variable_of(std::string_view flag) {
  std::string name = "TIDEPOOL_";
  for (const char c : flag) name += c == '-' ? '_' : to_upper(c);
  return name;
}

/// The longest word, in characters, that is ever taken for another.
inline constexpr std::size_t longest_word = 64;

/// The form in which a character of a name is compared: case does not count, nor does `-` against
/// `_`.
[[nodiscard]] constexpr char plain(char c) { return c == '-' ? '_' : to_lower(c); }

/// The number of edits (insert, delete, replace, swap of neighbours) that turn one word into the
/// other. `word` has at most `longest_word` characters.
[[nodiscard]] constexpr std::size_t edit_distance(std::string_view word, std::string_view other) {
  // Three rows take no heap, because the compiler runs this function for lists of modules.
  using row = std::array<std::size_t, longest_word + 1>;
  row before{}, previous{}, now{};
  for (std::size_t j = 0; j <= word.size(); ++j) now[j] = j;
  for (std::size_t i = 1; i <= other.size(); ++i) {
    before = previous;
    previous = now;
    now[0] = i;
    for (std::size_t j = 1; j <= word.size(); ++j) {
      const char a = plain(other[i - 1]), b = plain(word[j - 1]);
      now[j] = std::min({previous[j] + 1, now[j - 1] + 1, previous[j - 1] + (a == b ? 0U : 1U)});
      if (i > 1 && j > 1 && a == plain(word[j - 2]) && plain(other[i - 2]) == b) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
  }
  return now[word.size()];
}

/// The candidate that `word` most likely meant, or an empty view when none is close.
/// Upper and lower case are equal, and so are `-` and `_`. A candidate that contains the whole word
/// (`fc1` in `expert_fc1`) is close.
[[nodiscard]] constexpr std::string_view nearest(std::string_view word,
                                                 std::span<const std::string_view> candidates) {
  if (word.empty() || word.size() > longest_word) return {};
  const auto same = [](char a, char b) { return plain(a) == plain(b); };
  // Short words must match more closely, because they are one edit from many others.
  std::size_t best = std::max<std::size_t>(1, (word.size() + 1) / 3) + 1;
  std::string_view result;
  for (const std::string_view candidate : candidates) {
    std::size_t distance = edit_distance(word, candidate);
    const auto found =
        std::search(candidate.begin(), candidate.end(), word.begin(), word.end(), same);
    if (word.size() >= 3 && found != candidate.end()) {
      distance = std::min<std::size_t>(distance, 1);
    }
    if (distance < best) {
      best = distance;
      result = candidate;
    }
  }
  return result;
}

// A number and its noun: `1 step`, `2 steps`.
[[nodiscard]] inline std::string count_of(std::uint64_t number, std::string_view what) {
  return std::to_string(number).append(" ").append(what).append(number == 1 ? "" : "s");
}

}  // namespace tidepool::detail::text
