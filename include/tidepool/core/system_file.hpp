/// Small files in which the system says what it has, such as those of /proc and /sys.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace tidepool::inline v0_3_0::detail {

struct close_file {
  void operator()(std::FILE* file) const { static_cast<void>(std::fclose(file)); }
};

// The text of a file; empty where there is none. It is read by C's calls: in an extension of
// Python's beside PyTorch 2.11, C++'s streams read other numbers than those in the file.
inline std::string text_of(const std::string& path) {
  const std::unique_ptr<std::FILE, close_file> file(std::fopen(path.c_str(), "r"));
  std::string text;
  std::array<char, 4096> part{};
  while (file != nullptr) {
    const auto bytes = std::fread(part.data(), 1, part.size(), file.get());
    if (bytes == 0) break;
    text.append(part.data(), bytes);
  }
  return text;
}

// Takes the first word off `text`; returns an empty word at the end.
inline std::string_view take_word(std::string_view& text) {
  constexpr std::string_view blanks = " \t\n";
  text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
  const auto word = text.substr(0, text.find_first_of(blanks));
  text.remove_prefix(word.size());
  return word;
}

template <class Number = std::size_t>
std::optional<Number> number_of(std::string_view word) {
  Number value = 0;
  const auto* const end = word.data() + word.size();
  const auto parsed = std::from_chars(word.data(), end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;  // "max": no limit
  return value;
}

}  // namespace tidepool::detail
