/// record_golden: makes what `golden.forecasts` compares with.
///
///   record_golden profiles   the recorded steps that need the library alone
///   record_golden plans      a plan for each profile that has none
///   record_golden cases      budgets and rules for each profile, and what is foretold of them
///   record_golden update     what is foretold of the same cases now
///
/// A second argument is the folder; by default tests/profiles. `update` is for a change on purpose.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <tidepool/plan/automatic.hpp>
#include <tidepool/plan/machines.hpp>
#include <tidepool/plan/model.hpp>
#include <utility>
#include <vector>

#include "../plan/plans.hpp"
#include "cases.hpp"
#include "trainer.hpp"

namespace {

namespace plan = tidepool::plan;
using golden::golden_case;
using golden::recordings;

void save_recorded(const recordings& to, const std::string& name, const plan::profile& described) {
  plan::save(golden::trainer(described).record(), to.profile_file(name));
}

/// As `bench_step` has it: three modules of eight layers, twice the depth and four microbatches.
plan::profile bench_step(std::size_t depth, bool offers) {
  auto model = plan::model_named("deepseek-v3-proxy");
  model.modules = {"core_attn", "expert_fc1", "moe_act"};
  model.in_flight = depth;
  model.microbatches = 2 * depth + 4;
  auto step = plan::profile_of(model, plan::machine_named("h200"));
  golden::drop_staying(step);
  if (!offers) golden::drop_offers(step);
  golden::vary_times(step, 0.02);
  return step;
}

/// Layers that are alike to the bit, one microbatch after the other.
plan::profile dense_stack() {
  plan::model_description model;
  model.name = "dense-24";
  model.layers = model.dense_layers = 24;
  model.hidden = 4096;
  model.dense_ffn = 11008;
  model.microbatches = 2;
  model.in_flight = 1;
  auto step = plan::profile_of(model, plan::machine_named("h100"));
  golden::drop_staying(step);
  golden::drop_offers(step);
  return step;
}

/// Both stages of a pipeline of two, with the bubbles of 1F1B: the first waits for its first
/// backward pass while the second does that, the second for its first forward pass, and for the
/// first to end. Other transfers take no longer than `transfer_us`.
plan::profile pipeline_of_two(std::size_t rank) {
  auto model = plan::model_named("deepseek-v3-proxy");
  model.pipeline_parallel = 2;
  model.pipeline_rank = rank;
  model.in_flight = 2 - rank;
  model.microbatches = 6;
  auto step = plan::profile_of(model, plan::machine_named("h200"), 2);
  golden::drop_staying(step);
  golden::drop_offers(step);
  golden::vary_times(step, 0.02);
  constexpr double transfer_us = 40;
  const auto once_us = plan::compute_us(step) / static_cast<double>(model.microbatches);
  const auto forward_us = once_us / 3;
  const auto backward_us = once_us - forward_us;
  bool first_backward = true;
  for (std::size_t i = 0; i < step.events.size(); ++i) {
    auto& each = step.events[i];
    const bool to_backward = i > 0 && each.kind == plan::event_kind::restore &&
                             step.events[i - 1].kind == plan::event_kind::end_forward;
    if (i > 0 && !to_backward) continue;
    each.wait_us = transfer_us;
    if (rank == 1 && i == 0) each.wait_us += forward_us;
    if (rank == 0 && to_backward && std::exchange(first_backward, false)) {
      each.wait_us += backward_us;
    }
    each.compute_us += each.wait_us;
  }
  if (rank == 1) step.rest_us += step.rest_wait_us = backward_us;
  return step;
}

/// The second of four stages of a narrow DeepSeek-V3: latent attention, ranks of experts, and a
/// link shared by four GPUs.
plan::profile latent_stage() {
  auto model = plan::model_named("deepseek-v3");
  model.layers = 12;
  model.pipeline_rank = 1;
  model.in_flight = 3;
  model.microbatches = 6;
  auto step = plan::profile_of(model, plan::machine_named("h200"), 4);
  golden::drop_staying(step);
  golden::vary_times(step, 0.05);
  return step;
}

void make_profiles(const recordings& to) {
  for (const std::size_t depth : {1, 2, 4}) {
    save_recorded(to, "bench_step_d" + std::to_string(depth), bench_step(depth, false));
  }
  save_recorded(to, "bench_step_d2_offers", bench_step(2, true));
  save_recorded(to, "dense_24", dense_stack());
  save_recorded(to, "latent_stage", latent_stage());
  for (const std::size_t rank : {0, 1}) {
    save_recorded(to, "pipeline_of_two_" + std::to_string(rank), pipeline_of_two(rank));
  }
  // Written and not recorded: what hardly any trainer does.
  std::mt19937_64 random(24);
  const auto written = tidepool::test::random_profile(
      random,
      {.groups = 60, .chunks = 5, .depth = 3, .recompute = true, .waits = true, .outliving = true});
  plan::save(written, to.profile_file("written_crooked"));
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
    golden_case about{name, std::string(golden::by_rule), arena(middle), {}};
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
    cases.push_back({name, std::string(golden::by_rule), options, {}});
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
  add(arena(between(0.6)) + " --reload-ahead=12 --reload-ahead-bytes=" + third);
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
                     {}});
  };
  cases.push_back({name, std::string(golden::by_plan), "", {}});
  // Where shapes vary a plan leaves some of what there is free.
  for (const double share : {1.1, 1.6}) add(golden::by_plan, share);
  for (const double share : {1.1, 1.6}) add(golden::by_plan_unplaced, share);
}

void make_cases(recordings& to) {
  std::vector<golden_case> cases;
  for (const auto& name : to.names()) {
    std::printf("%s\n", name.c_str());
    add_rules(to, name, cases);
    add_plans(to, name, cases);
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
