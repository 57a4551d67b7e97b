// Offloads and reloads inside captured graphs, replayed under any legal order.
#include "tidepool/graph.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::join_site;
using tidepool::machine;
using tidepool::misuse_error;
using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = tidepool::test::planning<rig::offloader<tidepool::modules<"fc1">>>;

constexpr std::size_t size = 2048;
constexpr int layers = 5;

// A step whose kernels write and check other values each time that they run.
struct trainer {
  rig& desk;
  offloader& off;
  std::uint32_t round = 0;
  std::size_t wrong = 0;
  std::vector<offloader::buffer> saved{layers};
  std::optional<offloader::chunk> chunk = std::nullopt;

  // Kernels that are still queued refer to this.
  ~trainer() { desk.dev.synchronize(); }

  void kernel(std::function<void()> run) const {
    desk.dev.launch(desk.stream(), 1000, std::move(run));
  }
  void forward() {
    chunk.emplace(off.begin());
    for (int l = 0; l < layers; ++l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      x = off.allocate(size, desk.stream());
      kernel([this, l, to = x.as<std::uint32_t>()] {
        for (std::size_t i = 0; i < size / 4; ++i) to[i] = rig::word(tag(l), i);
      });
      chunk->commit<"fc1">(l, desk.stream(), x);
    }
    chunk->end_forward();
  }
  void backward() {
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      chunk->restore<"fc1">(l, desk.stream(), x);
      kernel([this, l, from = x.as<std::uint32_t>()] {
        for (std::size_t i = 0; i < size / 4; ++i) wrong += from[i] != rig::word(tag(l), i);
      });
      x.reset(desk.stream());
    }
    kernel([this] { ++round; });
    chunk->finish();
    off.end_step();
  }
  void step() {
    forward();
    backward();
  }
  [[nodiscard]] std::size_t all_wrong() {
    desk.dev.synchronize();
    return wrong;
  }

 private:
  [[nodiscard]] std::uint32_t tag(int layer) const {
    return round * layers + static_cast<std::uint32_t>(layer) + 1;
  }
};

// Wrong words after a few replays, with one join left out or none.
std::size_t wrong_after_replays(std::uint64_t seed, std::optional<join_site> without) {
  rig desk(machine{.order_seed = seed});
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  work.step();
  work.step();
  desk.dev.synchronize();
  if (without) desk.dev.leave_out(*without);
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  for (int i = 0; i < 4; ++i) graph.launch(desk.stream());
  return work.all_wrong();
}

}  // namespace

TEST_CASE("graph: a whole step is replayed with new data, in whatever order streams allow") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    CHECK(wrong_after_replays(seed, std::nullopt) == 0);
  }
}

TEST_CASE("graph: each join is needed inside as well") {
  for (const auto site : {join_site::producer, join_site::own_offload, join_site::consumer,
                          join_site::device_reuse}) {
    CAPTURE(name_of(site));
    std::size_t caught = 0;
    for (std::uint64_t seed = 1; seed < 60 && caught == 0; ++seed) {
      caught += wrong_after_replays(seed, site) > 0 ? 1 : 0;
    }
    CHECK(caught > 0);
  }
}

TEST_CASE("graph: a capture runs nothing and a launch calls the device once") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  work.step();
  desk.dev.synchronize();
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  CHECK(work.all_wrong() == 0);
  CHECK(work.round == 1);
  graph.launch(desk.stream());
  const auto records = desk.dev.records;
  const auto waits = desk.dev.waits;
  const auto events = desk.dev.events_made;
  for (int i = 0; i < 10; ++i) graph.launch(desk.stream());
  CHECK(desk.dev.records == records);
  CHECK(desk.dev.waits == waits);
  CHECK(desk.dev.events_made == events);
  CHECK(work.all_wrong() == 0);
  CHECK(work.round == 12);
}

TEST_CASE("graph: eager steps and replays take turns") {
  for (const std::uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, small_options());
    trainer work{desk, off};
    work.step();
    work.step();
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    work.step();
    graph.launch(desk.stream());
    graph.launch(desk.stream());
    work.step();
    work.step();
    graph.launch(desk.stream());
    work.step();
    CHECK(work.all_wrong() == 0);
    CHECK(work.round == 9);
  }
}

TEST_CASE("graph: a launch comes after copies that nobody waited for") {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed < 40; ++seed) {
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options(3 * size));
    trainer work{desk, off};
    work.step();
    work.step();
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    work.forward();  // abandoned, its offloads still under way
    work.chunk.reset();
    graph.launch(desk.stream());
    graph.launch(desk.stream());
    wrong += work.all_wrong();
  }
  CHECK(wrong == 0);
}

TEST_CASE("graph: eager work after a capture comes after copies from before it") {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed < 40; ++seed) {
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options(3 * size));
    trainer work{desk, off};
    work.step();
    work.step();
    work.forward();
    work.chunk.reset();
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    work.step();
    wrong += work.all_wrong();
  }
  CHECK(wrong == 0);
}

TEST_CASE("graph: a launch comes after what the trainer did between two on its other streams") {
  std::size_t late = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    rig desk(machine{.order_seed = seed});
    auto second = desk.dev.make_stream();
    offloader off(desk.dev, arena_options(3 * size));
    trainer work{desk, off};
    work.step();
    work.step();
    off.allocate(size, second.ref()).reset(second.ref());  // that stream is known from now on
    work.step();
    std::uint32_t rounds = 0;
    auto graph =
        off.capture(desk.stream(), [&] { desk.dev.launch(desk.stream(), 10, [&] { ++rounds; }); });
    graph.launch(desk.stream());
    for (std::uint32_t i = 1; i <= 3; ++i) {
      auto seen = desk.dev.make_event();
      desk.dev.record(seen, desk.stream());
      desk.dev.wait(second.ref(), seen);
      desk.dev.launch(second.ref(), 5000, [&, i] { late += rounds != i; });
      graph.launch(desk.stream());
    }
    desk.dev.synchronize();
  }
  CHECK(late == 0);
}

TEST_CASE("graph: eager work on any stream comes after a launch") {
  std::size_t wrong = 0;
  for (std::uint64_t seed = 1; seed < 40; ++seed) {
    rig desk(machine{.order_seed = seed});
    auto other = desk.dev.make_stream();
    offloader off(desk.dev, arena_options(3 * size));
    trainer work{desk, off};
    work.step();
    off.allocate(size, other.ref()).reset(other.ref());
    work.step();
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    graph.launch(desk.stream());
    for (int i = 0; i < 20; ++i) {
      auto x = off.allocate(size, other.ref());
      desk.write_bytes(x.data(), size, 99, other.ref());
      x.reset(other.ref());
    }
    graph.launch(desk.stream());
    wrong += work.all_wrong();
  }
  CHECK(wrong == 0);
}

TEST_CASE("graph: parts of a step, each a graph, run in the order of their capture") {
  for (const std::uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options(3 * size));
    trainer work{desk, off};
    work.step();
    work.step();
    auto forward = off.capture(desk.stream(), [&] { work.forward(); });
    auto backward = off.capture(desk.stream(), [&] { work.backward(); });
    for (int i = 0; i < 3; ++i) {
      forward.launch(desk.stream());
      backward.launch(desk.stream());
      CHECK(says(message_of([&] { backward.launch(desk.stream()); }), "order of their capture"));
    }
    work.step();
    CHECK(work.all_wrong() == 0);
    CHECK(work.round == 6);
  }
}

TEST_CASE("graph: a step of several graphs that was left in the middle begins anew") {
  for (const std::uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, arena_options(3 * size));
    trainer work{desk, off};
    work.step();
    work.step();
    auto forward = off.capture(desk.stream(), [&] { work.forward(); });
    auto backward = off.capture(desk.stream(), [&] { work.backward(); });
    forward.launch(desk.stream());
    forward.launch(desk.stream());  // the first is given up
    backward.launch(desk.stream());
    forward.launch(desk.stream());
    work.step();  // takes the memory in which graphs have left tensors
    CHECK(says(message_of([&] { backward.launch(desk.stream()); }), "order of their capture"));
    forward.launch(desk.stream());
    backward.launch(desk.stream());
    work.step();
    CHECK(work.all_wrong() == 0);
    CHECK(work.round == 6);
  }
}

TEST_CASE("graph: a refused call changes nothing for a step of several graphs") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  work.step();
  auto held = off.allocate(100, desk.stream());
  auto other = off.capture(desk.stream(), [&] { work.step(); });
  held.reset(desk.stream());
  auto forward = off.capture(desk.stream(), [&] { work.forward(); });
  auto backward = off.capture(desk.stream(), [&] { work.backward(); });
  forward.launch(desk.stream());
  CHECK(says(message_of([&] { other.launch(desk.stream()); }), "it has gone"));
  backward.launch(desk.stream());
  CHECK(work.all_wrong() == 0);
  CHECK(work.round == 2);
}

// Each round writes other data: with the same ones the copy of the round before would do.
TEST_CASE("graph: a stream that is first met inside waits for the copies in it") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = false, .order_seed = seed});
    auto late = desk.dev.make_stream();
    std::uint32_t round = 0;
    std::size_t wrong = 0;
    offloader off(desk.dev, small_options());
    const auto first = desk.stream();
    const auto step = [&](rig::stream_ref back) {
      auto chunk = off.begin();
      auto x = off.allocate(size, first);
      desk.dev.launch(first, 1000, [to = x.as<std::uint32_t>(), &round] {
        for (std::size_t i = 0; i < size / 4; ++i) to[i] = rig::word(round, i);
      });
      chunk.commit<"fc1">(0, first, x);
      auto forked = desk.dev.make_event();
      desk.dev.record(forked, first);
      desk.dev.wait(back, forked);
      chunk.restore<"fc1">(0, back, x);
      desk.dev.launch(back, 1000, [from = x.as<std::uint32_t>(), &round, &wrong] {
        for (std::size_t i = 0; i < size / 4; ++i) wrong += from[i] != rig::word(round, i);
        ++round;
      });
      x.reset(back);
      auto joined = desk.dev.make_event();
      desk.dev.record(joined, back);
      desk.dev.wait(first, joined);
      chunk.finish();
      off.end_step();
    };
    for (int i = 0; i < 2; ++i) step(first);
    desk.dev.synchronize();
    auto graph = off.capture(first, [&] { step(late.ref()); });
    for (int i = 0; i < 3; ++i) graph.launch(first);
    step(late.ref());
    desk.dev.synchronize();
    CHECK(wrong == 0);
    CHECK(round == 6);
  }
}

TEST_CASE("graph: what is eager is refused while handles tell of a capture that has not run") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  work.step();
  auto forward = off.capture(desk.stream(), [&] { work.forward(); });
  CHECK(says(message_of([&] { work.backward(); }), "has not run"));
  auto backward = off.capture(desk.stream(), [&] { work.backward(); });
  work.step();  // both are captured: nothing is elsewhere than it was
  forward.launch(desk.stream());
  backward.launch(desk.stream());
  work.step();

  auto open = off.begin();
  auto unended = off.capture(desk.stream(), [&] {
    auto x = off.allocate(size, desk.stream());
    open.commit<"fc1">(0, desk.stream(), x);
  });
  CHECK(says(message_of([&] { open.end_forward(); }), "has not run"));  // it would start reloads
  CHECK(says(message_of([&] { open.start_reload<"fc1">(0); }), "has not run"));
  open = {};

  auto never = off.capture(desk.stream(), [&] { work.forward(); });
  CHECK(says(message_of([&] { static_cast<void>(off.allocate(size, desk.stream())); }),
             "has not run"));
  work.chunk.reset();  // given up
  work.step();
  CHECK(work.all_wrong() == 0);
}

TEST_CASE("fixed_block: serves one offloader, also when that one is gone") {
  rig desk;
  void* const memory = desk.dev.allocate(size);
  {
    tidepool::fixed_block place(memory, size);
    auto one = std::make_optional<offloader>(desk.dev, small_options());
    one->allocate_from(place, size, desk.stream()).reset(desk.stream());
    one->allocate_from(place, size, desk.stream()).reset(desk.stream());
    const auto refused = [&] {
      offloader other(desk.dev, small_options());
      static_cast<void>(other.allocate_from(place, size, desk.stream()));
    };
    CHECK(place.allocations() == 0);  // of the device: it has what it was given
    CHECK(says(message_of(refused), "has served another offloader"));
    one.reset();
    CHECK(says(message_of(refused), "has served another offloader"));
  }
  desk.dev.deallocate(memory);
}

TEST_CASE("graph: what an earlier graph made and a handle gave up is not there for a later one") {
  for (const bool poison : {false, true}) {
    CAPTURE(poison);
    rig desk;
    auto opts = arena_options(5 * size);
    opts.poison = poison;
    offloader off(desk.dev, opts);
    trainer work{desk, off};
    work.step();
    offloader::buffer made;
    auto makes = off.capture(desk.stream(), [&] {
      made = off.allocate(size, desk.stream());
      desk.write(made, 7);
    });
    auto reads = off.capture(desk.stream(), [&] { desk.check(made, 7); });
    makes.launch(desk.stream());
    for (int i = 0; i < 2; ++i) reads.launch(desk.stream());
    made.reset(desk.stream());
    CHECK(says(message_of([&] { reads.launch(desk.stream()); }), "it has gone"));
    // Made anew, it is there again.
    makes.launch(desk.stream());
    for (int i = 0; i < 2; ++i) reads.launch(desk.stream());
    work.step();
    CHECK(says(message_of([&] { reads.launch(desk.stream()); }), "it has gone"));
    makes.launch(desk.stream());
    reads.launch(desk.stream());
    CHECK(work.all_wrong() == 0);
  }
}

TEST_CASE("graph: tensors that were made in another order than they lie in are all found again") {
  rig desk;
  offloader off(desk.dev, arena_options(16 * size));
  trainer work{desk, off};
  work.step();
  std::vector<offloader::buffer> kept;
  for (std::uint32_t i = 0; i < 8; ++i) kept.push_back(off.allocate(size, desk.stream()));
  for (std::size_t i = 0; i < kept.size(); i += 2) kept[i].reset(desk.stream());
  for (std::size_t i = 0; i < kept.size(); i += 2) kept[i] = off.allocate(size, desk.stream());
  for (std::uint32_t i = 0; i < 8; ++i) desk.write(kept[i], 100 + i);
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  for (int i = 0; i < 2; ++i) {
    graph.launch(desk.stream());
    for (std::uint32_t k = 0; k < 8; ++k) desk.check(kept[k], 100 + k);
    work.step();
  }
  CHECK(work.all_wrong() == 0);
}

TEST_CASE("graph: what is allocated inside and kept can be read after a launch") {
  rig desk;
  offloader off(desk.dev, arena_options(5 * size));
  trainer work{desk, off};
  work.step();
  offloader::buffer kept;
  auto graph = off.capture(desk.stream(), [&] {
    work.step();
    kept = off.allocate(size, desk.stream());
    desk.write(kept, 7);
  });
  CHECK(
      says(message_of([&] { static_cast<void>(off.allocate(1, desk.stream())); }), "has not run"));
  graph.launch(desk.stream());
  work.step();
  desk.check(kept, 7);
  CHECK(says(message_of([&] { graph.launch(desk.stream()); }), "reset every handle"));
  kept.reset(desk.stream());
  for (int i = 0; i < 2; ++i) {
    graph.launch(desk.stream());
    work.step();
  }
  graph.launch(desk.stream());
  graph.launch(desk.stream());
  CHECK(off.allocate(5 * size, desk.stream()));
  CHECK(work.all_wrong() == 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("graph: another tensor in the place of one that has gone is not taken for it") {
  rig desk;
  offloader off(desk.dev, arena_options(4 * size));
  trainer work{desk, off};
  work.step();
  auto one = off.allocate(size, desk.stream());
  auto graph = off.capture(desk.stream(), [&] { desk.write(one, 1); });
  graph.launch(desk.stream());
  const auto* const address = one.data();
  one.reset(desk.stream());
  auto two = off.allocate(size, desk.stream());
  REQUIRE(two.data() == address);
  desk.write(two, 2);
  CHECK(says(message_of([&] { graph.launch(desk.stream()); }), "it has gone"));
  desk.check(two, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("graph: a pass is given up right after a launch, and steps and launches go on") {
  for (const bool eager_between : {false, true}) {
    CAPTURE(eager_between);
    rig desk;
    offloader off(desk.dev, arena_options(8 * size));
    trainer work{desk, off};
    work.step();
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    open.commit<"fc1">(0, desk.stream(), x);
    auto held = std::make_optional(off.allocate(size, desk.stream()));
    auto beside =
        off.capture(desk.stream(), [&] { off.allocate(size, desk.stream()).reset(desk.stream()); });
    beside.launch(desk.stream());
    if (eager_between) off.allocate(8, desk.stream()).reset(desk.stream());
    open = {};     // without a word
    held.reset();  // by its destructor
    work.step();
    CHECK(says(message_of([&] { beside.launch(desk.stream()); }), "it has gone"));
    graph.launch(desk.stream());
    work.step();
    CHECK(off.allocate(8 * size, desk.stream()));
    CHECK(work.all_wrong() == 0);
  }
}

TEST_CASE("graph: state that is fetched ahead inside, and by nobody, is in nobody's way") {
  for (const bool launched : {false, true}) {
    CAPTURE(launched);
    rig desk;
    offloader off(desk.dev, arena_options(4 * size));
    trainer work{desk, off};
    work.step();
    auto state = off.state_on_host(size, "moments");
    auto first = state.create(desk.stream());
    desk.write(first, 3);
    state.write_back(first, desk.stream());
    auto graph = off.capture(desk.stream(), [&] { CHECK(state.prefetch()); });
    for (int i = 0; i < 2; ++i) {
      if (launched) graph.launch(desk.stream());
      CHECK_THROWS_AS(
          static_cast<void>(off.capture(desk.stream(), [] { throw std::runtime_error("no"); })),
          std::runtime_error);
      work.step();
      auto here = state.fetch(desk.stream());
      desk.check(here, 3);
      here.reset(desk.stream());
    }
    graph.launch(desk.stream());
    graph.launch(desk.stream());
    state = {};
    CHECK(off.allocate(4 * size, desk.stream()));
    CHECK(desk.wrong() == 0);
    CHECK(work.all_wrong() == 0);
  }
}

TEST_CASE("graph: state that a launch has fetched ahead is no part of the next capture") {
  rig desk;
  offloader off(desk.dev, arena_options(4 * size));
  trainer work{desk, off};
  work.step();
  auto state = off.state_on_host(size, "moments");
  auto first = state.create(desk.stream());
  desk.write(first, 3);
  state.write_back(first, desk.stream());
  auto ahead = off.capture(desk.stream(), [&] { CHECK(state.prefetch()); });
  ahead.launch(desk.stream());
  auto graph = off.capture(desk.stream(), [&] {
    auto here = state.fetch(desk.stream());
    desk.check(here, 3);
    here.reset(desk.stream());
  });
  for (int i = 0; i < 3; ++i) graph.launch(desk.stream());
  ahead.launch(desk.stream());
  graph.launch(desk.stream());
  CHECK(desk.wrong() == 0);
}

TEST_CASE("graph: what a capture that failed has saved is not taken for saved") {
  rig desk;
  offloader off(desk.dev, arena_options(4 * size));
  trainer work{desk, off};
  work.step();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 5);
  auto open = off.begin();
  const auto body = [&] {
    open.commit<"fc1">(0, desk.stream(), x);
    throw std::runtime_error("the body's own");
  };
  CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(), body)), std::runtime_error);
  CHECK(says(message_of([&] { open.restore<"fc1">(0, desk.stream(), x); }), "has not run"));
  open = {};
  work.step();
  CHECK(off.allocate(4 * size, desk.stream()));
  CHECK(work.all_wrong() == 0);
}

TEST_CASE("graph: a launch that misses a tensor says where it was") {
  rig desk;
  offloader off(desk.dev, arena_options(4 * size));
  trainer work{desk, off};
  work.step();
  auto held = off.allocate(size, desk.stream());
  std::ostringstream wanted;
  wanted << "a tensor of " << size << " bytes was on the device at " << held.data()
         << " and is not now";
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  held.reset(desk.stream());
  CHECK(says(message_of([&] { graph.launch(desk.stream()); }), wanted.str()));
}

TEST_CASE("graph: before the automatic policy has its plan it is said how many steps that takes") {
  rig desk;
  auto opts = arena_options(3 * size);
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 200;
  opts.timed_step = 4;
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  trainer work{desk, off};
  work.step();
  CHECK(says(message_of([&] { static_cast<void>(off.capture(desk.stream(), [] {})); }),
             "the automatic policy has no plan yet, or"));
}

TEST_CASE("graph: steps under an automatic plan are captured, and asked for no time meanwhile") {
  // The watch of a plan has then read any number of steps.
  for (int before = 3; before <= 20; ++before) {
    rig desk;
    auto opts = arena_options(3 * size);
    opts.policy = tidepool::policy_kind::automatic;
    opts.plan_effort = 200;
    opts.timed_step = 2;
    opts.adopt_after = 0;
    offloader off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    trainer work{desk, off};
    for (int i = 0; i < before; ++i) work.step();
    REQUIRE(off.current_plan());
    auto graph = off.capture(desk.stream(), [&] { work.step(); });
    for (int i = 0; i < 4; ++i) graph.launch(desk.stream());
    work.step();
    CHECK(work.all_wrong() == 0);
  }
}

TEST_CASE("graph: refused before the warm-up step, inside another capture and while tracing") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  const auto nothing = [] {};
  CHECK(says(message_of([&] { static_cast<void>(off.capture(desk.stream(), nothing)); }),
             "run the same step once without capture"));
  work.step();
  off.start_trace("step", desk.stream());
  CHECK(says(message_of([&] { static_cast<void>(off.capture(desk.stream(), nothing)); }),
             "finish_trace"));
  static_cast<void>(off.finish_trace());
  auto graph = off.capture(desk.stream(), nothing);
  CHECK(says(message_of([&] {
               static_cast<void>(off.capture(
                   desk.stream(), [&] { static_cast<void>(off.capture(desk.stream(), nothing)); }));
             }),
             "another capture"));
  CHECK(says(message_of([&] {
               static_cast<void>(off.capture(desk.stream(), [&] { graph.launch(desk.stream()); }));
             }),
             "end it before"));
  work.step();
  CHECK(work.all_wrong() == 0);
}

TEST_CASE("graph: memory that would have to grow is refused, and the offloader goes on") {
  rig desk;
  offloader off(desk.dev, small_options());
  trainer work{desk, off};
  work.step();
  const auto larger = [&] { static_cast<void>(off.allocate(1 << 20, desk.stream())); };
  const auto capture = [&] { static_cast<void>(off.capture(desk.stream(), larger)); };
  const auto said = message_of(capture);
  CHECK(says(said, "bytes more would have to be allocated"));
  CHECK(says(said, "run steps without capture until counters().device_allocations stays equal"));
  // Which is what helps.
  const auto made = [&] { return off.counters().device_allocations; };
  const auto before = made();
  larger();
  CHECK(made() > before);
  for (auto last = before; last != made(); larger()) last = made();
  capture();
  work.step();
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  graph.launch(desk.stream());
  CHECK(work.all_wrong() == 0);
  CHECK(work.round == 3);
}

TEST_CASE("graph: a body that throws leaves no capture behind") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  work.step();
  CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(),
                                                [&] {
                                                  work.forward();
                                                  throw std::runtime_error("the trainer's own");
                                                })),
                  std::runtime_error);
  CHECK_FALSE(desk.dev.capturing(desk.stream()));
  work.chunk.reset();
  for (auto& x : work.saved) x.reset(desk.stream());
  work.step();
  CHECK(work.all_wrong() == 0);
}

TEST_CASE("graph: the host cannot wait for other ranks inside, and the offloader goes on") {
  rig desk;
  offloader off(desk.dev, small_options());
  trainer work{desk, off};
  work.step();
  // As experts over ranks do, whose memory depends on how many rows the others send.
  CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(),
                                                [&] {
                                                  off.wait_for_peers(desk.stream(), [&] {
                                                    desk.dev.synchronize(desk.stream());
                                                  });
                                                })),
                  tidepool::device_error);
  CHECK_FALSE(desk.dev.capturing(desk.stream()));
  work.step();
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  graph.launch(desk.stream());
  CHECK(work.all_wrong() == 0);
}

TEST_CASE("graph: a capture that is not the offloader's is refused at the first call") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  work.step();
  auto x = off.allocate(size, desk.stream());
  auto chunk = off.begin();
  desk.dev.synchronize();
  desk.dev.begin_capture(desk.stream());
  CHECK(says(message_of([&] { static_cast<void>(off.allocate(size, desk.stream())); }),
             "the copies would escape"));
  CHECK(says(message_of([&] { chunk.commit<"fc1">(0, desk.stream(), x); }), "escape"));
  static_cast<void>(desk.dev.end_capture(desk.stream()));
  CHECK(x);
  chunk = {};
  x.reset(desk.stream());
  // After a launch too, whose eager end is still to come.
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  graph.launch(desk.stream());
  desk.dev.begin_capture(desk.stream());
  CHECK(says(message_of([&] { static_cast<void>(off.allocate(size, desk.stream())); }),
             "the copies would escape"));
  static_cast<void>(desk.dev.end_capture(desk.stream()));
  auto other = desk.dev.make_stream();
  const auto mixed = message_of([&] {
    static_cast<void>(
        off.capture(desk.stream(), [&] { static_cast<void>(off.allocate(size, other.ref())); }));
  });
  CHECK(says(mixed, "takes no part in the capture"));
}

TEST_CASE("graph: a handle that dies between launches ends them, and eager steps go on") {
  rig desk;
  offloader off(desk.dev, arena_options(4 * size));
  trainer work{desk, off};
  work.step();
  std::optional<offloader::buffer> held(off.allocate(size, desk.stream()));
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  graph.launch(desk.stream());
  held.reset();  // by its destructor
  CHECK(says(message_of([&] { graph.launch(desk.stream()); }), "reset every handle"));
  work.step();
  CHECK(work.all_wrong() == 0);
  CHECK(work.round == 3);
}

TEST_CASE("graph: keeps working when the offloader is gone") {
  rig desk;
  std::optional<offloader> off(std::in_place, desk.dev, arena_options(3 * size));
  trainer work{desk, *off};
  work.step();
  auto graph = off->capture(desk.stream(), [&] { work.step(); });
  work.chunk.reset();
  off.reset();
  graph.launch(desk.stream());
  CHECK(work.all_wrong() == 0);
  CHECK(work.round == 2);
}

TEST_CASE("fixed_block: layers take turns at one address, and what leaves comes back there") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, small_options());
    void* const memory = desk.dev.allocate(size);
    {
      tidepool::fixed_block place(memory, size);
      for (int step = 0; step < 3; ++step) {
        auto chunk = off.begin();
        std::vector<offloader::buffer> x(layers);
        for (int l = 0; l < layers; ++l) {
          auto& mine = x[static_cast<std::size_t>(l)];
          mine = off.allocate_from(place, size, desk.stream());
          CHECK(mine.data() == memory);
          desk.write(mine, static_cast<std::uint32_t>(step * layers + l));
          chunk.commit<"fc1">(l, desk.stream(), mine);
          CHECK_FALSE(place.taken());
        }
        for (int l = layers; l-- > 0;) {
          auto& mine = x[static_cast<std::size_t>(l)];
          chunk.restore<"fc1">(l, desk.stream(), mine);
          CHECK(mine.data() == memory);
          desk.check(mine, static_cast<std::uint32_t>(step * layers + l));
          mine.reset(desk.stream());
        }
        chunk.finish();
        off.end_step();
      }
      auto holder = off.allocate_from(place, size, desk.stream());
      CHECK_THROWS_AS(static_cast<void>(off.allocate_from(place, size, desk.stream())),
                      tidepool::out_of_budget);
      holder.reset(desk.stream());
      CHECK(desk.wrong() == 0);
    }
    desk.dev.deallocate(memory);
  }
}

// What was committed before it must not be taken for present: the copies of the capture never run.
TEST_CASE("graph: reloads of a capture that fails are made again") {
  for (const bool restores : {false, true}) {
    CAPTURE(restores);
    rig desk(machine{.order_seed = 9});
    auto opts = small_options();
    opts.reload_ahead = 2;
    offloader off(desk.dev, opts);
    trainer warm{desk, off};
    for (int i = 0; i < 2; ++i) {
      warm.forward();
      warm.backward();
      off.end_step();
    }
    auto open = off.begin();
    std::vector<offloader::buffer> saved(layers);
    const auto tag = [](int l) { return static_cast<std::uint32_t>(40 + l); };
    for (int l = 0; l < layers; ++l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      x = off.allocate(size, desk.stream());
      desk.write(x, tag(l));
      open.commit<"fc1">(l, desk.stream(), x);
    }
    int last = layers;
    const auto body = [&] {
      open.end_forward();
      if (restores) {
        auto& x = saved[static_cast<std::size_t>(--last)];
        open.restore<"fc1">(last, desk.stream(), x);
        x.reset(desk.stream());
      }
      throw std::runtime_error("the body's own");
    };
    CHECK_THROWS_AS(static_cast<void>(off.capture(desk.stream(), body)), std::runtime_error);
    CHECK(off.counters().evictions == 0);  // nothing was short of memory
    for (int l = last; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      open.restore<"fc1">(l, desk.stream(), x);
      desk.check(x, tag(l));
      x.reset(desk.stream());
    }
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

// Found by the formal model (tests/model/capture.pml).
TEST_CASE("graph: reloads of a graph that has not run are not believed after a later one") {
  for (const bool in_order : {true, false}) {
    CAPTURE(in_order);
    rig desk(machine{.order_seed = 9});
    offloader off(desk.dev, small_options());
    trainer warm{desk, off};
    warm.step();
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 40);
    open.commit<"fc1">(0, desk.stream(), x);
    auto reload = off.capture(desk.stream(), [&] { open.end_forward(); });
    auto other = off.capture(desk.stream(), [&] { warm.kernel([] {}); });
    if (in_order) {
      reload.launch(desk.stream());
      other.launch(desk.stream());
    } else {
      CHECK(says(message_of([&] { other.launch(desk.stream()); }), "order of their capture"));
    }
    open.restore<"fc1">(0, desk.stream(), x);
    desk.check(x, 40);
    x.reset(desk.stream());
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

namespace {
// The forward of two layers, each with one tensor.
offloader::chunk save_two(rig& desk, offloader& off, std::array<offloader::buffer, 2>& saved) {
  auto open = off.begin();
  for (int l = 0; l < 2; ++l) {
    auto& x = saved[static_cast<std::size_t>(l)];
    x = off.allocate(size, desk.stream());
    desk.write(x, 60U + static_cast<std::uint32_t>(l));
    open.commit<"fc1">(l, desk.stream(), x);
  }
  open.end_forward();
  return open;
}
}  // namespace

TEST_CASE("graph: what was reloaded ahead of a capture that evicts it does not bind the graph") {
  rig desk(machine{.order_seed = 9});
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  work.step();
  work.step();
  std::array<offloader::buffer, 2> saved;
  auto open = save_two(desk, off, saved);
  open.restore<"fc1">(1, desk.stream(), saved[1]);
  REQUIRE(off.counters().evictions == 0);
  auto graph = off.capture(desk.stream(), [&] {
    auto one = off.allocate(size, desk.stream());
    auto two = off.allocate(size, desk.stream());
    one.reset(desk.stream());
    two.reset(desk.stream());
  });
  CHECK(off.counters().evictions > 0);
  for (int i = 0; i < 3; ++i) graph.launch(desk.stream());
  open.restore<"fc1">(0, desk.stream(), saved[0]);
  for (int l = 0; l < 2; ++l) {
    auto& x = saved[static_cast<std::size_t>(l)];
    desk.check(x, 60U + static_cast<std::uint32_t>(l));
    x.reset(desk.stream());
  }
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("graph: a part that was launched before the next was captured can be launched again") {
  for (const bool between : {false, true}) {
    CAPTURE(between);
    rig desk;
    offloader off(desk.dev, small_options());
    offloader::chunk open;
    std::array<offloader::buffer, 2> saved;
    const auto forward = [&] { open = save_two(desk, off, saved); };
    const auto backward = [&] {
      for (int l = 2; l-- > 0;) {
        auto& x = saved[static_cast<std::size_t>(l)];
        open.restore<"fc1">(l, desk.stream(), x);
        desk.check(x, 60U + static_cast<std::uint32_t>(l));
        x.reset(desk.stream());
      }
      open.finish();
      off.end_step();
    };
    for (int i = 0; i < 2; ++i) {
      forward();
      backward();
    }
    auto first = off.capture(desk.stream(), forward);
    if (between) first.launch(desk.stream());
    auto second = off.capture(desk.stream(), backward);
    if (!between) first.launch(desk.stream());
    second.launch(desk.stream());
    for (int i = 0; i < 3; ++i) {
      first.launch(desk.stream());
      second.launch(desk.stream());
    }
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("graph: an allocation that fails between launches changes nothing for them") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  work.step();
  work.step();
  auto graph = off.capture(desk.stream(), [&] { work.step(); });
  graph.launch(desk.stream());
  CHECK_THROWS_AS(static_cast<void>(off.allocate(4 * size, desk.stream())),
                  tidepool::out_of_budget);
  graph.launch(desk.stream());
  CHECK(work.all_wrong() == 0);
}

TEST_CASE("graph: memory of a handle that goes when no event can be recorded, in a capture") {
  for (const bool fails : {true, false}) {
    CAPTURE(fails);
    rig desk;
    {
      offloader off(desk.dev, arena_options(2 * size));
      trainer work{desk, off};
      work.step();
      const auto body = [&] {
        auto x = off.allocate(size, desk.stream());
        desk.dev.before_record = [] { throw tidepool::device_error("no event", 1); };
        x = {};
        desk.dev.before_record = nullptr;
        if (fails) throw std::runtime_error("the body's own");
      };
      const auto capture = [&] { static_cast<void>(off.capture(desk.stream(), body)); };
      if (fails) {
        CHECK_THROWS_AS(capture(), std::runtime_error);
      } else {
        capture();
      }
      const auto one = off.allocate(size, desk.stream());
      // Free where nothing has run, and taken for good where a graph has it.
      const auto another = [&] { const auto two = off.allocate(size, desk.stream()); };
      if (fails) {
        another();
      } else {
        CHECK_THROWS_AS(another(), tidepool::out_of_budget);
      }
    }
    CHECK(desk.dev.device_held == 0);
  }
}

TEST_CASE("graph: a handle that goes unrecorded in a capture leaves another one of its tensor") {
  rig desk;
  {
    offloader off(desk.dev, arena_options(2 * size));
    trainer work{desk, off};
    work.step();
    offloader::buffer other;
    auto graph = off.capture(desk.stream(), [&] {
      auto x = off.allocate(size, desk.stream());
      other = x.share();
      desk.dev.before_record = [] { throw tidepool::device_error("no event", 1); };
      x = {};
      desk.dev.before_record = nullptr;
    });
    CHECK(other.size() == size);
    const auto* const address = other.data();
    other.reset(desk.stream());
    const auto one = off.allocate(size, desk.stream());
    CHECK(one.data() != address);  // the graph has it
  }
  CHECK(desk.dev.device_held == 0);
}

TEST_CASE("graph: a stream whose first call fails after a capture waits for its end all the same") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  trainer work{desk, off};
  work.step();
  static_cast<void>(off.capture(desk.stream(), [&] { work.step(); }));
  const auto fresh = desk.dev.make_stream();
  const auto use = [&] { const auto x = off.allocate(size, fresh.ref()); };
  desk.dev.before_wait = [] { throw tidepool::device_error("no wait", 1); };
  CHECK_THROWS_AS(use(), tidepool::device_error);
  desk.dev.before_wait = nullptr;
  const auto waits = desk.dev.waits;
  use();
  CHECK(desk.dev.waits > waits);
}
