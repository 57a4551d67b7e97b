// The text of a profile's file: refused with a place, or a sound profile that comes back equal.
#include "fuzz.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include "tidepool/plan/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tidepool;
  plan::profile step;
  if (!fuzz::accepted([&] { step = plan::profile_from_json(fuzz::text_of(data, size)); })) return 0;
  std::string text;
  plan::profile again;
  fuzz::expect(fuzz::accepted([&] {
                 plan::check(step);
                 text = plan::to_json(step);
                 again = plan::profile_from_json(text);
               }),
               "what was read is refused", text);
  fuzz::expect(again == step, "it comes back otherwise", text);
  fuzz::expect(plan::to_json(again) == text, "written twice, it differs", text);
  return 0;
}
#else
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }
#endif
