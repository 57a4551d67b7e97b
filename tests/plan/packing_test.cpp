// Automatic plans over packed tensors: faster than over whole ones, and as predicted.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/bf16_tensors.hpp"
#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/codec/pack_form.hpp"
#include "tidepool/memory/stream_memory.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/plan/json.hpp"

namespace {

using tidepool::machine;
using tidepool::test::rig;
using offloader = rig::offloader<tidepool::modules<"core_attn">>;

constexpr std::size_t bytes = std::size_t{256} << 10;
constexpr int layers = 40;

struct outcome {
  double expected_us = 0;
  double step_us = 0;  // of the last step
  double bound_us = 0;
  double stall_us = 0;       // as predicted
  std::uint64_t packed = 0;  // bytes of the last step
  bool by_plan = false;      // the plan packs
  std::string report;
};

// Kernels that take as long as half of the copies, so that the link is the limit.
constexpr double link_limits = 12'000;
// Kernels that hide all copies.
constexpr double copies_hide = 120'000;

outcome train(const std::vector<std::string>& pack, double share, double kernel_ns = link_limits,
              double pack_rate = 400, double unpack_rate = 500) {
  machine model;
  model.offload_rate = model.reload_rate = 10;
  model.both_rate = 20;
  model.pack_rate = pack_rate;
  model.unpack_rate = unpack_rate;
  rig desk(model);
  auto opts = tidepool::test::arena_options(static_cast<std::size_t>(share * layers * bytes),
                                            {"core_attn"});
  opts.policy = tidepool::policy_kind::automatic;
  opts.timed_step = 2;
  opts.host_budget = std::size_t{64} << 20;
  opts.pack = pack;
  offloader off(desk.dev, opts, {.planner = tidepool::planner()});
  outcome seen;
  off.on_report([&](std::string_view line) { seen.report += std::string(line) + "\n"; });
  for (int step = 0; step < 6; ++step) {
    const auto before = desk.dev.now_ns();
    const auto packed = off.counters().modules[0].bytes_packed;
    auto pass = off.begin();
    std::vector<rig::buffer> saved;
    const auto tag = [&](int layer) { return static_cast<std::uint32_t>(step * 100 + layer); };
    for (int l = 0; l < layers; ++l) {
      auto& x =
          saved.emplace_back(off.allocate<tidepool::test::bf16_number>(bytes / 2, desk.stream()));
      desk.write(x, tag(l), kernel_ns);
      pass.commit<"core_attn">(l, desk.stream(), x);
    }
    pass.end_forward();
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      pass.restore<"core_attn">(l, desk.stream(), x);
      desk.dev.launch(desk.stream(), kernel_ns, [] {});
      desk.check(x, tag(l));
      x.reset(desk.stream());
    }
    pass.finish();
    CHECK(desk.wrong() == 0);
    seen.step_us = (desk.dev.now_ns() - before) / 1e3;
    seen.packed = off.counters().modules[0].bytes_packed - packed;
    off.end_step();
  }
  REQUIRE(off.current_plan());
  const auto& made = *off.current_plan();
  CHECK(made.expected.runs);
  seen.expected_us = made.expected.step_us;
  seen.bound_us = made.bound_us;
  seen.stall_us = made.expected.stall_us;
  seen.by_plan = made.packs;
  return seen;
}

}  // namespace

TEST_CASE("plans know packing: steps are faster than with whole copies, and as predicted") {
  for (const double share : {0.25, 0.375, 0.5}) {
    CAPTURE(share);
    const auto whole = train({}, share);
    const auto packed = train({"all"}, share);
    CHECK(whole.packed == 0);
    CHECK(packed.packed > 0);
    CHECK(packed.step_us < 0.9 * whole.step_us);
    CHECK(packed.step_us == doctest::Approx(packed.expected_us).epsilon(0.02));
    CHECK(packed.bound_us <= packed.expected_us);
  }
}

TEST_CASE("pack auto: a plan packs where the link is the limit, and the step takes its forecast") {
  for (const double share : {0.25, 0.5}) {
    CAPTURE(share);
    const auto whole = train({}, share);
    const auto packed = train({"all"}, share);
    const auto chosen = train({"auto"}, share);
    CHECK(chosen.by_plan);
    CHECK(chosen.packed == packed.packed);
    CHECK(chosen.step_us == doctest::Approx(packed.step_us).epsilon(0.002));
    CHECK(chosen.step_us < 0.9 * whole.step_us);
    CHECK(chosen.step_us == doctest::Approx(chosen.expected_us).epsilon(0.02));
    CHECK(tidepool::test::says(chosen.report, " groups leave, packed;"));
  }
}

TEST_CASE("pack auto: a plan leaves packing off where copies are hidden") {
  const auto whole = train({}, 0.5, copies_hide);
  const auto packed = train({"all"}, 0.5, copies_hide);
  const auto chosen = train({"auto"}, 0.5, copies_hide);
  CHECK_FALSE(chosen.by_plan);
  CHECK(chosen.packed == 0);
  CHECK(chosen.step_us <= 1.0001 * whole.step_us);
  CHECK(chosen.step_us == doctest::Approx(chosen.expected_us).epsilon(0.02));
  CHECK(chosen.step_us < packed.step_us);
  CHECK_FALSE(tidepool::test::says(chosen.report, "packed"));
}

TEST_CASE("plans know packing: kernels that pack are no wait for copies") {
  const auto packed = train({"all"}, 0.5, copies_hide, 10);
  CHECK(packed.expected_us > 1.03 * 2 * layers * copies_hide / 1e3);  // slow kernels pack half
  CHECK(packed.stall_us < 0.01 * packed.expected_us);
}

TEST_CASE("pack auto: a plan knows the time of the kernels that pack") {
  constexpr double slow = 10;  // a kernel takes as long as the copy of the whole tensor
  const auto packed = train({"all"}, 0.5, link_limits, slow);
  CHECK(packed.packed > 0);
  CHECK(packed.step_us == doctest::Approx(packed.expected_us).epsilon(0.02));
  const auto whole = train({}, 0.5, link_limits, slow);
  const auto chosen = train({"auto"}, 0.5, link_limits, slow);
  CHECK_FALSE(chosen.by_plan);
  CHECK(chosen.packed == 0);
  CHECK(chosen.step_us <= 1.0001 * whole.step_us);
}

TEST_CASE("pack auto: a plan from elsewhere says whether its tensors are packed") {
  for (const bool packs : {true, false}) {
    CAPTURE(packs);
    tidepool::plan::profile step;
    step.modules = {"core_attn"};
    step.passes = {{0, false}, {0, true}};
    step.chunks.push_back({0, {{tidepool::module_id{0}, 0, bytes}}, 0});
    tidepool::plan::step_plan made;
    made.what = {{tidepool::plan::action::offload}};
    made.packs = packs;
    const auto text = tidepool::plan::to_json(made, step);
    CHECK(tidepool::plan::plan_from_json(text).packs == packs);
    rig desk;
    auto opts = tidepool::test::arena_options(4 * bytes);
    opts.policy = tidepool::policy_kind::automatic;
    opts.pack = {"auto"};
    tidepool::test::planning<offloader> off(desk.dev, opts);
    off.follow(made, step);
    if (packs) {
      opts.pack.clear();
      tidepool::test::planning<offloader> whole(desk.dev, opts);
      CHECK_THROWS_AS(whole.follow(made, step), tidepool::plan::profile_error);
    }
    auto pass = off.begin();
    auto x = off.allocate<tidepool::test::bf16_number>(bytes / 2, desk.stream());
    desk.write(x, 7);
    pass.commit<"core_attn">(0, desk.stream(), x);
    pass.restore<"core_attn">(0, desk.stream(), x);
    desk.check(x, 7);
    x.reset(desk.stream());
    pass.finish();
    CHECK(desk.wrong() == 0);
    CHECK(off.counters().modules[0].bytes_packed == (packs ? bytes : 0));
  }
}

TEST_CASE("plans know packing: a profile with it is read as it was written") {
  tidepool::plan::profile step;
  step.storages.push_back({.bytes = 4096, .bfloat16 = true});
  step.packing = {{.out = 30, .in = 31, .both = 50, .latency_us = 3}, 1200, 1500, 1 << 18, 1 << 20};
  CHECK(tidepool::plan::profile_from_json(tidepool::plan::to_json(step)) == step);
}

TEST_CASE("pack auto: a plan counts the time that unpacking takes from all other kernels") {
  constexpr double slow = 40;
  const auto whole = train({}, 0.5);
  const auto packed = train({"all"}, 0.5, link_limits, 400, slow);
  const auto chosen = train({"auto"}, 0.5, link_limits, 400, slow);
  CHECK(packed.expected_us < 0.985 * whole.expected_us);  // without that time
  CHECK_FALSE(chosen.by_plan);
  CHECK(chosen.packed == 0);
}

TEST_CASE("plans know packing: a profile has the memory through which a group comes back") {
  machine model;
  model.packs_from = 2048;
  rig desk(model);
  constexpr std::size_t small = 40'960, tensors = 4;
  tidepool::options opts;
  opts.offload_modules = opts.pack = {"core_attn"};
  opts.min_tensor_elements = 1;
  opts.policy = tidepool::policy_kind::automatic;
  opts.timed_step = 2;
  opts.device_budget = 100 * small;
  opts.host_budget = std::size_t{64} << 20;
  std::size_t taken = 0;
  offloader off(desk.dev, opts,
                {.planner = tidepool::planner(),
                 .memory = tidepool::memory_on<rig::device_type>(
                     desk.stream(),
                     [&](std::size_t b) {
                       taken += b;
                       return desk.dev.try_allocate(b);
                     },
                     [&](void* p) { desk.dev.deallocate(p); })});
  off.on_report({});
  std::size_t back = 0;  // beside the tensors
  for (int step = 0; step < 2; ++step) {
    std::vector<rig::buffer> x;
    auto pass = off.begin();
    for (std::size_t i = 0; i < tensors; ++i) {
      x.push_back(off.allocate<tidepool::test::bf16_number>(small / 2, desk.stream()));
      desk.write(x[i], 1);
    }
    pass.commit<"core_attn">(0, desk.stream(), x[0], x[1], x[2], x[3]);
    taken = 0;
    pass.end_forward();
    pass.restore<"core_attn">(0, desk.stream(), x[0], x[1], x[2], x[3]);
    if (taken > 0) back = taken - tensors * small;
    for (auto& each : x) each.reset(desk.stream());
    pass.finish();
    off.end_step();
  }
  const auto group = tensors * tidepool::aligned(tidepool::pack_form::packed_bytes(small));
  CHECK(back > 0);
  REQUIRE(off.profile().packing);
  CHECK(off.profile().packing->staging == back + group);
}
