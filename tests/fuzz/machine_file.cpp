// The text of a machine's file: refused with a place, or a sound machine that comes back equal. The
// rates of any number of its GPUs are then finite.
#include "fuzz.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <cmath>

#include "tidepool/plan/machine_json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tidepool;
  plan::machine_description about;
  if (!fuzz::accepted([&] { about = plan::machine_from_json(fuzz::text_of(data, size)); })) {
    return 0;
  }
  std::string text;
  plan::machine_description again;
  fuzz::expect(fuzz::accepted([&] {
                 plan::check(about);
                 text = plan::to_json(about);
                 again = plan::machine_from_json(text);
               }),
               "what was read is refused", text);
  fuzz::expect(again == about, "it comes back otherwise", text);
  fuzz::expect(plan::to_json(again) == text, "written twice, it differs", text);
  for (const std::size_t gpus : {0U, 1U, 2U, 3U, 4U, 64U}) {
    const auto link = plan::link_at_once(about, gpus);
    fuzz::expect(std::isfinite(link.each.out) && std::isfinite(link.each.both) &&
                     link.measured <= (about.shared.empty() ? 1 : about.shared.back().gpus),
                 "the rates of several GPUs make no sense", text);
  }
  return 0;
}
#else
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }
#endif
