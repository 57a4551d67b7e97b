// A device budget that no plan fits: whoever asks for the plan is told so, and what would do.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "messages.hpp"
#include "options/refusal.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/plan/automatic.hpp"
#include "tidepool/plan/json.hpp"

namespace {

using namespace tidepool;
using tidepool::test::refusal;
using tidepool::test::rig;
using tidepool::test::says;

struct trained {
  std::optional<plan::step_plan> plan;
  plan::profile profile;
  std::string reports;
};

// Four steps, each second one with somewhat larger tensors, which fill most of 11 KiB at once.
trained train(std::size_t budget) {
  auto opts = test::arena_options(budget, {"core_attn"});
  opts.policy = policy_kind::automatic;
  opts.timed_step = 2;
  trained result;
  rig desk;
  test::planning<rig::offloader<>> off(desk.dev, opts);
  off.on_report([&](std::string_view line) { (result.reports += line) += '\n'; });
  const auto module = off.module("core_attn");
  const auto s = desk.stream();
  for (std::uint32_t step = 0; step < 4; ++step) {
    const std::size_t more = step % 2 * 256;
    auto small = off.allocate(1024 + more, s);
    auto beside = off.allocate(4096 + more, s);
    auto x = off.allocate(4096 + more, s);
    desk.write(x, step);
    small.reset(s);
    auto work = off.allocate(2048 + more, s);
    auto open = off.begin();
    open.commit(module, 0, s, x);
    open.restore(module, 0, s, x);
    desk.check(x, step);
    open.finish();
    for (auto* each : {&beside, &work, &x}) each->reset(s);
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
  result.plan = off.current_plan();
  result.profile = off.profile();
  return result;
}

}  // namespace

TEST_CASE("no plan: who saves or follows it is told the budget, and one that would do") {
  constexpr std::size_t budget = 11 * 1024;  // in which the steps do run
  const auto seen = train(budget);
  REQUIRE(seen.plan);
  CHECK_FALSE(seen.plan->expected.runs);
  const auto enough = seen.plan->expected.peak;
  const auto told = "no plan fits a device budget of " + std::to_string(budget) +
                    " bytes; the planner finds one from " + std::to_string(enough) +
                    " bytes on (--device-budget=" + std::to_string(enough) + "B)";
  CHECK_MESSAGE(says(seen.reports, "plan: " + told + "; everything leaves, as in the warm-up\n"),
                seen.reports);
  const auto written = refusal<plan::profile_error>(
      [&] { static_cast<void>(plan::to_json(*seen.plan, seen.profile)); });
  CHECK_MESSAGE(says(written, "tidepool: plan: " + told), written);
  const auto path =
      (std::filesystem::temp_directory_path() / "tidepool_no_plan_test.json").string();
  std::filesystem::remove(path);
  const auto saved =
      refusal<plan::profile_error>([&] { plan::save(*seen.plan, seen.profile, path); });
  CHECK_MESSAGE(says(saved, told), saved);
  CHECK_FALSE(std::filesystem::exists(path));
  rig desk;
  test::planning<rig::offloader<>> off(desk.dev, test::arena_options(budget, {"core_attn"}));
  const auto followed = refusal<plan::profile_error>([&] { off.follow(*seen.plan, seen.profile); });
  CHECK_MESSAGE(says(followed, told), followed);

  const auto better = train(enough);
  CHECK(better.plan->expected.runs);
  CHECK_NOTHROW(static_cast<void>(plan::to_json(*better.plan, better.profile)));
}

TEST_CASE("no plan: the budget that would do is the least that a planner makes anything of") {
  for (const bool varies : {false, true}) {
    CAPTURE(varies);
    auto step = train(64 * 1024).profile;
    step.shapes_vary = varies;
    auto opts = test::arena_options(2 * 1024, {"core_attn"});
    const auto enough = plan::automatic(step, opts).expected.peak;
    CHECK(enough > 11'000);
    for (const std::size_t less : {0U, 1U}) {
      opts.device_budget = enough - less;
      const auto left = plan::detail::left_for_plans(step, *opts.device_budget);
      CHECK(plan::planner(step).best({.device_budget = left}).expected.runs == (less == 0));
    }
  }
}

TEST_CASE("no plan: one that the engine was not seen to run has times, and can be saved") {
  auto seen = train(64 * 1024);
  REQUIRE(seen.plan->expected.runs);
  seen.plan->expected.runs = false;
  CHECK(plan::plan_from_json(plan::to_json(*seen.plan, seen.profile)) == *seen.plan);
  CHECK(plan::in_words(*seen.plan) == "plan: none was found that runs in a device budget of " +
                                          std::to_string(seen.plan->device_budget) +
                                          " bytes; everything leaves, as in the warm-up");
}
