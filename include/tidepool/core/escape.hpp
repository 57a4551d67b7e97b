/// Text made fit for JSON and XML files, whatever bytes it came with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace tidepool::inline v0_3_0::trace::detail {

inline constexpr std::string_view replacement_character = "\xef\xbf\xbd";
inline constexpr std::string_view ellipsis = "\xe2\x80\xa6";

// Bytes of the UTF-8 character that `text` begins with; 0 where it begins with none.
[[nodiscard]] constexpr std::size_t character_size(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return 0;
  // The second byte also tells apart overlong forms, surrogates and what is past U+10FFFF.
  const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < size; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return size;
}

[[nodiscard]] constexpr bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

// Takes one character off the front; one that is not UTF-8 reads as U+FFFD.
[[nodiscard]] constexpr std::string_view next_character(std::string_view& text) {
  const std::size_t size = character_size(text);
  const std::string_view character = size == 0 ? replacement_character : text.substr(0, size);
  text.remove_prefix(std::max<std::size_t>(size, 1));
  return character;
}

[[nodiscard]] constexpr std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (; !text.empty(); ++count) static_cast<void>(next_character(text));
  return count;
}

// `text` in at most `most` characters; an ellipsis stands for the rest.
[[nodiscard]] inline std::string cut(std::string_view text, std::size_t most) {
  if (count_characters(text) <= most) return std::string(text);
  std::string result;
  for (std::size_t i = 0; i + 1 < most; ++i) result += next_character(text);
  return most == 0 ? result : result.append(ellipsis);
}

// `text` as the inside of a JSON string.
[[nodiscard]] inline std::string json_text(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string result;
  while (!text.empty()) {
    const std::string_view character = next_character(text);
    const auto byte = static_cast<unsigned char>(character[0]);
    if (byte == '"' || byte == '\\') {
      result.append("\\").append(character);
    } else if (byte == '\n') {
      result += "\\n";
    } else if (byte < 0x20) {
      result.append("\\u00").append(1, digits[byte >> 4]).append(1, digits[byte & 15]);
    } else {
      result += character;
    }
  }
  return result;
}

// `text` as the inside of an XML element or attribute.
[[nodiscard]] inline std::string xml_text(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::string_view character = next_character(text);
    const auto byte = static_cast<unsigned char>(character[0]);
    // XML has no form for these characters, not even an escaped one.
    const bool none = (byte < 0x20 && byte != '\n' && byte != '\t') ||
                      character == "\xef\xbf\xbe" || character == "\xef\xbf\xbf";
    if (none) {
      result += replacement_character;
    } else if (byte == '&') {
      result += "&amp;";
    } else if (byte == '<') {
      result += "&lt;";
    } else if (byte == '>') {
      result += "&gt;";
    } else if (byte == '"') {
      result += "&quot;";
    } else {
      result += character;
    }
  }
  return result;
}

}  // namespace tidepool::trace::detail
