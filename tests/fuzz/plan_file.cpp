// The text of a plan's file is refused with a place, or gives a plan that comes back equal.
#include "fuzz.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include "tidepool/plan/json.hpp"

namespace {

using namespace tidepool;

// Whatever the plan is for, with names that must be escaped.
plan::profile made_for(const plan::step_plan& chosen) {
  plan::profile step;
  step.modules = {"core_attn", "a \"b\"\n"};
  for (const auto& row : chosen.what) {
    auto& chunk = step.chunks.emplace_back();
    for (std::size_t i = 0; i < row.size(); ++i) {
      chunk.groups.push_back({static_cast<module_id>(i % 2), static_cast<int>(i), i, 0});
    }
  }
  return step;
}

bool read(std::string_view text, plan::step_plan& into) {
  return fuzz::accepted([&] { into = plan::plan_from_json(text); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = fuzz::text_of(data, size);
  plan::step_plan chosen;
  if (!read(input, chosen)) return 0;
  const auto step = made_for(chosen);
  std::string text;
  plan::step_plan again;
  fuzz::expect(fuzz::accepted([&] {
                 text = plan::to_json(chosen, step);
                 again = plan::plan_from_json(text);
               }),
               "what was read is refused", text);
  fuzz::expect(again == chosen, "it comes back otherwise", text);
  fuzz::expect(plan::to_json(again, step) == text, "written twice, it differs", text);
  return 0;
}
#else
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }
#endif
