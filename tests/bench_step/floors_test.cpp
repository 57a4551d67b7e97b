// A floor of bench_step moves as many bytes as a case does, over the same links.
#include "../../bench/step/floors.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

namespace {

struct entry {
  bench::case_result result;
};

std::unique_ptr<entry> moves(double gib, double to_peer) {
  auto made = std::make_unique<entry>();
  made->result.plan.kind = bench::case_kind::offload;
  made->result.moved_bytes = gib * bench::gibibyte;
  made->result.peer_bytes = to_peer * bench::gibibyte;
  return made;
}

}  // namespace

TEST_CASE("bench_step: a case is compared with the floor that moves as much over the same link") {
  bench::settings run;
  std::vector<std::unique_ptr<entry>> cases;
  cases.push_back(moves(0, 0));
  cases.push_back(moves(2.75, 0));
  cases.push_back(moves(2.75, 2.75));
  cases.push_back(moves(2.8, 0));  // near the second
  cases.push_back(moves(4, 3));
  bench::results all;
  for (auto& floor : bench::plan_floors(run, cases)) {
    floor.steps.push_back({.whole = 100});
    all.cases.push_back(std::move(floor));
  }
  REQUIRE(all.cases.size() == 3);
  CHECK(all.cases[0].plan.name == "floor 2.75 GiB");
  CHECK(all.cases[1].plan.name == "floor, neighbour 2.75 GiB");
  CHECK(all.cases[2].plan.name == "floor, neighbour 3.00, host 1.00 GiB");
  CHECK(all.cases[1].plan.share == 0);
  const auto full = static_cast<double>(run.sizes.expert_bytes());
  CHECK(all.cases[2].plan.share == doctest::Approx(bench::gibibyte / full));
  CHECK(all.cases[2].plan.peer_share == doctest::Approx(3 * bench::gibibyte / full));

  CHECK(bench::floor_of(all, cases[1]->result) == &all.cases[0]);
  CHECK(bench::floor_of(all, cases[2]->result) == &all.cases[1]);
  CHECK(bench::floor_of(all, cases[3]->result) == &all.cases[0]);
  CHECK(bench::floor_of(all, cases[4]->result) == &all.cases[2]);
}
