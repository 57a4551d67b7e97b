#include "tidepool/core/room.hpp"

#include <doctest/doctest.h>

#include <vector>

TEST_CASE("room: a list that has enough stays where it is, one that has not at least doubles") {
  std::vector<int> list;
  list.reserve(4);
  const auto* const before = list.data();
  const auto had = list.capacity();
  tidepool::detail::make_room(list, had);
  CHECK(list.data() == before);
  CHECK(list.capacity() == had);
  tidepool::detail::make_room(list, had + 1);
  CHECK(list.capacity() >= 2 * had);
  tidepool::detail::make_room(list, 10 * had);
  CHECK(list.capacity() >= 10 * had);
}
