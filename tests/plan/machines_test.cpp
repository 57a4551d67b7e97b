// What several GPUs of a host get of its memory while all of them copy.
#include "../../examples/plan/machines.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

#include "../../examples/plan/model.hpp"
#include "tidepool/plan/planner.hpp"

TEST_SUITE_BEGIN("plan");

namespace {

using namespace planning;
using namespace tidepool::plan;

machine_description measured() {
  machine_description on = machine_named("gb200");
  on.link = {100, 110, 150, 3};
  on.shared = {{2, {90, 95, 100, 3}}, {8, {40, 48, 50, 4}}};
  return on;
}

}  // namespace

TEST_CASE("machines: each of those that are sold has a rate for each direction, and for both") {
  for (const char* name : {"h100", "h200", "b200", "gh200", "gb200", "gb300"}) {
    CAPTURE(name);
    const auto& on = machine_named(name);
    CHECK(on.name == name);
    CHECK(on.link.out > 0);
    CHECK(on.link.in > 0);
    CHECK(on.link.both >= on.link.out);
    CHECK(on.link.both >= on.link.in);
    CHECK(on.link.both <= on.link.out + on.link.in);
    CHECK(on.source.find("link") != std::string::npos);
  }
}

TEST_CASE("machines: a measured number of GPUs has its rates, one GPU those of one alone") {
  const auto on = measured();
  CHECK(link_at_once(on, 0) == link_share{1, on.link, 1});
  CHECK(link_at_once(on, 1) == link_share{1, on.link, 1});
  CHECK(link_at_once(on, 2) == link_share{2, {90, 95, 100, 3}, 2});
  CHECK(link_at_once(on, 8) == link_share{8, {40, 48, 50, 4}, 8});
}

TEST_CASE("machines: the link to a neighbour is the one that is given, or that of peer_rate") {
  auto on = machine_named("h100");
  CHECK(peer_link_of(on) == link_rates{397, 397, 794, 2});
  on.peer_link = {396, 394, 782, 3};
  CHECK(peer_link_of(on) == on.peer_link);
  CHECK(profile_of(model_named("deepseek-v3-proxy"), on).peer_link == on.peer_link);
  on.peer_link.reset();
  on.peer_rate = 0;
  CHECK(!peer_link_of(on));
}

TEST_CASE("machines: between two measurements each GPU gets what it gets among more") {
  for (const std::size_t gpus : {3U, 5U, 7U}) {
    CAPTURE(gpus);
    CHECK(link_at_once(measured(), gpus) == link_share{gpus, {40, 48, 50, 4}, 8});
  }
}

TEST_CASE("machines: more GPUs than were measured divide the last total") {
  CHECK(link_at_once(measured(), 16) == link_share{16, {20, 24, 25, 4}, 8});
  const auto many = link_at_once(measured(), 12);
  CHECK(many.each.out * 12 == doctest::Approx(320));
  CHECK(many.each.both * 12 == doctest::Approx(400));
}

TEST_CASE("machines: where nobody measured several, one's rates, and it says so") {
  for (const auto& on : known_machines()) {
    if (!on.shared.empty()) continue;
    CAPTURE(on.name);
    CHECK(link_at_once(on, 4) == link_share{4, on.link, 0});
  }
}

TEST_CASE("machines: a measurement finds its place, or takes that of one before it") {
  machine_description on;
  set_link(on, 4, {4, 4, 4, 4});
  set_link(on, 8, {8, 8, 8, 8});
  set_link(on, 2, {2, 2, 2, 2});
  set_link(on, 1, {1, 1, 1, 1});
  set_link(on, 4, {5, 5, 5, 5});
  CHECK(on.link == link_rates{1, 1, 1, 1});
  CHECK(on.shared ==
        std::vector<shared_link>{{2, {2, 2, 2, 2}}, {4, {5, 5, 5, 5}}, {8, {8, 8, 8, 8}}});
}

TEST_CASE("machines: the known points are of fewer GPUs first, and more GPUs never get more each") {
  std::size_t with_points = 0;
  for (const auto& on : known_machines()) {
    CAPTURE(on.name);
    auto before = link_at_once(on, 1);
    for (const auto& point : on.shared) {
      CHECK(point.gpus > before.gpus);
      CHECK(point.each.out <= before.each.out);
      CHECK(point.each.in <= before.each.in);
      CHECK(point.each.both <= before.each.both);
      before = link_at_once(on, point.gpus);
    }
    with_points += on.shared.empty() ? 0 : 1;
  }
  CHECK(with_points > 0);
}

TEST_CASE("machines: a step's link is that of the GPUs which copy at once") {
  const auto& h200 = machine_named("h200");
  auto model = model_named("deepseek-v3-proxy");
  CHECK(profile_of(model, h200).link == h200.link);
  for (const std::size_t gpus : {1U, 2U, 3U, 4U, 8U}) {
    CAPTURE(gpus);
    CHECK(profile_of(model, h200, gpus).link == link_at_once(h200, gpus).each);
  }
  // Nothing but the link changes.
  auto shared = profile_of(model, h200, 4);
  shared.link = h200.link;
  CHECK(shared == profile_of(model, h200, 1));
}

TEST_CASE(
    "machines: unsaid, all ranks of a model copy at once, as many as one host was seen with") {
  const auto& h200 = machine_named("h200");
  auto model = model_named("deepseek-v3-proxy");
  CHECK(copying_at_once(model, h200) == 1);
  model.pipeline_parallel = 2;
  CHECK(copying_at_once(model, h200) == 2);
  CHECK(profile_of(model, h200).link == link_at_once(h200, 2).each);
  model.expert_parallel = 8;
  CHECK(copying_at_once(model, h200) == 4);
  CHECK(profile_of(model, h200).link == link_at_once(h200, 4).each);
  CHECK(copying_at_once(model, machine_named("gb200")) == 1);
}

TEST_CASE("machines: a plan for more GPUs of a host is never faster") {
  const auto& model = model_named("deepseek-v3-proxy");
  double before = 0;
  for (const std::size_t gpus : {1U, 2U, 4U}) {
    CAPTURE(gpus);
    const auto step = profile_of(model, machine_named("h200"), gpus);
    planner plans(step);
    const auto made = plans.best({.device_budget = std::size_t{10} << 30});
    REQUIRE(made.expected.runs);
    CHECK(made.expected.step_us > before);
    CHECK(made.bound_us <= made.expected.step_us * (1 + 1e-9));
    before = made.expected.step_us;
  }
}
