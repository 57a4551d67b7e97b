/// The few SVG elements a picture needs, as text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tidepool/core/escape.hpp"
#include "tidepool/trace/detail/print.hpp"

namespace tidepool::inline v0_3_0::trace::detail {

inline constexpr std::string_view ink = "#24292f";
inline constexpr std::string_view faint_ink = "#656d76";
inline constexpr std::string_view red_ink = "#b3191b";
inline constexpr std::string_view grid_line = "#e1e4e8";

enum class anchor { start, middle, end };

struct text_style {
  double size = 11;
  std::string_view fill = "#24292f";
  anchor at = anchor::start;
  bool bold = false;
};

struct box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

// The width of one character in ems, rather too much than too little: nobody knows the reader's
// font.
[[nodiscard]] constexpr double character_width(std::string_view character) {
  if (character.size() > 1) {
    // From U+2E80 on come the scripts whose letters are a whole em wide.
    return character >= std::string_view("\xe2\xba\x80") ? 1.0 : 0.7;
  }
  const char c = character[0];
  if (std::string_view("ijlI.,:;'|!()[] ").find(c) != std::string_view::npos) return 0.4;
  if (std::string_view("mwMW@%").find(c) != std::string_view::npos) return 0.98;
  return c >= 'A' && c <= 'Z' ? 0.75 : 0.63;
}

[[nodiscard]] constexpr double text_width(std::string_view text, double size) {
  double ems = 0;
  while (!text.empty()) ems += character_width(next_character(text));
  return ems * size;
}

// As much of `text` as fits; nothing where that would be less than `least` characters.
[[nodiscard]] inline std::string fit(std::string_view text, double width, double size,
                                     std::size_t least = 3) {
  if (text_width(text, size) <= width) return std::string(text);
  std::size_t most = 0;
  double used = size;  // of the ellipsis
  for (auto rest = text; !rest.empty(); ++most) {
    used += text_width(next_character(rest), size);
    if (used > width) break;
  }
  return most < least ? std::string() : cut(text, most + 1);
}

class svg {
 public:
  void put(std::string_view text) { text_ += text; }

  // ` name="value"`, to the hundredth of a pixel.
  static std::string attribute(std::string_view name, double value) {
    return std::string(" ").append(name).append("=\"").append(trimmed(value, 2)).append("\"");
  }
  static std::string attribute(std::string_view name, std::string_view value) {
    return std::string(" ").append(name).append("=\"").append(xml_text(value)).append("\"");
  }

  // `rest` holds further attributes; the title shows when the pointer rests on the box.
  void rectangle(const box& at, std::string_view fill, const std::string& rest = {},
                 std::string_view title = {}) {
    text_ += "<rect" + attribute("x", at.x) + attribute("y", at.y) + attribute("width", at.width) +
             attribute("height", at.height) + attribute("fill", fill) + rest;
    close("rect", title, {});
  }

  void line(double x1, double y1, double x2, double y2, std::string_view stroke,
            const std::string& rest = {}) {
    text_ += "<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
             attribute("y2", y2) + attribute("stroke", stroke) + rest + "/>\n";
  }

  void label(double x, double y, std::string_view text, const text_style& style,
             std::string_view title = {}) {
    text_ += "<text" + attribute("x", x) + attribute("y", y) + attribute("font-size", style.size) +
             attribute("fill", style.fill);
    if (style.at != anchor::start) {
      text_ += attribute("text-anchor", style.at == anchor::end ? "end" : "middle");
    }
    if (style.bold) text_ += attribute("font-weight", "600");
    close("text", title, text);
  }

  // The same with a white edge, for text over shapes of any colour.
  void halo_label(double x, double y, std::string_view text, const text_style& style) {
    text_ +=
        "<g paint-order=\"stroke\" stroke=\"#fff\" stroke-width=\"3\" "
        "stroke-linejoin=\"round\">\n";
    label(x, y, text, style);
    text_ += "</g>\n";
  }

  // What is drawn up to `close_group` shares a title.
  void open_group(std::string_view title) {
    text_.append("<g><title>").append(xml_text(title)).append("</title>\n");
  }
  void close_group() { text_ += "</g>\n"; }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void close(std::string_view element, std::string_view title, std::string_view inside) {
    if (title.empty() && inside.empty()) {
      text_ += "/>\n";
      return;
    }
    text_ += ">";
    if (!title.empty()) text_.append("<title>").append(xml_text(title)).append("</title>");
    text_.append(xml_text(inside)).append("</").append(element).append(">\n");
  }

  std::string text_;
};

}  // namespace tidepool::trace::detail
