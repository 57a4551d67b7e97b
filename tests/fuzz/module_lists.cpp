// Text of module lists, a line each: modules that leave, own ones, recomputed ones, caps.
#include "fuzz.hpp"
#include "tidepool/parse.hpp"
#include "tidepool/validate.hpp"

namespace {

using namespace tidepool;

void check(const options& value, std::span<const std::string_view> known, bool open) {
  if (!fuzz::accepted([&] { validate(value, known, open); })) return;
  std::uint64_t mask = 0;
  fuzz::expect(fuzz::accepted([&] { mask = resolve_modules(value, known, open); }),
               "validated modules do not resolve");
  fuzz::expect(known.size() <= max_modules, "too many modules are accepted");
  fuzz::expect(known.size() == 64 || mask >> known.size() == 0, "a bit stands for no module");
  const auto& asked = value.offload_modules;
  if (asked.empty() || asked[0] == "none") fuzz::expect(mask == 0, "nobody asked for a module");
  for (std::size_t i = 0; i < known.size(); ++i) {
    const bool named = std::find(asked.begin(), asked.end(), known[i]) != asked.end();
    const bool all = asked.size() == 1 && asked[0] == "all";
    const bool on = (mask >> i & 1U) != 0;
    fuzz::expect(all || on == named, "a module is on without its name, or off with it", known[i]);
  }
}

template <class List>
void check_compiled(const options& value) {
  check(value, List::names, List::open);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto lines = fuzz::parts_of(fuzz::text_of(data, size), '\n');
  constexpr std::array<std::string_view, 4> flags{
      "--offload-modules=", "--own-modules=", "--recompute-modules=", "--max-inflight="};
  std::vector<std::string> arguments;
  for (std::size_t i = 0; i < std::min(lines.size(), flags.size()); ++i) {
    if (!lines[i].empty()) arguments.push_back(std::string(flags[i]) + lines[i]);
  }
  options value;
  if (fuzz::accepted([&] { value = parse_options(arguments); })) {
    check(value, open_module_list(value), true);
    check_compiled<fuzz::whole_list>(value);
    check_compiled<fuzz::short_list>(value);
    check_compiled<fuzz::fused_list>(value);
  }
  return 0;
}
