// The formats of single values; the first character chooses which.
#include "fuzz.hpp"
#include "tidepool/config/list_formats.hpp"

namespace {

using namespace tidepool;
namespace text = detail::text;

// What is read can be written, and reads back as the same.
template <class Format>
void there_and_back(std::string_view given) {
  decltype(Format::read(text::setting{})) value{};
  if (!fuzz::accepted([&] { value = Format::read({"--option", given}); })) return;
  const auto written = Format::write(value);
  decltype(value) again{};
  fuzz::expect(fuzz::accepted([&] {
                 again = Format::read({"--option", written});
               }),
               "what was written is refused", written);
  fuzz::expect(again == value, "what was written reads otherwise", written);
  fuzz::expect(Format::write(again) == written, "written twice, it differs", written);
}

void inflight_there_and_back(std::string_view given) {
  using format = text::inflight_format;
  options value;
  if (!fuzz::accepted([&] { format::read(value, {"--option", given}); })) return;
  const auto written = format::write(value);
  options again;
  fuzz::expect(fuzz::accepted([&] {
                 format::read(again, {"--option", written});
               }),
               "what was written is refused", written);
  fuzz::expect(again == value, "what was written reads otherwise", written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto given = text::trim(fuzz::text_of(data + 1, size - 1));
  if (given.empty()) return 0;
  switch (data[0] % 12) {
    case 0:
      there_and_back<text::bytes_format>(given);
      break;
    case 1:
      there_and_back<text::optional_format<text::bytes_format>>(given);
      break;
    case 2:
      there_and_back<text::number_format<int>>(given);
      break;
    case 3:
      there_and_back<text::elements_format>(given);
      break;
    case 4:
      there_and_back<text::fraction_format>(given);
      break;
    case 5:
      there_and_back<text::toggle_format>(given);
      break;
    case 6:
      there_and_back<text::memory_format>(given);
      break;
    case 7:
      there_and_back<text::names_format<true>>(given);
      break;
    case 8:
      there_and_back<text::names_format<false>>(given);
      break;
    case 9:
      there_and_back<text::layers_format>(given);
      break;
    case 10:
      there_and_back<text::rings_format>(given);
      break;
    default:
      inflight_there_and_back(given);
  }
  return 0;
}
