// The text of a machine's file: refused with a place, or a sound machine that comes back equal. The
// rates of any number of its GPUs are then finite.
#include "fuzz.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <cmath>

#include "../../examples/plan/machine_json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace planning;
  namespace fuzz = tidepool::fuzz;
  machine_description about;
  if (!fuzz::accepted([&] { about = machine_from_json(fuzz::text_of(data, size)); })) {
    return 0;
  }
  std::string text;
  machine_description again;
  fuzz::expect(fuzz::accepted([&] {
                 check(about);
                 text = to_json(about);
                 again = machine_from_json(text);
               }),
               "what was read is refused", text);
  fuzz::expect(again == about, "it comes back otherwise", text);
  fuzz::expect(to_json(again) == text, "written twice, it differs", text);
  for (const std::size_t gpus : {0U, 1U, 2U, 3U, 4U, 64U}) {
    const auto link = link_at_once(about, gpus);
    fuzz::expect(std::isfinite(link.each.out) && std::isfinite(link.each.both) &&
                     link.measured <= (about.shared.empty() ? 1 : about.shared.back().gpus),
                 "the rates of several GPUs make no sense", text);
  }
  return 0;
}
#else
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }
#endif
