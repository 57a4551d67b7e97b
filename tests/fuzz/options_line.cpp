// One line of text.
#include "fuzz.hpp"
#include "tidepool/parse.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tidepool;
  const auto line = fuzz::text_of(data, size);
  options value;
  if (fuzz::accepted([&] { value = parse_options(line); })) {
    // Of a repeated option the last one holds, so that the same again changes nothing.
    options again;
    const auto twice = std::string(line) + " " + std::string(line);
    const bool read = fuzz::accepted([&] { again = parse_options(twice); });
    // Behind `--` nothing may follow.
    if (line.find("-- ") == std::string_view::npos && !line.ends_with("--")) {
      fuzz::expect(!read || again == value, "the same line twice reads otherwise", line);
    }
    static_cast<void>(to_text(value));
  }
  return 0;
}
