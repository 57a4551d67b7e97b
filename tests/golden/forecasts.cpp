/// Recorded steps are foretold as they were when `tests/profiles/golden.json` was made, to the bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

#include "cases.hpp"

namespace {

constexpr const char* remedy =
    "A change on purpose is a commit of its own that names the defect, made with"
    " `record_golden update`; see tests/profiles/README.md.";

golden::recordings& stored() {
  static golden::recordings all(TIDEPOOL_SOURCE_DIR "/tests/profiles");
  return all;
}

}  // namespace

TEST_CASE("golden: simulator and engine foretell each step as they did, to the bit") {
  std::size_t different = 0;
  const auto cases = golden::read_cases(stored());
  for (const auto& each : cases) {
    std::string lines;
    golden::differences("", each.results, golden::evaluate(stored(), each), lines);
    if (lines.empty()) continue;
    ++different;
    FAIL_CHECK(each.profile << ", by " << each.by << ", options '" << each.options << "'\n"
                            << lines);
  }
  INFO(remedy);
  CHECK_MESSAGE(different == 0, different << " of " << cases.size() << " forecasts differ");
}

TEST_CASE("golden: every profile has five budgets under the rule, and a saved plan") {
  struct count {
    std::size_t arenas = 0;
    std::size_t plans = 0;
    std::size_t moved = 0;
  };
  std::map<std::string, count> seen;
  for (const auto& each : golden::read_cases(stored())) {
    auto& of = seen[each.profile];
    const auto& engine = each.results.at("engine");
    const bool runs = engine.at("runs").get<bool>();
    if (!runs) continue;
    const bool arena = each.options.find("--memory=arena") != std::string::npos;
    if (each.by == golden::by_rule && arena) ++of.arenas;
    if (each.by == golden::by_plan) ++of.plans;
    of.moved += engine.at("moved").get<std::size_t>() > 0 ? 1 : 0;
  }
  const auto names = stored().names();
  CHECK(names.size() >= 12);
  for (const auto& name : names) {
    CAPTURE(name);
    CHECK(seen[name].arenas >= 5);
    CHECK(seen[name].plans >= 1);
    CHECK(seen[name].moved >= 5);
  }
  CHECK(seen.size() == names.size());
}
