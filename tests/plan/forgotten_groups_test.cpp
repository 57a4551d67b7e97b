#include "tidepool/decide/forgotten_groups.hpp"

#include <doctest/doctest.h>

namespace {

using tidepool::detail::forgotten_groups;

}  // namespace

TEST_CASE("forgotten groups: by place, until they are removed or cleared") {
  forgotten_groups all;
  CHECK_FALSE(all.any);
  all.add(1, 2);
  CHECK(all.any);
  CHECK(all.has(1, 2));
  CHECK_FALSE(all.has(2, 1));
  CHECK_FALSE(all.has(1, 1));
  CHECK_FALSE(all.has(1, 3));
  all.remove(2, 1);
  all.remove(7, 7);  // nobody knows of it
  CHECK(all.has(1, 2));
  all.remove(1, 2);
  CHECK_FALSE(all.has(1, 2));
  all.add(1, 2);
  all.clear();
  CHECK_FALSE(all.any);
  CHECK_FALSE(all.has(1, 2));
}

TEST_CASE("forgotten groups: of a step from elsewhere, those without a restore") {
  tidepool::plan::profile step;
  step.chunks = {{0, {{}, {}}}, {0, {{}}}};
  forgotten_groups all;
  all.add(1, 0);
  all.learn(step);  // without events nothing is known
  CHECK_FALSE(all.any);
  CHECK_FALSE(all.has(1, 0));
  step.events = {{tidepool::plan::event_kind::restore, 0, 0},
                 {tidepool::plan::event_kind::commit, 1, 0},
                 {tidepool::plan::event_kind::restore, 0, 1}};
  all.add(1, 0);
  all.learn(step);
  CHECK(all.any);
  CHECK_FALSE(all.has(0, 0));
  CHECK(all.has(0, 1));
  CHECK_FALSE(all.has(1, 0));
}
