/// Recorded steps are predicted as they were when `tests/profiles/golden.json` was made, to the
/// bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

#include "evaluate.hpp"

namespace {

constexpr const char* remedy =
    "A change on purpose is a commit of its own that names the defect, made with"
    " `record_golden update`; see tests/profiles/README.md.";

constexpr std::size_t most_shown = 40;

golden::recordings& stored() {
  static golden::recordings all(TIDEPOOL_SOURCE_DIR "/tests/profiles");
  return all;
}

}  // namespace

TEST_CASE("golden: simulator and engine predicts each step as they did, to the bit") {
  std::size_t different = 0;
  const auto cases = golden::read_cases(stored());
  for (const auto& each : cases) {
    INFO("of ", each.profile, ", by ", each.by, ", options '", each.options, "'");  // if it throws
    std::string lines;
    golden::differences("", each.results, golden::evaluate(stored(), each), lines);
    if (lines.empty()) continue;
    if (++different > most_shown) continue;
    const auto which = each.draw > 0 ? " " + std::to_string(each.draw) : std::string();
    FAIL_CHECK(each.profile << ", by " << each.by << which << ", options '" << each.options << "'\n"
                            << lines);
  }
  INFO(remedy);
  CHECK_MESSAGE(different == 0, different << " of " << cases.size() << " forecasts differ");
}

TEST_CASE("golden: every profile has five budgets under the rule, and a saved plan") {
  struct count {
    std::size_t arenas = 0;
    std::size_t plans = 0;
    std::size_t draws = 0;
    std::size_t lives = 0;
    std::size_t moved = 0;
  };
  std::map<std::string, count> seen;
  for (const auto& each : golden::read_cases(stored())) {
    auto& of = seen[each.profile];
    if (each.is_live()) {
      ++of.lives;
      continue;
    }
    const auto& engine = each.results.at("engine");
    const bool runs = engine.at("runs").get<bool>();
    if (!runs) continue;
    const bool arena = each.options.find("--memory=arena") != std::string::npos;
    if (each.by == golden::by_rule && arena) ++of.arenas;
    if (each.by == golden::by_plan) ++of.plans;
    if (each.by.starts_with(golden::by_draw)) ++of.draws;
    of.moved += engine.at("moved").get<std::size_t>() > 0 ? 1 : 0;
  }
  const auto names = stored().names();
  CHECK(names.size() >= 12);
  for (const auto& name : names) {
    CAPTURE(name);
    CHECK(seen[name].arenas >= 5);
    CHECK(seen[name].plans >= 1);
    CHECK(seen[name].draws >= 20);
    CHECK(seen[name].moved >= 25);
    CHECK((seen[name].lives >= 8) == golden::trainer::can_do(stored().profile(name)));
  }
  CHECK(seen.size() == names.size());
}
