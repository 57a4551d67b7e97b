/// record_golden: makes what `golden.forecasts` compares with.
///
///   record_golden profiles   the recorded steps that need the library alone
///   record_golden plans      a plan for each profile that has none
///   record_golden cases      budgets and rules for each profile, and what is predicted of them
///   record_golden update     what is predicted of the same cases now
///
/// A second argument is the folder; by default tests/profiles. `update` is for a change on purpose.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <tidepool/plan/automatic.hpp>
#include <utility>
#include <vector>

#include "evaluate.hpp"
#include "steps.hpp"
#include "trainer.hpp"

namespace {

namespace plan = tidepool::plan;
using golden::golden_case;
using golden::recordings;

void save_recorded(const recordings& to, const std::string& name, const plan::profile& described) {
  plan::save(golden::recorded(described), to.profile_file(name));
}

void make_profiles(const recordings& to) {
  for (const std::size_t depth : {1, 2, 4}) {
    save_recorded(to, "bench_step_d" + std::to_string(depth), golden::bench_step(depth, false));
  }
  save_recorded(to, "bench_step_d2_offers", golden::bench_step(2, true));
  save_recorded(to, "dense_24", golden::dense_stack());
  save_recorded(to, "latent_stage", golden::latent_stage());
  for (const std::size_t rank : {0, 1}) {
    save_recorded(to, "pipeline_of_two_" + std::to_string(rank), golden::pipeline_of_two(rank));
  }
  // Written and not recorded: what hardly any trainer does. The numbers are of steps in which each
  // rule was seen to count.
  for (const std::uint64_t number : {9, 207, 377}) {
    plan::save(golden::crooked(number), to.profile_file("written_" + std::to_string(number)));
  }
  plan::save(golden::overlapped(), to.profile_file("written_overlapped"));
  plan::save(golden::nested(), to.profile_file("written_nested"));
}

std::size_t in_whole_blocks(double bytes) { return static_cast<std::size_t>(bytes) / 256 * 256; }

std::string arena(std::size_t budget) {
  return "--memory=arena --device-budget=" + std::to_string(budget);
}

/// The least arena in which Megatron's rule runs, by the engine.
std::size_t least_arena(recordings& from, const std::string& name, std::size_t most) {
  std::size_t least = 0;
  while (most - least > 256) {
    const auto middle = least + (most - least) / 2 / 256 * 256;
    golden_case about{name, std::string(golden::by_rule), arena(middle), 0, {}};
    const bool runs = golden::evaluate(from, about).at("engine").at("runs").get<bool>();
    (runs ? most : least) = middle;
  }
  return most;
}

std::size_t kept_at_once(const plan::profile& step) { return plan::planner(step).in_core().peak; }

void make_plans(recordings& to) {
  for (const auto& name : to.names()) {
    if (std::filesystem::exists(to.plan_file(name))) continue;
    const auto& step = to.profile(name);
    const auto all = static_cast<double>(kept_at_once(step));
    plan::step_plan made;
    made.expected.runs = false;
    for (const double share : {0.45, 0.6, 0.75, 0.9}) {
      if (made.expected.runs && made.gap() < 0.1) break;
      tidepool::options opts;
      opts.memory = tidepool::memory_kind::arena;
      opts.device_budget = in_whole_blocks(share * all);
      made = plan::automatic(step, opts);
    }
    std::printf("%s: %s\n", name.c_str(), plan::in_words(made).c_str());
    plan::save(made, step, to.plan_file(name));
  }
}

/// Budgets from the least that runs to all that is held at once, then other rules.
void add_rules(recordings& from, const std::string& name, std::vector<golden_case>& cases) {
  const auto& step = from.profile(name);
  const auto all = kept_at_once(step) / 256 * 256 + 256;
  const auto least = least_arena(from, name, 2 * all);
  const auto between = [&](double share) {
    const auto span = static_cast<double>(std::max(all, least) - least);
    return least + in_whole_blocks(span * share);
  };
  const auto add = [&](const std::string& options) {
    cases.push_back({name, std::string(golden::by_rule), options, 0, {}});
  };
  add(arena(least - 256));  // refused
  for (const double share : {0.0, 0.04, 0.15, 0.4, 1.0}) add(arena(between(share)));
  std::size_t chunk_bytes = 0;
  for (const auto& group : step.chunks.front().groups) chunk_bytes += group.bytes;
  const auto third = std::to_string(chunk_bytes / 3);
  add(arena(between(0.15)) + " --no-margin --reload-ahead=8");
  add(arena(between(0.04)) + " --no-margin --reload-ahead=0");
  add(arena(between(0.3)) + " --no-margin --reload-ahead=64");
  add(arena(between(0.8)) + " --offload-fraction=0.6 --reload-ahead=5");
  add(arena(between(0.6)) + " --reload-ahead=12 --reload-ahead-bytes=" + third + "B");
  add(arena(between(0.7)) + " --pipeline-rank=1 --delta-bytes-per-rank=" + third);
  add(arena(between(0.15)) + " --max-inflight=1");
  add("--memory=pool --no-margin --reload-ahead=4");
  add("--memory=pool --device-budget=" + std::to_string(between(0.4)));
}

void add_plans(const recordings& from, const std::string& name, std::vector<golden_case>& cases) {
  const auto made = from.plan_of(name);
  const auto add = [&](std::string_view by, double share) {
    const auto budget = in_whole_blocks(share * static_cast<double>(made.device_budget));
    cases.push_back({name,
                     std::string(by),
                     arena(budget) + " --reload-ahead=" + std::to_string(made.reload_ahead),
                     0,
                     {}});
  };
  cases.push_back({name, std::string(golden::by_plan), "", 0, {}});
  // Where shapes vary a plan leaves some of what there is free.
  for (const double share : {1.1, 1.6}) add(golden::by_plan, share);
  for (const double share : {1.1, 1.6}) add(golden::by_plan_unplaced, share);
}

/// Actions at random, in the least of a few budgets in which the simulator runs them, and in that
/// of the engine.
void add_draws(recordings& from, const std::string& name, std::vector<golden_case>& cases) {
  const auto all = static_cast<double>(kept_at_once(from.profile(name)));
  for (std::uint64_t draw = 1; draw <= 24; ++draw) {
    const auto by = draw % 2 == 0 ? golden::by_draw : golden::by_draw_unplaced;
    const auto ahead = " --reload-ahead=" + std::to_string(draw % 6);
    std::string_view waiting_for = "simulator";
    for (double share = 0.3; share < 2; share += 0.02) {
      golden_case next{
          name, std::string(by), arena(in_whole_blocks(share * all)) + ahead, draw, {}};
      const auto seen = golden::evaluate(from, next);
      if (!seen.at(waiting_for).at("runs").get<bool>()) continue;
      cases.push_back(next);
      if (seen.at("engine").at("runs").get<bool>()) break;
      waiting_for = "engine";
    }
  }
}

/// By the public calls: the first step of a training, which no forecast knows, and those after it.
void add_lives(recordings& from, const std::string& name, std::vector<golden_case>& cases) {
  const auto& step = from.profile(name);
  if (!golden::trainer::can_do(step)) return;
  const auto add = [&](std::string_view by, const std::string& options) {
    cases.push_back({name, std::string(by), options, 0, {}});
  };
  const auto all = kept_at_once(step) / 256 * 256 + 256;
  const auto least = static_cast<double>(least_arena(from, name, 2 * all));
  for (const double share : {1.0, 1.1, 1.5}) {
    add(golden::live_rule, arena(in_whole_blocks(share * least)));
  }
  // From the peak with much room on, the first that runs.
  const golden_case roomy{name, std::string(golden::live_first), arena(2 * all), 0, {}};
  const auto peak = golden::evaluate(from, roomy).at("live").at("peak").get<double>();
  for (int found = 0, percent = 100; found < 2; percent += 3) {
    golden_case next{name, roomy.by, arena(in_whole_blocks(peak * percent / 100)), 0, {}};
    if (golden::evaluate(from, next).at("live").contains("runs")) continue;
    cases.push_back(std::move(next));
    ++found;
  }
  add(golden::live_rule, arena(in_whole_blocks(1.3 * least)) + " --max-inflight=1 --no-margin");
  add(golden::live_rule, "--memory=pool --reload-ahead=4");
  add(golden::live_plan, arena(from.plan_of(name).device_budget));
}

void make_cases(recordings& to) {
  std::vector<golden_case> cases;
  for (const auto& name : to.names()) {
    std::printf("%s\n", name.c_str());
    add_rules(to, name, cases);
    add_plans(to, name, cases);
    add_draws(to, name, cases);
    add_lives(to, name, cases);
  }
  golden::write_cases(to, cases);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view what = argc > 1 ? argv[1] : "";
  recordings stored(argc > 2 ? argv[2] : TIDEPOOL_SOURCE_DIR "/tests/profiles");
  auto cases = std::vector<golden_case>();
  if (what == "profiles") {
    make_profiles(stored);
  } else if (what == "plans") {
    make_plans(stored);
  } else if (what == "cases" || what == "update") {
    if (what == "cases") make_cases(stored);
    cases = golden::read_cases(stored);
    for (auto& each : cases) each.results = golden::evaluate(stored, each);
    golden::write_cases(stored, cases);
  } else {
    std::fputs("usage: record_golden profiles|plans|cases|update [FOLDER]\n", stderr);
    return 2;
  }
  return 0;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "record_golden: %s\n", problem.what());
  return 1;
}
