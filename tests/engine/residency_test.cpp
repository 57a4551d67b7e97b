// Which groups stay: by layer, by plan, and within what the plan counted on.
#include "tidepool/decide/residency.hpp"

#include <doctest/doctest.h>

TEST_SUITE_BEGIN("engine");

namespace {

using tidepool::detail::residency;
using tidepool::plan::action;
using tidepool::plan::actions_of;

// Asked for a group of 100 bytes with so many free in one piece.
bool stays(const residency& keeps, std::size_t chunk, std::size_t group, std::size_t free = 1000,
           int layer = 0) {
  return keeps.of(chunk, group, layer, 100, [&] { return free; }) == action::keep;
}

}  // namespace

TEST_CASE("residency: what the plan says, and everything beyond it leaves") {
  residency keeps({});
  CHECK(!stays(keeps, 0, 0));
  keeps.settle(actions_of({{true, false}, {false, true}}));
  CHECK(stays(keeps, 0, 0));
  CHECK(!stays(keeps, 0, 1));
  CHECK(stays(keeps, 1, 1));
  CHECK(!stays(keeps, 1, 2));
  CHECK(!stays(keeps, 2, 0));
  CHECK(!keeps.everything_leaves);
  keeps.settle(actions_of({{false}, {false, false}}));
  CHECK(keeps.everything_leaves);
}

TEST_CASE("residency: what is computed again neither stays nor counts") {
  residency keeps({});
  const auto of = [&](std::size_t group) {
    return keeps.of(0, group, 0, 100, [] { return std::size_t{0}; });
  };
  keeps.settle({{action::recompute, action::keep, action::offload}});
  CHECK(!keeps.everything_leaves);
  CHECK(of(0) == action::recompute);
  CHECK(of(1) == action::keep);
  CHECK(of(2) == action::offload);
  CHECK(of(3) == action::offload);
  keeps.keep_at_most(50, 1);
  CHECK(of(0) == action::recompute);
  CHECK(of(1) == action::offload);
  CHECK(keeps.planned(0, 1) == action::keep);
}

TEST_CASE("residency: a piece of one byte has to be free as well") {
  residency keeps({});
  keeps.settle(actions_of({{true}}));
  keeps.keep_at_most(1000, 1);
  CHECK(stays(keeps, 0, 0, 1));
  CHECK(!stays(keeps, 0, 0, 0));
}

TEST_CASE("residency: layers that are not named stay, whatever the plan") {
  residency keeps({1, 3});
  keeps.settle(actions_of({{false}}));
  CHECK(!keeps.everything_leaves);
  for (const int layer : {-1, 0, 2, 4}) CHECK(stays(keeps, 0, 0, 0, layer));
  for (const int layer : {1, 3}) CHECK(!stays(keeps, 0, 0, 0, layer));
  keeps.keep_at_most(0, 5000);
  CHECK(stays(keeps, 0, 0, 0, 2));
}

TEST_CASE("residency: no more than was counted on, to the byte") {
  residency keeps({});
  keeps.settle(actions_of({{true}}));
  keeps.keep_at_most(300, 0);
  keeps.add(200);
  CHECK(stays(keeps, 0, 0, 0));
  keeps.add(1);
  CHECK(!stays(keeps, 0, 0));
  keeps.take(1);
  CHECK(stays(keeps, 0, 0));
  keeps.add(1000);
  keeps.keep_at_most(residency::unlimited, 0);
  CHECK(stays(keeps, 0, 0));
}

TEST_CASE("residency: only while a piece of memory is free, to the byte") {
  residency keeps({});
  keeps.settle(actions_of({{true}}));
  keeps.keep_at_most(1000, 64);
  CHECK(stays(keeps, 0, 0, 64));
  CHECK(!stays(keeps, 0, 0, 63));
  keeps.add(950);
  CHECK(!stays(keeps, 0, 0, 64));
}

TEST_SUITE_END();
