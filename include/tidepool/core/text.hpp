/// Small text helpers of the option reader: trimming, splitting, quoting, names, nearest match.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::inline v0_2_0::detail::text {

[[nodiscard]] inline bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

// Not the `<cctype>` functions: those follow the locale, an option's text must not.
[[nodiscard]] inline char to_lower(char c) {
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

/// The environment variable of a flag without its dashes: `TIDEPOOL_MAX_INFLIGHT`.
[[nodiscard]] inline std::string variable_of(std::string_view flag) {
  std::string name = "TIDEPOOL_";
  for (const char c : flag) name += c == '-' ? '_' : to_upper(c);
  return name;
}

/// Edits (insert, delete, replace, swap of neighbours) that turn one word into the other.
[[nodiscard]] inline std::size_t edit_distance(std::string_view from, std::string_view to) {
  const std::size_t width = to.size() + 1;
  std::vector<std::size_t> cost((from.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return cost[i * width + j]; };
  for (std::size_t i = 0; i <= from.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= to.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replace = from[i - 1] == to[j - 1] ? 0 : 1;
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + replace});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return cost.back();
}

/// The candidate that `word` most likely meant, or an empty view when none is close.
///
/// Case does not count, nor does `-` against `_`; a candidate that contains the whole word
/// (`fc1` in `expert_fc1`) is close.
[[nodiscard]] inline std::string_view nearest(std::string_view word,
                                              std::span<const std::string_view> candidates) {
  constexpr std::size_t longest = 64;
  if (word.empty() || word.size() > longest) return {};
  const auto plain = [](std::string_view text) {
    std::string result(text);
    for (char& c : result) c = c == '-' ? '_' : to_lower(c);
    return result;
  };
  const std::string wanted = plain(word);
  // Short words are one edit from too many others.
  std::size_t best = std::max<std::size_t>(1, (word.size() + 1) / 3) + 1;
  std::string_view result;
  for (const std::string_view candidate : candidates) {
    const std::string text = plain(candidate);
    std::size_t distance = edit_distance(wanted, text);
    if (wanted.size() >= 3 && text.find(wanted) != std::string::npos) {
      distance = std::min<std::size_t>(distance, 1);
    }
    if (distance < best) {
      best = distance;
      result = candidate;
    }
  }
  return result;
}

}  // namespace tidepool::detail::text
