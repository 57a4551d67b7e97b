// What a recorder tells of a step, call by call: no engine, on a device whose clock is exact.
#include "tidepool/observe/recorder.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tidepool/device/hardware_of.hpp"
#include "tidepool/device/virtual.hpp"

namespace {

using namespace tidepool;
using detail::drain;
using detail::waits_for;
using enum plan::event_kind;

// A compute stream, another one, and what is recorded of them.
struct bench {
  virtual_device dev{machine{}};
  virtual_device::stream first = dev.make_stream();
  virtual_device::stream second = dev.make_stream();
  virtual_device::stream_ref streams[2]{first.ref(), second.ref()};
  lane_id s{0};
  lane_id other{1};
  detail::hardware_of<virtual_device> hardware{dev};
  detail::recorder rec{hardware};
  plan::profile step;

  bench() {
    for (const auto lane : {s, other}) hardware.open(lane, &streams[index_of(lane)], false);
  }

  void compute(double us) { compute(us, s); }
  void compute(double us, lane_id on) { dev.launch(streams[index_of(on)], 1e3 * us, nullptr); }
  void allocate(std::uint64_t storage, std::size_t bytes = 64) {
    rec.allocated(rec.arrive(s), storage, bytes, s);
  }
  void call(plan::event_kind kind, std::size_t group = 0) {
    rec.called(rec.arrive(s), kind, group, 0, s);
  }
  // Of the first chunk.
  bool save(std::uint64_t storage, std::size_t group, std::size_t place = 0, bool beside = false) {
    return rec.saved(storage, 0, group, place, beside);
  }
  void wait(double us, waits_for whom = waits_for::peers) {
    const auto from = rec.wait_begins(&streams[0]);
    compute(us);
    rec.waited(from, &streams[0], whom, 0);
  }
  std::vector<drain> finish() { return rec.finish(step); }
  [[nodiscard]] std::vector<plan::event_kind> kinds() {
    static_cast<void>(finish());
    std::vector<plan::event_kind> result;
    for (const auto& each : step.events) result.push_back(each.kind);
    return result;
  }
};

}  // namespace

TEST_CASE("recorder: a step without any call takes no time") {
  bench on;
  CHECK(on.finish().empty());
  CHECK(on.step.events.empty());
  CHECK(on.step.rest_us == 0);
}

TEST_CASE("recorder: what is computed before a call is the call's, and the rest is behind it") {
  bench on;
  on.rec.start(on.s);
  on.compute(30);
  on.allocate(1);
  on.compute(5);
  on.call(commit);
  on.compute(7);
  static_cast<void>(on.finish());
  CHECK(on.step.events == std::vector<plan::event>{{allocate, 0, 0, 30, 0}, {commit, 0, 0, 5, 0}});
  CHECK(on.step.rest_us == 7);
}

TEST_CASE("recorder: a step ends on the stream of its latest call, or on which it began") {
  bench on;
  const auto other = on.other;
  on.rec.start(on.s);
  SUBCASE("a call") {
    on.rec.allocated(on.rec.arrive(other), 1, 64, other);
    on.compute(70, other);
    static_cast<void>(on.finish());
    CHECK(on.step.rest_us == 70);
  }
  SUBCASE("none since the step before") {
    on.rec.allocated(on.rec.arrive(other), 1, 64, other);
    on.rec.start(on.s);
    on.compute(40);
    static_cast<void>(on.finish());
    CHECK(on.step.rest_us == 40);
  }
}

TEST_CASE("recorder: nothing is known of what came before the first call after all is forgotten") {
  bench on;
  on.rec.start(on.s);
  on.allocate(1, 32);
  SUBCASE("") {}
  SUBCASE("not even that something was being computed again") {
    static_cast<void>(on.rec.recompute_begins(on.s));
  }
  on.rec.forget();
  on.compute(100);
  on.allocate(2);
  on.compute(3);
  on.call(commit);
  static_cast<void>(on.finish());
  CHECK(on.step.events == std::vector<plan::event>{{allocate, 0, 0, 0, 0}, {commit, 0, 0, 3, 0}});
  CHECK(on.rec.sizes() == std::vector<std::size_t>{64});
}

TEST_CASE("recorder: the handles of a storage go once, with its only group") {
  bench on;
  on.allocate(1);
  std::vector expected{allocate};
  SUBCASE("saved by nobody, no event tells") { CHECK(on.rec.drop(1, on.s)); }
  SUBCASE("while it is away; a second time no event can tell") {
    CHECK(on.save(1, 0));
    CHECK(on.rec.drop(1, on.s));
    CHECK_FALSE(on.rec.drop(1, on.s));
    expected.push_back(drop);
  }
  SUBCASE("a group that saves it by two handles counts once") {
    CHECK(on.save(1, 0, 0));
    CHECK(on.save(1, 0, 1, true));
    CHECK(on.rec.drop(1, on.s));
    CHECK_FALSE(on.rec.drop(1, on.s));
    expected.push_back(drop);
  }
  SUBCASE("not once it has come back") {
    CHECK(on.save(1, 0));
    on.call(restore);
    CHECK_FALSE(on.rec.drop(1, on.s));
    expected.push_back(restore);
  }
  SUBCASE("nor once its group is forgotten, whatever takes the place of that") {
    CHECK(on.save(1, 0));
    on.rec.forgotten(0, 0);
    on.allocate(2);
    CHECK(on.save(2, 0));
    on.call(restore);
    CHECK_FALSE(on.rec.drop(1, on.s));
    CHECK_FALSE(on.rec.drop(2, on.s));
    expected.insert(expected.end(), {allocate, restore});
  }
  SUBCASE("twice where two groups save it") {
    CHECK(on.save(1, 0));
    CHECK(on.save(1, 1, 0, true));
    CHECK(on.rec.drop(1, on.s));
    on.call(restore, 1);
    CHECK(on.rec.drop(1, on.s));
    on.call(restore, 0);
    CHECK_FALSE(on.rec.drop(1, on.s));
    expected.insert(expected.end(), {drop, restore, drop, restore});
  }
  CHECK(on.kinds() == expected);
}

TEST_CASE("recorder: of what groups save that no event tells of, nothing is said") {
  bench on;
  on.allocate(1);
  SUBCASE("kept beside a group that would not save it") {
    CHECK(on.save(1, 0));
    CHECK_FALSE(on.rec.stayed_unsaved(1));
    CHECK_FALSE(on.save(1, 1, 0, true));
  }
  SUBCASE("kept before") {
    CHECK(on.rec.stayed_unsaved(1));
    CHECK_FALSE(on.save(1, 0));
  }
  SUBCASE("saved once more after another group gave it back") {
    CHECK(on.save(1, 0));
    CHECK_FALSE(on.save(1, 1));
  }
  CHECK(on.rec.drop(1, on.s));
  CHECK(on.kinds() == std::vector{allocate});
}

TEST_CASE("recorder: a storage is held by a handle until its last one goes") {
  bench on;
  on.allocate(1);
  CHECK_FALSE(on.rec.is_held(1));
  on.rec.handed_over(1, true);
  CHECK(on.rec.was_handed_over(1));
  CHECK(on.rec.is_held(1));
  CHECK_FALSE(on.rec.outlives(1));
  CHECK(on.rec.outlives(1));
  CHECK(on.rec.drop(1, on.s));
  CHECK_FALSE(on.rec.was_handed_over(1));
  CHECK_FALSE(on.rec.is_held(1));
}

TEST_CASE("recorder: waits count between the first call and the last, and not in a recompute") {
  bench on;
  on.wait(10);
  CHECK_FALSE(on.rec.waited_for_others());
  on.rec.start(on.s);
  SUBCASE("before the first call of a step that follows another") {
    on.wait(10, waits_for::others);
    CHECK(on.rec.waited_for_others());
  }
  SUBCASE("in a recompute") {
    on.allocate(1);
    const auto from = on.rec.recompute_begins(on.s);
    on.wait(10, waits_for::others);
    on.step.chunks = {{0, {{}}, 0}};
    on.rec.recomputed(from, 0, 0, on.s);
    CHECK_FALSE(on.rec.waited_for_others());
    static_cast<void>(on.finish());
    CHECK(on.step.chunks[0].groups[0].recompute_us == 10);
  }
  SUBCASE("one that began in the step before") {
    const auto from = on.rec.wait_begins(&on.streams[0]);
    on.rec.start(on.s);
    on.rec.waited(from, &on.streams[0], waits_for::others, 0);
    CHECK_FALSE(on.rec.waited_for_others());
  }
}

TEST_CASE("recorder: waits for peers count beyond the time for which this rank stood still") {
  bench on;
  on.rec.start(on.s);
  on.wait(10);
  on.allocate(1);
  on.compute(4);
  on.wait(110);
  const auto stand_still = [&](double us) {
    const auto from = on.rec.arrive(on.s);
    on.compute(us);
    on.rec.called(from, commit, 0, 0, on.s);
  };
  SUBCASE("this rank stood still for longer: the shortest wait alone counts") {
    stand_still(130);
    static_cast<void>(on.finish());
    CHECK(on.step.events[1] == plan::event{commit, 0, 0, 14, 0});
    CHECK(on.step.rest_us == 0);
  }
  SUBCASE("it stood still for a quarter of the time: three quarters stay, as a wait for others") {
    stand_still(25);
    static_cast<void>(on.finish());
    CHECK(on.step.events[1] == plan::event{commit, 0, 0, 14 + 37.5, 37.5});
    CHECK(on.step.rest_us == 37.5);
  }
  SUBCASE("it never stood still: the peers compute longer, and go on to") {
    stand_still(0);
    static_cast<void>(on.finish());
    CHECK(on.step.events[1] == plan::event{commit, 0, 0, 14 + 50, 50});
    CHECK(on.step.rest_us == 50);
  }
  CHECK(on.step.events[0] == plan::event{allocate, 0, 0, 10, 0});
}

TEST_CASE(
    "recorder: of a wait for others half is counted before the call, and half behind the step") {
  bench on;
  on.rec.start(on.s);
  on.wait(10, waits_for::others);
  on.allocate(1);
  on.compute(4);
  on.wait(110, waits_for::others);
  on.call(commit);
  on.compute(7);
  static_cast<void>(on.finish());
  CHECK(on.step.events ==
        std::vector<plan::event>{{allocate, 0, 0, 10, 0}, {commit, 0, 0, 64, 50}});
  CHECK(on.step.rest_us == 57);
  CHECK(on.step.rest_wait_us == 0);
}

TEST_CASE("recorder: whether the host had waited is told of each call") {
  bench on;
  const auto copies = on.other;
  on.rec.start(on.s);
  on.compute(20);
  SUBCASE("at the first one, nothing is known of the call before") {
    on.dev.synchronize();
    on.allocate(1);
    CHECK(on.finish() == std::vector<drain>{{drain::what::unknown, 20}});
  }
  SUBCASE("nor in a new step of the step before") {
    on.allocate(1);
    on.rec.start(on.s);
    on.rec.copied(copies);
    on.dev.synchronize();
    on.allocate(2);
    CHECK(on.finish() == std::vector<drain>{{drain::what::unknown, 0}});
  }
  SUBCASE("it computed on behind its copies, for as long as it did not wait for peers") {
    on.wait(10);
    on.allocate(1);
    on.compute(30, copies);
    on.rec.copied(copies);
    on.dev.synchronize();
    on.rec.forward_ended(0);
    on.wait(110);
    on.compute(6);
    on.call(commit);
    const auto seen = on.finish();
    REQUIRE(on.step.events.size() == 3);
    CHECK(on.step.events[2].compute_us - on.step.events[2].wait_us == 16);
    REQUIRE(seen.size() == 3);
    CHECK(seen[0] == drain{});
    CHECK(seen[1] == drain{drain::what::yes, 16});
    CHECK(seen[2] == drain{});
  }
}

TEST_CASE("recorder: a profile that has events already gets those of the step alone") {
  bench on;
  on.step.events.push_back({commit, 9, 9, 9, 9});
  on.rec.start(on.s);
  on.allocate(1);
  CHECK(on.kinds() == std::vector{allocate});
}
