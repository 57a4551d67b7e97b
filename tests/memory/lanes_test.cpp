#include "tidepool/memory/lanes.hpp"

#include <doctest/doctest.h>

#include <array>
#include <random>
#include <vector>

#include "lane_bench.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"

namespace {

using tidepool::fence;
using tidepool::join_site;
using tidepool::lane_id;
using tidepool::ticket;

using tidepool::test::lane_bench;
using counted = lane_bench<tidepool::null_device>;

}  // namespace

TEST_CASE("lanes: a stream keeps its lane, another one gets the next") {
  counted on(0);
  const auto first = on.dev.make_stream();
  const auto second = on.dev.make_stream();
  CHECK(index_of(on.of(first.ref())) == 0);
  CHECK(index_of(on.of(second.ref())) == 1);
  CHECK(index_of(on.of(first.ref())) == 0);
  CHECK(on.order.count() == 2);
  const auto* const named = on.hardware.stream(counted::id(1));
  CHECK(static_cast<const tidepool::null_device::stream_ref*>(named)->key() == second.ref().key());
}

TEST_CASE("lanes: a lane makes its events with its first use and none later") {
  counted on(1);
  const auto made = on.dev.events_made;
  CHECK(made == tidepool::lanes::ring);
  for (std::size_t i = 0; i < 3 * made; ++i) static_cast<void>(on.record(0));
  static_cast<void>(on.of(on.streams.front().ref()));
  CHECK(on.dev.events_made == made);
}

TEST_CASE("lanes: more streams than lanes is a misuse that says how many there may be") {
  counted on(static_cast<int>(tidepool::max_lanes));
  const auto one_more = on.dev.make_stream();
  CHECK_THROWS_WITH_AS(static_cast<void>(on.of(one_more.ref())),
                       doctest::Contains("at most 6 streams"), tidepool::misuse_error);
  CHECK(on.order.count() == tidepool::max_lanes);
  CHECK(index_of(on.of(on.streams[3].ref())) == 3);  // those it has go on
}

TEST_CASE("lanes: nothing to wait for takes no join") {
  counted on(2);
  CHECK(on.joined(0, fence{}));
  CHECK_FALSE(on.join(0, fence{}));
  CHECK(on.dev.waits == 0);
}

TEST_CASE("lanes: a lane is in order with itself") {
  counted on(1);
  const auto own = on.record(0);
  CHECK(on.joined(0, own));
  CHECK_FALSE(on.join(0, own));
  CHECK(on.dev.waits == 0);
}

TEST_CASE("lanes: the same join again is left out, an older one as well, a younger one is not") {
  counted on(2);
  const auto older = on.record(0);
  const auto middle = on.record(0);
  CHECK_FALSE(on.joined(1, middle));
  CHECK(on.join(1, middle));
  CHECK(on.joined(1, middle));
  CHECK_FALSE(on.join(1, middle));
  CHECK_FALSE(on.join(1, older));
  CHECK(on.dev.waits == 1);
  const auto younger = on.record(0);
  CHECK_FALSE(on.joined(1, younger));
  CHECK(on.join(1, younger));
  CHECK(on.dev.waits == 2);
}

TEST_CASE("lanes: who has waited for a lane knows what that lane had waited for") {
  counted on(3);
  const auto first = on.record(0);
  on.join(1, first);
  const auto second = on.record(1);
  CHECK(on.join(2, second));
  CHECK(on.joined(2, first));
  CHECK_FALSE(on.join(2, first));
  CHECK(on.dev.waits == 2);
}

TEST_CASE("lanes: a lane is known as of its record, not as of the join") {
  counted on(3);
  const auto early = on.record(1);
  const auto first = on.record(0);
  on.join(1, first);  // after `early` was recorded
  on.join(2, early);
  CHECK_FALSE(on.joined(2, first));
  CHECK(on.join(2, first));
}

TEST_CASE("lanes: a union takes one event of each lane, and none where another one implies it") {
  counted on(4);
  SUBCASE("independent") {
    fence both(on.record(0));
    both.add(on.record(1));
    CHECK(on.join(3, both));
    CHECK(on.dev.waits == 2);
  }
  SUBCASE("the first lane had waited for the second") {
    const auto second = on.record(1);
    on.join(0, second);
    fence both(on.record(0));
    both.add(second);
    CHECK(on.join(3, both));
    CHECK(on.dev.waits == 2);  // one of them made above
  }
}

TEST_CASE("lanes: a ticket older than the ring is waited for later on its lane, never earlier") {
  constexpr auto ring = tidepool::lanes::ring;
  lane_bench<tidepool::virtual_device> on(2, tidepool::machine{.order_seed = 3});
  std::vector<char> done(ring + 10);
  std::vector<ticket> tickets;
  for (auto& each : done) {
    on.dev.launch(on.streams[0].ref(), 1, [&each] { each = 1; });
    tickets.push_back(on.record(0));
  }
  std::size_t seen = 0;
  CHECK(on.join(1, tickets.front()));
  on.dev.launch(on.streams[1].ref(), 1, [&] {
    while (seen < done.size() && done[seen] != 0) ++seen;
  });
  CHECK(on.joined(1, tickets[done.size() - ring]));
  CHECK_FALSE(on.joined(1, tickets[done.size() - ring + 1]));
  on.dev.synchronize();
  CHECK(seen >= done.size() - ring + 1);
}

TEST_CASE(
    "lanes: what a lane had been given by a position it has recorded is no later wait of it") {
  counted on(3);
  const auto early = on.record(1);
  const auto other = on.record(0);
  on.join(1, other);
  CHECK(on.join(2, on.order.past(on.id(1), early.position)));
  CHECK_FALSE(on.joined(2, other));
  CHECK(on.join(2, on.order.past(on.id(1), on.order.next(on.id(1)))));
  CHECK(on.joined(2, other));  // what is not recorded yet may be behind it
}

TEST_CASE("lanes: what has passed has so for ever, also once its event stands for later work") {
  constexpr auto ring = tidepool::lanes::ring;
  lane_bench<tidepool::virtual_device> on(1);
  const auto first = on.record(0);
  CHECK_FALSE(on.order.passed(first));
  on.dev.synchronize();
  CHECK(on.order.passed(first));
  fence latest;
  for (std::size_t i = 0; i < ring; ++i) latest = on.record(0);
  CHECK(on.order.passed(first));
  CHECK_FALSE(on.order.passed(latest));
}

TEST_CASE("lanes: what the trainer's streams have leaves out the two of an offloader") {
  counted on(4);
  fence of_its_own(on.record(0));
  of_its_own.add(on.record(1));
  const auto others = on.record(2);
  on.order.gather(on.id(3), join_site::launch, false);
  CHECK(on.dev.waits == 1);
  CHECK(on.joined(3, others));
  CHECK_FALSE(on.joined(3, of_its_own));
}

TEST_CASE("lanes: streams that come to an offloader's own later leave others fewer") {
  counted on(2);
  on.order.own_all();
  std::vector<counted::device_type::stream> more;
  for (std::size_t i = 2; i <= tidepool::max_lanes; ++i) more.push_back(on.dev.make_stream());
  const auto open = [&](std::size_t which) { static_cast<void>(on.of(more[which].ref())); };
  on.order.own_more(2, [&] {
    open(0);
    open(1);
  });
  for (std::size_t i = 2; i < more.size() - 1; ++i) open(i);
  CHECK_THROWS_WITH_AS(open(more.size() - 1),
                       doctest::Contains("at most 4 streams beside its own 4"),
                       tidepool::misuse_error);
}

TEST_CASE("lanes: streams that could not be opened are gone, and the next one knows nothing") {
  counted on(2);
  on.order.own_all();
  const auto mark = on.record(0);
  const auto failed = on.dev.make_stream();
  CHECK_THROWS_AS(on.order.own_more(1,
                                    [&] {
                                      const auto id = on.of(failed.ref());
                                      on.order.join(id, mark, join_site::producer);
                                      throw tidepool::device_error("no more streams", 1);
                                    }),
                  tidepool::device_error);
  CHECK(on.order.count() == 2);
  const auto next = on.dev.make_stream();
  const auto id = on.of(next.ref());
  CHECK(index_of(id) == 2);
  CHECK_FALSE(on.order.joined(id, mark));
}

TEST_CASE("lanes: a site left out is no join and no knowledge") {
  lane_bench<tidepool::virtual_device> on(2);
  on.dev.leave_out(join_site::device_reuse);
  const auto mark = on.record(0);
  CHECK_FALSE(on.join(1, mark));
  CHECK_FALSE(on.joined(1, mark));
  CHECK(on.dev.waits == 0);
  CHECK(on.order.join(on.id(1), mark, join_site::producer));
  CHECK(on.dev.waits == 1);
}

TEST_CASE("lanes: orders rise over all lanes") {
  counted on(2);
  const auto first = on.record(1);
  const auto second = on.record(0);
  CHECK(first.order < second.order);
  CHECK(on.order.order() == second.order);
}

// Random records and joins. After each join a kernel looks whether everything behind the fence has
// run, whether the join was issued or left out as known.
TEST_CASE("lanes: whatever is left out, everything behind a joined fence has run") {
  constexpr int lane_count = 5;
  std::size_t elided = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    lane_bench<tidepool::virtual_device> on(lane_count, tidepool::machine{.order_seed = seed});
    std::mt19937_64 random(seed);
    const auto any = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
    // By lane: how many of its kernels have run, and how many were queued at each ticket.
    std::array<std::uint64_t, lane_count> run{};
    std::array<std::uint64_t, lane_count> queued{};
    struct mark {
      ticket at;
      std::uint64_t kernels;
    };
    std::vector<mark> marks;
    std::size_t early = 0;
    for (int i = 0; i < 300; ++i) {
      const auto lane = any(lane_count);
      const auto stream = on.streams[lane].ref();
      switch (any(3)) {
        case 0:
          on.dev.launch(stream, 1, [&run, lane] { ++run[lane]; });
          ++queued[lane];
          break;
        case 1:
          marks.push_back({on.record(static_cast<int>(lane)), queued[lane]});
          break;
        default: {
          fence until;
          std::array<std::uint64_t, lane_count> needed{};
          for (auto parts = 1 + any(3); parts > 0 && !marks.empty(); --parts) {
            const auto& chosen =
                marks[marks.size() - 1 - any(std::min<std::size_t>(marks.size(), 9))];
            until.add(chosen.at);
            auto& most = needed[index_of(chosen.at.lane)];
            most = std::max(most, chosen.kernels);
          }
          const bool known = on.joined(static_cast<int>(lane), until);
          CHECK(on.join(static_cast<int>(lane), until) != known);
          elided += known ? 1 : 0;
          CHECK(on.joined(static_cast<int>(lane), until));
          on.dev.launch(stream, 1, [&run, &early, needed] {
            for (std::size_t other = 0; other < needed.size(); ++other) {
              if (run[other] < needed[other]) ++early;
            }
          });
        }
      }
    }
    on.dev.synchronize();
    CHECK(early == 0);
  }
  CHECK(elided > 100);
}
