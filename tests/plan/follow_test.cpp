// A plan that was made elsewhere: it is followed from the first step on, or refused in words.
#include "tidepool/plan/follow.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/plan/json.hpp"

TEST_SUITE_BEGIN("plan");

namespace {

using namespace tidepool;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;

constexpr std::size_t budget = 20480;

options automatic() {
  auto opts = test::arena_options(budget, {"core_attn", "moe_act"});
  opts.policy = policy_kind::automatic;
  return opts;
}

/// What a step of `layers` layers saves and checks; each layer commits two groups.
template <class Offloader>
void train_step(
    rig& desk, Offloader& off, std::uint32_t step, int layers = 3, std::size_t bytes = 4096,
    const std::function<void()>& in_between = [] {}) {
  const module_id modules[]{off.module("core_attn"), off.module("moe_act")};
  auto open = off.begin();
  std::vector<rig::buffer> saved(static_cast<std::size_t>(2 * layers));
  for (std::size_t i = 0; i < saved.size(); ++i) {
    saved[i] = off.allocate(bytes, desk.stream());
    desk.write(saved[i], step, 100'000);
    open.commit(modules[i % 2], static_cast<int>(i / 2), desk.stream(), saved[i]);
  }
  open.end_forward();
  in_between();
  for (std::size_t i = saved.size(); i-- > 0;) {
    open.restore(modules[i % 2], static_cast<int>(i / 2), desk.stream(), saved[i]);
    desk.check(saved[i], step);
    saved[i].reset(desk.stream());
  }
  open.finish();
  off.end_step();
}

std::uint64_t moved(const rig::offloader<>& off) {
  std::uint64_t bytes = 0;
  for (const auto& each : off.counters().modules) bytes += each.step_bytes;
  return bytes;
}

/// A plan, its profile, and how many bytes a step moves under it.
struct recorded_plan {
  plan::profile step;
  plan::step_plan made;
  std::uint64_t bytes = 0;
};

recorded_plan record(std::size_t less_in_odd_steps = 0) {
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
  off.on_report([](std::string_view) {});
  for (std::uint32_t step = 0; step < 4; ++step) {
    train_step(desk, off, step, 3, 4096 - less_in_odd_steps * (step % 2));
  }
  REQUIRE(off.current_plan());
  return {off.profile(), *off.current_plan(), moved(off)};
}

/// The same plan for every case: it is searched for once, since that takes longer than all else
/// here.
const recorded_plan& recorded() {
  static const recorded_plan once = record();
  return once;
}

}  // namespace

TEST_CASE("follow: a saved plan is followed from the first step of another run") {
  const auto& before = recorded();
  const auto all_of_it = std::uint64_t{6 * 4096};
  REQUIRE(before.bytes > 0);
  REQUIRE(before.bytes < all_of_it);
  const auto step = plan::profile_from_json(plan::to_json(before.step));
  const auto made = plan::plan_from_json(plan::to_json(before.made, before.step));

  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
  off.on_report([](std::string_view) {});
  off.follow(made, step);
  for (std::uint32_t number = 0; number < 3; ++number) {
    CAPTURE(number);
    train_step(desk, off, number);
    CHECK(moved(off) == before.bytes);
  }
  CHECK(*off.current_plan() == made);
  CHECK(desk.wrong() == 0);
}

TEST_CASE(
    "follow: a handle that lasts from commit to restore leaves room, an earlier end does not") {
  enum class lasts { to_commit, beyond, to_restore, in_two_groups };
  for (const auto until :
       {lasts::to_commit, lasts::beyond, lasts::to_restore, lasts::in_two_groups}) {
    CAPTURE(static_cast<int>(until));
    rig desk;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
    off.on_report([](std::string_view) {});
    for (std::uint32_t step = 0; step < 4; ++step) {
      auto open = off.begin();
      auto saved = off.allocate(4096, desk.stream());
      desk.write(saved, step, 100'000);
      auto residual = saved.share();
      if (until == lasts::to_commit) residual.reset(desk.stream());
      open.commit(off.module("core_attn"), 0, desk.stream(), saved);
      if (until == lasts::beyond) residual.reset(desk.stream());
      const bool twice = until == lasts::in_two_groups;
      if (twice) open.commit(off.module("expert_fc1"), 0, desk.stream(), residual);
      open.end_forward();
      if (twice) open.restore(off.module("expert_fc1"), 0, desk.stream(), residual);
      open.restore(off.module("core_attn"), 0, desk.stream(), saved);
      residual.reset(desk.stream());
      desk.check(saved, step);
      saved.reset(desk.stream());
      open.finish();
      off.end_step();
    }
    CHECK(off.profile().shapes_vary ==
          (until == lasts::to_restore || until == lasts::in_two_groups));
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("follow: reloads run as far ahead as the plan says, in groups and in bytes") {
  const auto& before = recorded();
  const auto reloads_ahead = [&](std::size_t groups, std::size_t bytes) {
    rig desk;
    auto opts = automatic();
    *opts.device_budget *= 2;  // room to reload into
    tidepool::test::planning<rig::offloader<>> off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    auto made = before.made;
    for (auto& each : made.what) each.assign(each.size(), plan::action::offload);
    made.reload_ahead = groups;
    made.reload_ahead_bytes = bytes;
    off.follow(made, before.step);
    std::uint64_t ahead = 0;
    train_step(desk, off, 0, 3, 4096, [&] { ahead = desk.dev.reloads(); });
    CHECK(desk.wrong() == 0);
    return ahead;
  };
  CHECK(reloads_ahead(1, 0) == 1);
  CHECK(reloads_ahead(2, 0) == 2);
  CHECK(reloads_ahead(2, 4097) == 2);
  CHECK(reloads_ahead(2, 4096) == 1);
}

TEST_CASE("follow: that shapes vary is known to the profile, and room is left for it") {
  const auto before = record(512);
  CHECK(before.step.shapes_vary);
  CHECK(!recorded().step.shapes_vary);
  const auto step = plan::profile_from_json(plan::to_json(before.step));
  CHECK(step == before.step);

  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
  off.on_report([](std::string_view) {});
  off.follow(before.made, step);
  for (std::uint32_t number = 0; number < 9; ++number) {
    train_step(desk, off, number, 3, 4096 - 512 * (number % 3));
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("follow: what a chunk kept that was given up counts no longer") {
  const auto before = record(512);
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
  off.on_report([](std::string_view) {});
  off.follow(before.made, before.step);
  train_step(desk, off, 0);
  const auto bytes = moved(off);
  for (int given_up = 0; given_up < 8; ++given_up) {
    {
      auto open = off.begin();
      for (int i = 0; i < 6; ++i) {
        auto x = off.allocate(3584, desk.stream());
        open.commit(off.module(i % 2 == 0 ? "core_attn" : "moe_act"), i / 2, desk.stream(), x);
      }
    }
    off.end_step();
  }
  train_step(desk, off, 1);
  CHECK(moved(off) == bytes);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("follow: modules are found by their names") {
  auto before = recorded();
  // As another trainer would have numbered them.
  auto& step = before.step;
  const auto count = step.modules.size();
  std::vector<std::string> turned(step.modules.rbegin(), step.modules.rend());
  for (auto& chunk : step.chunks) {
    for (auto& group : chunk.groups) {
      group.module = static_cast<module_id>(count - 1 - static_cast<std::size_t>(group.module));
    }
  }
  step.modules = turned;
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
  off.on_report([](std::string_view) {});
  off.follow(before.made, step);
  train_step(desk, off, 7);
  CHECK(moved(off) == before.bytes);
  CHECK(off.profile().modules == std::vector<std::string>(turned.rbegin(), turned.rend()));
  CHECK(desk.wrong() == 0);
}

TEST_CASE("follow: the profile of a warm-up has the names of its modules, whatever the policy") {
  for (const auto policy : {policy_kind::megatron, policy_kind::automatic}) {
    rig desk;
    auto opts = automatic();
    opts.policy = policy;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    for (std::uint32_t step = 0; step < 2; ++step) train_step(desk, off, step);
    const auto& names = off.profile().modules;
    REQUIRE(names.size() > static_cast<std::size_t>(off.module("moe_act")));
    CHECK(names[static_cast<std::size_t>(off.module("moe_act"))] == "moe_act");
  }
}

TEST_CASE("follow: each group goes to the place that the plan names, or to the next with room") {
  const auto& good = recorded();
  struct places {
    std::uint64_t peer = 0;
    std::uint64_t host = 0;
  };
  // Of the last of four steps of six groups.
  const auto places_of = [&](const recorded_plan& given, std::size_t peer_budget) {
    rig desk;
    auto opts = automatic();
    opts.places = {place_kind::peer, place_kind::host};
    opts.peer_budget = peer_budget;
    opts.host_step = 4096;
    tidepool::test::planning<rig::offloader<>> off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    off.follow(given.made, given.step);
    places before;
    for (std::uint32_t step = 0; step < 4; ++step) {
      const auto& all = off.counters().places;
      before = {all.at(0).bytes_offloaded, all.at(1).bytes_offloaded};
      train_step(desk, off, step);
    }
    const auto& all = off.counters().places;
    return places{all.at(0).bytes_offloaded - before.peer, all.at(1).bytes_offloaded - before.host};
  };
  auto given = good;
  given.step.peer_link = {396, 394, 782, 2};
  given.made.device_budget = budget;
  for (auto& each : given.made.what.at(0)) each = plan::action::offload;
  given.made.what[0][1] = given.made.what[0][4] = plan::action::offload_to_peer;
  given.made.peer_budget = 8192;
  auto seen = places_of(given, 16384);  // there is room for more than the plan sends
  CHECK(seen.peer == 8192);
  CHECK(seen.host == 4 * 4096);

  given.made.what[0][0] = given.made.what[0][5] = plan::action::offload_to_peer;
  seen = places_of(given, 8192);  // two of four have no room
  CHECK(seen.peer == 8192);
  CHECK(seen.host == 4 * 4096);

  given.step.peer_link.reset();  // a plan that knows of no neighbour: the nearest with room
  for (auto& each : given.made.what[0]) each = plan::action::offload;
  seen = places_of(given, 12288);
  CHECK(seen.peer == 12288);
  CHECK(seen.host == 3 * 4096);
}

TEST_CASE("follow: what cannot be followed is refused in words") {
  const auto& good = recorded();
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
  const auto refusal = [&](const recorded_plan& given) -> std::string {
    try {
      off.follow(given.made, given.step);
    } catch (const plan::profile_error& problem) {
      return problem.what();
    }
    return {};
  };

  SUBCASE("a plan of another profile") {
    auto bad = good;
    bad.made.what.at(0).pop_back();
    CHECK(says(refusal(bad), "/chunks/0/groups: found 5 groups, expected 6"));
  }
  SUBCASE("a profile that contradicts itself") {
    auto bad = good;
    bad.step.events.erase(bad.step.events.begin());
    CHECK(says(refusal(bad), "profile at"));
  }
  SUBCASE("a profile of storages that nobody saves") {
    auto bad = good;
    bad.step.storages.at(0).chunk = 4'000'000;
    bad.step.storages.at(0).group = 7;
    CHECK(says(refusal(bad), "profile at"));
  }
  SUBCASE("recomputation") {
    auto bad = good;
    bad.made.what.at(0).at(2) = plan::action::recompute;
    CHECK(says(refusal(bad), "/chunks/0/groups/2: the group is to be recomputed"));
  }
  SUBCASE("a module that nobody has") {
    auto bad = good;
    for (auto& name : bad.step.modules) name += "_fast";
    CHECK(says(refusal(bad), "'core_attn_fast' is no module of this offloader"));
  }
  SUBCASE("a module that stays in this run") {
    auto opts = automatic();
    opts.offload_modules = {"core_attn"};
    tidepool::test::planning<rig::offloader<>> other(desk.dev, opts);
    CHECK_THROWS_WITH_AS(
        other.follow(good.made, good.step),
        doctest::Contains("'moe_act' is not offloaded in this run; add it to --offload-modules"),
        plan::profile_error);
  }
  SUBCASE("more memory than there is") {
    auto bad = good;
    bad.made.device_budget = budget + 1;
    CHECK(says(refusal(bad), "device_budget is 20480; raise it"));
  }
  SUBCASE("a neighbour that is not there") {
    auto bad = good;
    bad.made.peer_budget = 4096;
    CHECK(says(refusal(bad), "4096 bytes of a neighbour's memory, but there are 0"));
  }
  SUBCASE("in the middle of a step") {
    auto open = off.begin();
    CHECK(says(message_of([&] { off.follow(good.made, good.step); }), "a step is under way"));
  }
  CHECK(!off.current_plan());
}

TEST_CASE("follow: the first step is held to the plan") {
  const auto& good = recorded();
  rig desk;
  tidepool::test::planning<rig::offloader<>> off(desk.dev, automatic());
  off.on_report([](std::string_view) {});
  off.follow(good.made, good.step);
  SUBCASE("another group") {
    auto open = off.begin();
    auto saved = off.allocate(4096, desk.stream());
    const auto text =
        message_of([&] { open.commit(off.module("moe_act"), 0, desk.stream(), saved); });
    CHECK(says(text, "commit of moe_act of layer 0"));
    CHECK(says(text, "has 'core_attn' of layer 0 in this place"));
    CHECK(saved);
  }
  SUBCASE("a commit that failed does not count") {
    auto open = off.begin();
    rig::buffer nothing;
    CHECK(!message_of([&] {
             open.commit(off.module("core_attn"), 0, desk.stream(), nothing);
           }).empty());
    auto saved = off.allocate(4096, desk.stream());
    CHECK_NOTHROW(open.commit(off.module("core_attn"), 0, desk.stream(), saved));
  }
  SUBCASE("a group too many") {
    CHECK(
        says(message_of([&] { train_step(desk, off, 1, 4, 2048); }), "has no group in this place"));
  }
  SUBCASE("a group too few") {
    CHECK(says(message_of([&] { train_step(desk, off, 1, 2); }),
               "had 4 groups, but the plan that is followed has 6"));
  }
  SUBCASE("a chunk too few") {
    auto more = good;
    more.step.chunks.push_back({0, {}, 1});
    more.step.passes.push_back({1, false});
    more.step.passes.push_back({1, true});
    more.step.events.push_back({plan::event_kind::end_forward, 0, 1, 0});
    more.made.what.emplace_back();
    tidepool::test::planning<rig::offloader<>> second(desk.dev, automatic());
    second.follow(more.made, more.step);
    CHECK(says(message_of([&] { train_step(desk, second, 1); }),
               "had 1 chunks, but the plan that is followed has 2"));
    second.follow(good.made, good.step);
    train_step(desk, second, 2);
    CHECK(moved(second) == good.bytes);
  }
  SUBCASE("modules that move no byte are reported after it") {
    auto opts = automatic();
    opts.offload_modules.push_back("expert_fc1");
    tidepool::test::planning<rig::offloader<>> second(desk.dev, opts);
    std::string said;
    second.on_report([&](std::string_view line) { said += line; });
    second.follow(good.made, good.step);
    train_step(desk, second, 1);
    CHECK(says(said, "'expert_fc1' was asked for and moved no byte"));
  }
  SUBCASE("another model chunk") {
    CHECK(says(message_of([&] { auto open = off.begin({.model_chunk = 1}); }),
               "is of model chunk 1, but the plan that is followed has model chunk 0 there"));
  }
  SUBCASE("a chunk too many") {
    auto first = off.begin();
    CHECK(says(message_of([&] { auto second = off.begin({.microbatch = 1}); }), "only 1 chunks"));
  }
  SUBCASE("not the step after it, nor an evaluation") {
    {
      auto evaluation = off.begin({.forward_only = true});
      evaluation.finish();
    }
    off.end_step();
    train_step(desk, off, 1);
    train_step(desk, off, 2, 2);
    CHECK(desk.wrong() == 0);
  }
}

TEST_SUITE_END();
