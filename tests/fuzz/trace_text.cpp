// Names and times of any bytes in traces: the files stay valid JSON and XML in valid UTF-8.
#include <fuzzer/FuzzedDataProvider.h>

#include <sstream>

#include "fuzz.hpp"
#include "tidepool/trace/picture.hpp"
#include "tidepool/trace/summary.hpp"
#include "tidepool/trace/timeline.hpp"

namespace {

using namespace tidepool;

// Not the library's own functions, which are what is looked at.
void check_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    fuzz::expect(lead < 0x80 || (lead >= 0xc0 && lead < 0xf8), "no UTF-8 (lead)");
    fuzz::expect(i + size <= text.size(), "no UTF-8 (cut)");
    std::uint32_t point = size == 1 ? lead : lead & (0xffU >> (size + 1));
    for (std::size_t j = 1; j < size; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      fuzz::expect((next & 0xc0U) == 0x80, "no UTF-8 (tail)");
      point = point << 6 | (next & 0x3fU);
    }
    constexpr std::array<std::uint32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
    fuzz::expect(point >= least[size] && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff),
                 "no UTF-8 (value)");
    i += size;
  }
}

class json_checker {
 public:
  explicit json_checker(std::string_view text) : text_(text) {
    value();
    blanks();
    fuzz::expect(text_.empty(), "JSON goes on after its end", text_);
  }

 private:
  char take() {
    fuzz::expect(!text_.empty(), "JSON ends early");
    const char c = text_.front();
    text_.remove_prefix(1);
    return c;
  }
  void blanks() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n')) take();
  }
  bool next_is(char c) {
    blanks();
    if (text_.empty() || text_[0] != c) return false;
    take();
    return true;
  }
  void need(char c) { fuzz::expect(next_is(c), "JSON lacks a sign", text_.substr(0, 80)); }

  void string() {
    need('"');
    for (char c = take(); c != '"'; c = take()) {
      fuzz::expect(static_cast<unsigned char>(c) >= 0x20, "JSON string with a control");
      if (c != '\\') continue;
      c = take();
      fuzz::expect(std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos,
                   "JSON string with an unknown escape");
      for (int i = 0; c == 'u' && i < 4; ++i) {
        fuzz::expect(std::string_view("0123456789abcdefABCDEF").find(take()) != std::string::npos,
                     "JSON string with a bad number");
      }
    }
  }
  void number() {
    std::string digits;
    while (!text_.empty() &&
           std::string_view("+-.eE0123456789").find(text_[0]) != std::string::npos)
      digits += take();
    char* end = nullptr;
    static_cast<void>(std::strtod(digits.c_str(), &end));
    fuzz::expect(!digits.empty() && *end == '\0', "JSON with a bad number", text_.substr(0, 80));
  }
  void value() {
    if (next_is('{')) {
      if (next_is('}')) return;
      do {
        string();
        need(':');
        value();
      } while (next_is(','));
      return need('}');
    }
    if (next_is('[')) {
      if (next_is(']')) return;
      do value();
      while (next_is(','));
      return need(']');
    }
    if (!text_.empty() && text_[0] == '"') return string();
    number();
  }

  std::string_view text_;
};

// Elements open and close in pairs, attributes are quoted, and text holds no stray sign.
void check_xml(std::string_view text) {
  std::vector<std::string> open;
  while (!text.empty()) {
    const auto tag = text.find('<');
    const auto between = text.substr(0, tag);
    for (std::size_t i = 0; i < between.size(); ++i) {
      const auto c = static_cast<unsigned char>(between[i]);
      fuzz::expect(c >= 0x20 || c == '\n' || c == '\t', "XML with a control");
      fuzz::expect(c != '&' || between.substr(i + 1, 5).find(';') != std::string_view::npos,
                   "XML with a stray &");
    }
    if (tag == std::string_view::npos) break;
    text.remove_prefix(tag + 1);
    bool quoted = false;
    std::size_t end = 0;
    for (; end < text.size() && (quoted || text[end] != '>'); ++end) {
      if (text[end] == '"') quoted = !quoted;
      fuzz::expect(text[end] != '<', "XML with a < inside a tag");
    }
    fuzz::expect(end < text.size(), "an XML tag does not end");
    const auto inside = text.substr(0, end);
    text.remove_prefix(end + 1);
    const bool closing = inside.starts_with('/');
    const auto name = std::string(inside.substr(
        closing, inside.find_first_of(" \n/", closing) - static_cast<std::size_t>(closing)));
    if (closing) {
      fuzz::expect(!open.empty() && open.back() == name, "XML elements cross", name);
      open.pop_back();
    } else if (!inside.ends_with('/')) {
      open.push_back(name);
    }
  }
  fuzz::expect(open.empty(), "an XML element does not close");
}

trace::record make_record(FuzzedDataProvider& bytes) {
  const auto text = [&] { return bytes.ConsumeRandomLengthString(24); };
  const auto time = [&]() -> double {
    switch (bytes.ConsumeIntegral<std::uint8_t>() & 7U) {
      case 0:
        return std::numeric_limits<double>::quiet_NaN();
      case 1:
        return bytes.ConsumeFloatingPoint<double>();
      default:
        return bytes.ConsumeIntegral<std::uint16_t>() / 16.0;
    }
  };
  trace::record record;
  record.title = text();
  const auto count = [&](unsigned most) { return bytes.ConsumeIntegral<std::uint8_t>() & most; };
  for (auto n = count(3); n > 0; --n) record.lanes.push_back(text());
  for (auto n = count(7); n > 0; --n) {
    trace::span span;
    span.kind = static_cast<trace::span_kind>(count(3));
    span.lane = count(3);
    span.name = text();
    span.layer = bytes.ConsumeIntegral<std::int8_t>();
    span.microbatch = bytes.ConsumeIntegral<std::int8_t>();
    span.bytes = count(1) != 0 ? bytes.ConsumeIntegral<std::size_t>() : count(255);
    span.start = time();
    span.end = time();
    record.spans.push_back(span);
  }
  for (auto n = count(7); n > 0; --n) {
    record.device_bytes.push_back({time(), bytes.ConsumeIntegral<std::size_t>()});
  }
  return record;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider bytes(data, size);
  const std::vector<trace::record> steps{make_record(bytes), make_record(bytes)};
  static_cast<void>(fuzz::accepted([&] {
    std::ostringstream json;
    trace::write_chrome_trace(json, steps);
    check_utf8(json.str());
    json_checker{json.str()};
    std::ostringstream svg;
    trace::write_svg(svg, steps[0]);
    check_utf8(svg.str());
    check_xml(svg.str());
    trace::counters totals;
    for (const auto& lane : steps[0].lanes) {
      totals.modules.emplace_back();
      totals.modules.back().name = lane;
      totals.modules.back().enabled = true;
      totals.modules.back().bytes_offloaded = bytes.ConsumeIntegral<std::size_t>();
    }
    std::ostringstream table;
    trace::write_summary(table, totals, steps[0].title);
  }));
  return 0;
}
