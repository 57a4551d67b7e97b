// One step is made of the last few that were recorded, number by number.
#include "tidepool/observe/recorded_steps.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

namespace {

using namespace tidepool::plan;
using tidepool::plan::detail::drain;
using tidepool::plan::detail::recorded_steps;
using enum event_kind;

// Two groups forward, and back.
profile step(std::initializer_list<double> us, double rest_us = 10) {
  profile made;
  made.events = {{allocate, 0, 0}, {commit, 0, 0},  {allocate, 1, 0}, {commit, 1, 0},
                 {end_forward, 0}, {restore, 1, 0}, {release, 1, 0},  {restore, 0, 0}};
  auto each = made.events.begin();
  for (const auto compute : us) (each++)->compute_us = compute;
  made.rest_us = rest_us;
  return made;
}

profile merged(const std::vector<profile>& steps, std::vector<std::vector<drain>> drains = {}) {
  drains.resize(steps.size());
  recorded_steps all;
  for (std::size_t i = 0; i < steps.size(); ++i) all.add(steps[i], drains[i], i == 0);
  auto result = steps.back();
  all.merge_into(result);
  return result;
}

// At the restore of the second group.
std::vector<drain> waited(drain what) {
  std::vector<drain> all(8);
  all[4] = {drain::what::unknown, 0};
  all[5] = what;
  return all;
}
std::vector<drain> waited(double after_us) { return waited({drain::what::yes, after_us}); }

}  // namespace

TEST_CASE("recorded steps: a pass that took long once is as in its median step") {
  const auto slow = step({0, 1, 1, 1, 0, 9, 9, 9}, 50);
  const auto late = step({1, 1, 70, 1, 0, 2, 2, 2}, 10);
  const auto usual = step({1, 1, 1, 2, 0, 2, 2, 3}, 11);
  CHECK(merged({slow}) == slow);
  // Of what was before the first call of all nothing is known.
  CHECK(merged({slow, late}) == step({1, 1, 1, 1, 0, 2, 2, 2}, 10));
  CHECK(merged({slow, usual, late}) == step({1, 1, 1, 2, 0, 2, 2, 2}, 10));
  CHECK(merged({slow, late, usual}) == step({1, 1, 1, 2, 0, 2, 2, 3}, 11));
  CHECK(merged({slow, late, usual, usual}) == usual);
}

TEST_CASE("recorded steps: a clock that goes down counts as in the last one") {
  const auto at = [](double us) { return step({us, us, us, us, 0, us, us, us}, us); };
  CHECK(merged({at(100), at(103), at(106)}) == at(106));
  CHECK(merged({at(100), at(103)}) == at(103));
  CHECK(merged({at(106), at(103), at(100)}) == at(100));
  CHECK(merged({at(100), at(106)}).events[5].compute_us == 100);
}

TEST_CASE("recorded steps: what has moved from one call to another stays") {
  const auto first = step({0, 1, 1, 1, 0, 8, 0, 8});
  const auto a = step({1, 8, 0, 8, 0, 8, 0, 8});
  const auto b = step({1, 0, 8, 8, 0, 0, 8, 8});
  CHECK(compute_us(merged({first, a, b})) == compute_us(a));
  CHECK(compute_us(merged({first, b, a})) == compute_us(a));
}

TEST_CASE("recorded steps: waits for other ranks stay those of the last one") {
  const auto before = step({1, 1, 1, 1, 0, 1, 1, 1}, 10);
  auto now = step({1, 1, 1, 1, 0, 906, 1, 1}, 15);
  now.events[5].wait_us = 5;  // and as much behind everything
  auto expected = step({1, 1, 1, 1, 0, 6, 1, 1}, 15);
  expected.events[5].wait_us = 5;
  CHECK(merged({before, now}) == expected);
}

TEST_CASE("recorded steps: those of other calls or other shapes are left aside") {
  const auto slow = step({1, 9, 9, 9, 0, 9, 9, 9});
  auto other = step({1, 1, 1, 1, 0, 1, 1, 1});
  SUBCASE("shapes") { other.shapes_vary = true; }
  SUBCASE("calls") { other.events.pop_back(); }
  auto last = slow;
  last.shapes_vary = other.shapes_vary;
  CHECK(merged({other, other, last}).events == last.events);
}

TEST_CASE("recorded steps: the host waits for the device, where copies made it late") {
  const double behind = 3;
  const auto with = [](double us) { return step({1, 1, 1, 1, 0, us, 1, 1}); };
  const auto expected = [&](double before_us) {
    auto made = with(behind);
    made.events.insert(made.events.begin() + 5, {synchronise, 0, 0, before_us});
    return made;
  };
  // Of one step alone, all may have been waiting.
  CHECK(merged({with(43)}, {waited(behind)}) == expected(0));
  // Ten of computing beside 40, 30 and 4 of copies.
  CHECK(merged({with(43), with(33)}, {waited(behind), waited(behind)}) == expected(0));
  CHECK(merged({with(43), with(33), with(13)}, {waited(behind), waited(behind), waited(9)}) ==
        expected(10));
  CHECK(merged({with(43), with(13)}, {waited(behind), waited({drain::what::unknown, 13})}) ==
        expected(10));
  SUBCASE("and computed nothing before that in the step that tells most") {
    // Behind its wait it computed less than the one that shows it.
    auto made = with(2);
    made.events.insert(made.events.begin() + 5, {synchronise, 0, 0, 0});
    CHECK(merged({with(43), with(2)}, {waited(behind), waited({drain::what::unknown, 2})}) == made);
  }
  SUBCASE("not where it was once at work") {
    CHECK(merged({with(43), with(33)}, {waited(behind), waited(drain{})}) == with(33));
  }
  SUBCASE("nor where it comes when it does, whatever is copied") {
    CHECK(merged({with(43), with(43)}, {waited(behind), waited(33)}) == with(43));
  }
  SUBCASE("nor where nobody could tell") {
    const auto unknown = waited({drain::what::unknown, 0});
    CHECK(merged({with(43), with(33)}, {unknown, unknown}) == with(33));
  }
  SUBCASE("in the order of calls, where a forward pass ends behind it") {
    auto there = waited({drain::what::no, 0});
    there[4] = {drain::what::yes, behind};
    auto made = with(behind);
    made.events.insert(made.events.begin() + 4, {synchronise, 0, 0, 0});
    CHECK(merged({with(43)}, {there}) == made);
  }
  SUBCASE("a wait for other ranks comes first") {
    auto now = with(43);
    now.events[5].wait_us = 2;
    now.rest_us += 2;
    auto made = expected(0);
    made.events[6].compute_us = 5;
    made.events[6].wait_us = 2;
    made.rest_us += 2;
    CHECK(merged({now}, {waited(behind)}).events[6].compute_us == doctest::Approx(3));
  }
}
