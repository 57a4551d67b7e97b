#include <doctest/doctest.h>

#include "tidepool/core/clocks.hpp"

namespace {

using tidepool::fence;
using tidepool::lane_id;
using tidepool::max_lanes;
using tidepool::ticket;

ticket at(int lane, std::uint64_t position, std::uint64_t order) {
  return {static_cast<lane_id>(lane), position, order};
}

}  // namespace

TEST_CASE("fence: an empty one waits for nothing") {
  const fence nothing;
  CHECK(nothing.order() == 0);
  for (std::size_t lane = 0; lane < max_lanes; ++lane) CHECK(nothing.position(lane) == 0);
}

TEST_CASE("fence: the later position of a lane holds, in either order of adding") {
  fence rising(at(2, 3, 10));
  rising.add(at(2, 7, 20));
  fence falling(at(2, 7, 20));
  falling.add(at(2, 3, 10));
  for (const auto& each : {rising, falling}) {
    CHECK(each.position(2) == 7);
    CHECK(each.order() == 20);
    CHECK(each.position(1) == 0);
  }
}

TEST_CASE("fence: a union carries every lane of its parts and the youngest order") {
  fence one(at(0, 5, 1));
  one.add(at(3, 2, 4));
  fence other(at(3, 1, 2));
  other.add(at(7, 9, 3));
  one.add(other);
  CHECK(one.position(0) == 5);
  CHECK(one.position(3) == 2);
  CHECK(one.position(7) == 9);
  CHECK(one.order() == 4);
  one.add(fence{});
  CHECK(one.order() == 4);
  one.add(fence(at(5, 1, 9)));
  CHECK(one.order() == 9);
}

TEST_CASE("fence: a ticket that is assigned takes the place of all that was there") {
  fence parts(at(1, 4, 8));
  parts.add(at(2, 6, 9));
  parts = at(2, 3, 5);
  CHECK(parts.position(1) == 0);
  CHECK(parts.position(2) == 3);
  CHECK(parts.order() == 5);
  parts = ticket{};  // nothing to wait for
  CHECK(parts.order() == 0);
}

TEST_CASE("fence: works at compile time") {
  static_assert([] {
    fence parts(ticket{static_cast<lane_id>(1), 4, 8});
    parts.add(ticket{static_cast<lane_id>(1), 2, 9});
    return parts.position(1) == 4 && parts.order() == 9;
  }());
}
