// Arguments, one in each line of the input, as `main` gets them.
#include <algorithm>
#include <utility>

#include "fuzz.hpp"
#include "tidepool/config/option_reader.hpp"
#include "tidepool/parse.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tidepool;
  const auto text = fuzz::text_of(data, size);
  const auto words = fuzz::parts_of(text, '\n');

  options strict;
  const bool strict_read = fuzz::accepted([&] { strict = parse_options(words); });
  known_options known;
  const bool known_read = fuzz::accepted([&] { known = parse_known_options(words); });
  // Both read the same options, and differ only in what they do with the rest.
  if (strict_read) {
    fuzz::expect(known_read && known.value == strict, "parse_known_options reads otherwise");
  }
  if (known_read) {
    const bool all_ours = known.rest.empty() || (known.rest.size() == 1 && known.rest[0] == "--");
    fuzz::expect(strict_read == all_ours, "the rest does not decide about the refusal");
    known_options again;
    fuzz::expect(fuzz::accepted([&] { again = parse_known_options(known.rest); }),
                 "the rest is refused");
    fuzz::expect(again.rest == known.rest && again.value == options{}, "the rest holds options");
  }

  if (text.find('\0') == std::string_view::npos) {
    std::vector<const char*> arguments{"program"};
    for (const auto& word : words) arguments.push_back(word.c_str());
    const int count = static_cast<int>(arguments.size());
    options value;
    const bool read = fuzz::accepted([&] { value = parse_options(count, arguments.data()); });
    fuzz::expect(read == strict_read && (!read || value == strict), "argv reads otherwise");
  }

  const auto close = nearest_option(words[0]);
  if (!close.empty()) {
    fuzz::expect(detail::text::find_option(std::string_view(close).substr(2)) != nullptr,
                 "a flag is proposed that does not exist", close);
  }
  return 0;
}
