// Environment variables, `NAME=value` in each line. A name of one character stands for one of
// Tidepool's, so that the fuzzer finds them.
#include <map>

#include "fuzz.hpp"
#include "tidepool/config/option_reader.hpp"
#include "tidepool/parse.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tidepool;
  namespace text = detail::text;
  std::map<std::string, std::string> variables;
  for (const auto& line : fuzz::parts_of(fuzz::text_of(data, size), '\n')) {
    const auto equals = line.find('=');
    if (equals == std::string::npos) continue;
    auto name = line.substr(0, equals);
    if (name.size() == 1) {
      name = text::environment_name(
          text::option_table[static_cast<unsigned char>(name[0]) % text::option_table.size()]);
    }
    // A variable ends at the first null.
    variables[name] = line.substr(equals + 1).c_str();
  }
  options value;
  const bool read = fuzz::accepted([&] {
    value = from_environment({}, [&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  });

  // The same values as arguments give the same.
  std::vector<std::string> arguments;
  for (const auto& item : text::option_table) {
    const auto found = variables.find(text::environment_name(item));
    if (found == variables.end()) continue;
    arguments.push_back("--" + std::string(item.flag) + "=" + found->second);
  }
  options other;
  const bool other_read = fuzz::accepted([&] { other = parse_options(arguments); });
  fuzz::expect(read == other_read && (!read || value == other),
               "arguments and environment read differently");
  return 0;
}
