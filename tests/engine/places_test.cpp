// Places that groups are offloaded to: the memory of a neighbour beside that of the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "faulty_device.hpp"
#include "messages.hpp"
#include "program.hpp"
#include "rig.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/trace/summary.hpp"

namespace {

using tidepool::join_site;
using tidepool::machine;
using tidepool::memory_kind;
using tidepool::options;
using tidepool::place_kind;
using tidepool::test::arena_options;
using tidepool::test::program;
using tidepool::test::rig;
using tidepool::test::run;
using tidepool::test::run_resident;
using tidepool::test::says;
using tidepool::test::small_options;

// Says nothing of modules that a test does not use.
struct offloader : rig::offloader<tidepool::modules<"fc1", "core_attn">> {
  offloader(rig::device_type& dev, const options& opts, tidepool::parts with = {})
      : rig::offloader<tidepool::modules<"fc1", "core_attn">>(dev, opts, std::move(with)) {
    on_report([](std::string_view) {});
  }
};

constexpr std::size_t size = 2048;

options with_peer(options opts, std::size_t budget, bool host = true) {
  opts.places = {place_kind::peer};
  if (host) opts.places.push_back(place_kind::host);
  opts.peer_budget = budget;
  opts.host_step = 1024;
  return opts;
}

const tidepool::trace::place_counters& at(const tidepool::trace::counters& totals,
                                          std::string_view name) {
  const auto found = std::ranges::find(totals.places, name, &tidepool::trace::place_counters::name);
  REQUIRE(found != totals.places.end());
  return *found;
}

template <class Call>
std::string words_of(const Call& call) {
  try {
    call();
  } catch (const tidepool::error& problem) {
    return problem.what();
  }
  return {};
}

// A tensor for each of some layers, written, and committed as a group.
struct pass {
  rig& desk;
  offloader::chunk chunk;
  std::vector<rig::buffer> saved{};

  void commit(offloader& off, int layer, std::size_t bytes = size) {
    auto& x = saved.emplace_back(off.allocate(bytes, desk.stream()));
    desk.write(x, static_cast<std::uint32_t>(layer));
    chunk.commit<"fc1">(layer, desk.stream(), x);
  }
  void backward() {
    chunk.end_forward();
    for (auto layer = static_cast<int>(saved.size()); layer-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(layer)];
      chunk.restore<"fc1">(layer, desk.stream(), x);
      desk.check(x, static_cast<std::uint32_t>(layer));
      x.reset(desk.stream());
    }
    chunk.finish();
  }
};

}  // namespace

TEST_CASE("places: bits are equal over 40 orders, with room in the neighbour for some") {
  constexpr memory_kind every_kind[]{memory_kind::pool, memory_kind::arena, memory_kind::slots};
  std::uint64_t peer = 0;
  std::uint64_t host = 0;
  for (int seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    program plan;
    plan.seed = plan.model.order_seed = static_cast<std::uint64_t>(seed);
    plan.depth = 1 + seed % 4;
    plan.tensors = 1 + seed % 3;
    plan.shares = seed % 2 == 0;
    plan.two_streams = seed % 3 == 0;
    plan.shuffled = seed % 5 == 0;
    const auto resident = run_resident(plan);
    for (const auto kind : every_kind) {
      CAPTURE(static_cast<int>(kind));
      plan.opts = with_peer(small_options(), 1024U * (4U + static_cast<unsigned>(seed) % 30U));
      plan.opts.memory = kind;
      if (seed % 4 == 0) plan.opts.max_inflight = static_cast<std::size_t>(seed % 3);
      if (kind == memory_kind::arena) plan.opts.device_budget = std::size_t{64} * 1024;
      if (kind == memory_kind::slots) plan.opts.slots = {{1024, 60}, {3072, 160}};
      const auto seen = run(plan);
      CHECK(seen.wrong == 0);
      CHECK(seen.weights == resident.weights);
      peer += at(seen.counters, "peer 1").bytes_reloaded;
      host += at(seen.counters, "host").bytes_reloaded;
    }
  }
  CHECK(peer > 100'000);
  CHECK(host > 100'000);
}

TEST_CASE("places: a block of a neighbour is reused only after the reload out of it") {
  const auto wrong_orders = [](bool left_out) {
    int wrong = 0;
    for (int seed = 1; seed <= 25; ++seed) {
      program plan;
      plan.seed = static_cast<std::uint64_t>(seed);
      plan.microbatches = 6;
      plan.tensors = 1;
      plan.two_streams = true;
      plan.smallest = plan.largest = 3072;
      plan.model.peer_reload_rate = 0.5;
      plan.model.order_seed = seed % 2 == 0 ? 0 : plan.seed;
      plan.opts = with_peer(small_options(), std::size_t{14} * 3072, false);
      plan.opts.max_inflight_bytes = std::size_t{1} << 20;
      plan.opts.host_step = std::size_t{14} * 3072;
      plan.opts.reload_ahead = 1;
      if (left_out) plan.left_out = {join_site::peer_reuse};
      wrong += run(plan).wrong > 0 ? 1 : 0;
    }
    return wrong;
  };
  CHECK(wrong_orders(false) == 0);
  CHECK(wrong_orders(true) > 0);
}

TEST_CASE("places: without them there is no stream more, and no neighbour is asked") {
  rig desk;
  const auto before = desk.dev.streams_made;
  offloader off(desk.dev, small_options());
  CHECK(desk.dev.streams_made - before == 2);
  pass work{desk, off.begin()};
  for (int l = 0; l < 3; ++l) work.commit(off, l);
  work.backward();
  off.end_step();
  CHECK(desk.wrong() == 0);
  CHECK(desk.dev.peer_allocations == 0);
  REQUIRE(off.counters().places.size() == 1);
  CHECK(at(off.counters(), "host").bytes_offloaded == 3 * size);
}

TEST_CASE("places: the nearest with room is taken, to the byte, and the next one after it") {
  for (const bool fits : {false, true}) {
    CAPTURE(fits);
    rig desk;
    offloader off(desk.dev, with_peer(small_options(), 3 * size - (fits ? 0 : 256)));
    pass work{desk, off.begin()};
    for (int l = 0; l < 4; ++l) work.commit(off, l);
    const auto totals = off.counters();
    CHECK(at(totals, "peer 1").bytes_offloaded == (fits ? 3 : 2) * size);
    CHECK(at(totals, "host").bytes_offloaded == (fits ? 1 : 2) * size);
    CHECK(at(totals, "peer 1").budget == 3 * size - (fits ? 0 : 256));
    CHECK(at(totals, "peer 1").peak == (fits ? 3 : 2) * size);
    work.backward();
    off.end_step();
    CHECK(desk.wrong() == 0);
    CHECK(at(off.counters(), "peer 1").bytes_reloaded == (fits ? 3 : 2) * size);
  }
}

TEST_CASE("places: a group's tensors are in one place") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    rig desk(machine{.order_seed = seed});
    auto opts = with_peer(small_options(), 2 * size);
    opts.host_step = 2 * size;
    offloader off(desk.dev, opts);
    auto chunk = off.begin();
    rig::buffer saved[3];
    for (std::uint32_t i = 0; i < 3; ++i) {
      saved[i] = off.allocate(size, desk.stream());
      desk.write(saved[i], i);
    }
    chunk.commit<"fc1">(0, desk.stream(), saved[0], saved[1], saved[2]);
    const auto totals = off.counters();
    CHECK(at(totals, "peer 1").bytes_offloaded == 0);
    CHECK(at(totals, "host").bytes_offloaded == 3 * size);
    // What the neighbour had for the first two is free again.
    auto next = off.allocate(2 * size, desk.stream());
    desk.write(next, 3);
    chunk.commit<"core_attn">(0, desk.stream(), next);
    CHECK(at(off.counters(), "peer 1").bytes_offloaded == 2 * size);
    chunk.end_forward();
    chunk.restore<"core_attn">(0, desk.stream(), next);
    desk.check(next, 3);
    chunk.restore<"fc1">(0, desk.stream(), saved[0], saved[1], saved[2]);
    for (std::uint32_t i = 0; i < 3; ++i) desk.check(saved[i], i);
    next.reset(desk.stream());
    for (auto& each : saved) each.reset(desk.stream());
    chunk.finish();
    off.end_step();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("places: a group comes back over both links where another saved a part of it elsewhere") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    auto opts = with_peer(arena_options(4 * size), size);
    opts.reload_ahead = seed % 3;
    offloader off(desk.dev, opts);
    auto chunk = off.begin();
    auto x = off.allocate(2 * size, desk.stream());
    desk.write(x, 1);
    auto same = x.share();
    chunk.commit<"fc1">(0, desk.stream(), x);  // too large for the neighbour
    auto y = off.allocate(size, desk.stream());
    desk.write(y, 2);
    chunk.commit<"core_attn">(0, desk.stream(), same, y);
    CHECK(at(off.counters(), "host").bytes_offloaded == 2 * size);
    CHECK(at(off.counters(), "peer 1").bytes_offloaded == size);
    auto other = off.allocate(4 * size, desk.stream());  // what has left is not there
    desk.write(other, 3);
    other.reset(desk.stream());
    chunk.end_forward();
    chunk.restore<"core_attn">(0, desk.stream(), same, y);
    desk.check(same, 1);
    desk.check(y, 2);
    same.reset(desk.stream());
    y.reset(desk.stream());
    chunk.restore<"fc1">(0, desk.stream(), x);
    desk.check(x, 1);
    x.reset(desk.stream());
    chunk.finish();
    off.end_step();
    CHECK(desk.wrong() == 0);
    CHECK(at(off.counters(), "peer 1").bytes_reloaded == size);
  }
}

TEST_CASE(
    "places: a neighbour that has less than its budget gives what it has, and the host the rest") {
  rig desk(machine{.peer_bytes = 3 * size});
  offloader off(desk.dev, with_peer(small_options(), 100 * size));
  for (int step = 0; step < 3; ++step) {
    pass work{desk, off.begin()};
    for (int l = 0; l < 8; ++l) work.commit(off, l);
    work.backward();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
  CHECK(at(off.counters(), "peer 1").bytes_offloaded == 3 * 3 * size);
  CHECK(at(off.counters(), "host").bytes_offloaded == 3 * 5 * size);
  CHECK(desk.dev.peer_allocations == 2 * 4);  // for all of the budget first, then for the group
  CHECK(desk.dev.peer_held == 3);
}

TEST_CASE("places: where the neighbour is the only one, what does not fit is refused by name") {
  rig desk;
  offloader off(desk.dev, with_peer(small_options(), 2 * size, false));
  for (int step = 0; step < 2; ++step) {
    pass work{desk, off.begin()};
    for (int l = 0; l < 2; ++l) work.commit(off, l);
    auto extra = off.allocate(size, desk.stream());
    desk.write(extra, 9);
    const auto text = words_of([&] { work.chunk.commit<"core_attn">(0, desk.stream(), extra); });
    CHECK(says(text, "commit of core_attn of layer 0"));
    CHECK(says(text, "4096 bytes of 4096 bytes of peer 1 are in use"));
    CHECK(says(text, "--peer-budget"));
    CHECK(says(text, "--places=peer,host"));
    desk.check(extra, 9);  // nothing is lost
    extra.reset(desk.stream());
    work.backward();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("places: where none has room, the message has them all") {
  rig desk;
  auto opts = with_peer(small_options(), size);
  opts.host_budget = size;
  offloader off(desk.dev, opts);
  pass work{desk, off.begin()};
  for (int l = 0; l < 2; ++l) work.commit(off, l);
  auto extra = off.allocate(size, desk.stream());
  const auto text = words_of([&] { work.chunk.commit<"core_attn">(0, desk.stream(), extra); });
  CHECK(says(text, "2048 bytes of 2048 bytes of peer 1 and 2048 bytes of 2048 bytes are in use"));
  CHECK(says(text,
             "Raise --peer-budget to 4096 bytes or more or --host-budget to 4096 bytes or more, "
             "offload fewer modules"));
  extra.reset(desk.stream());
  work.backward();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("places: a call of the neighbour that fails loses nothing") {
  using device = tidepool::test::faulty_device<tidepool::virtual_device>;
  using faulty = tidepool::offloader<device, tidepool::modules<"fc1">>;
  device dev;
  const auto compute = dev.tidepool::virtual_device::make_stream();
  {
    faulty off(dev, with_peer(small_options(), 4 * size));
    auto chunk = off.begin();
    auto x = off.allocate<std::uint32_t>(size / 4, compute.ref());
    auto* const data = x.as<std::uint32_t>();
    dev.launch(compute.ref(), 10, [=] { std::fill_n(data, size / 4, 7U); });
    dev.arm({tidepool::test::call_kind::try_allocate_peer, 1});
    CHECK_THROWS_AS(chunk.commit<"fc1">(0, compute.ref(), x), tidepool::device_error);
    CHECK(x.data() == data);
    chunk.commit<"fc1">(0, compute.ref(), x);
    CHECK(at(off.counters(), "peer 1").bytes_offloaded == size);
    chunk.end_forward();
    chunk.restore<"fc1">(0, compute.ref(), x);
    dev.synchronize();
    CHECK(std::count(x.as<std::uint32_t>(), x.as<std::uint32_t>() + size / 4, 7U) == size / 4);
    x.reset(compute.ref());
    chunk.finish();
    off.end_step();
  }
  CHECK(dev.held() == device::holdings{});
}

TEST_CASE("places: a device without such a neighbour is refused with the remedy") {
  const auto refusal = [](const machine& model, int device) {
    rig desk(model);
    auto opts = with_peer(small_options(), size);
    opts.peer_device = device;
    return words_of([&] { offloader off(desk.dev, opts); });
  };
  CHECK(refusal({}, 1).empty());
  CHECK(says(refusal({}, 0), "device 0 is the offloader's own"));
  CHECK(says(refusal({}, 2), "there is no device 2"));
  const auto alone = refusal({.peer_bytes = 0}, 1);
  CHECK(says(alone, "places: the memory of device 1 (--peer-device) cannot be had"));
  CHECK(says(alone, "name another device, or give --places=host"));

  tidepool::null_device none;
  using other = tidepool::offloader<tidepool::null_device, tidepool::modules<"fc1">>;
  CHECK_THROWS_AS(other(none, with_peer(small_options(), size)), tidepool::option_error);
  const auto text = words_of([&] { other off(none, with_peer(small_options(), size)); });
  CHECK(says(text, "a device of the kind null has no neighbours"));
  CHECK_NOTHROW(other(none, small_options()));
}

TEST_CASE("places: a place takes two of the streams that an offloader serves") {
  rig desk;
  offloader off(desk.dev, with_peer(small_options(), size));
  std::vector<rig::device_type::stream> streams;
  std::vector<rig::buffer> held;
  const auto one_more = [&] {
    streams.push_back(desk.dev.make_stream());
    held.push_back(off.allocate(size, streams.back().ref()));
  };
  for (int i = 0; i < 4; ++i) one_more();
  CHECK(says(words_of(one_more), "at most 4 streams beside its own 4"));
}

TEST_CASE("places: the link to a neighbour is beside the host's, and faster") {
  program plan;
  plan.fixed_shapes = true;
  plan.smallest = plan.largest = std::size_t{1} << 20;
  plan.opts.host_budget = std::size_t{64} << 20;
  const auto host = run(plan);
  plan.opts = with_peer(plan.opts, std::size_t{64} << 20);
  const auto peer = run(plan);
  CHECK(peer.wrong == 0);
  CHECK(at(peer.counters, "host").bytes_offloaded == 0);
  CHECK(peer.clock_ns < host.clock_ns / 2);
}

TEST_CASE("places: state on the host stays there") {
  rig desk;
  offloader off(desk.dev, with_peer(small_options(), 8 * size));
  auto state = off.state_on_host(size, "moments");
  auto x = state.create(desk.stream());
  desk.write(x, 5);
  state.write_back(x, desk.stream());
  pass work{desk, off.begin()};
  work.commit(off, 0);
  work.backward();
  x = state.fetch(desk.stream());
  desk.check(x, 5);
  x.reset(desk.stream());
  CHECK(desk.wrong() == 0);
  CHECK(at(off.counters(), "host").peak == size);
  CHECK(at(off.counters(), "peer 1").peak == size);
}

TEST_CASE("places: a captured step copies to the neighbour and back at each launch") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    offloader off(desk.dev, with_peer(small_options(), 3 * size));
    const auto step = [&] {
      pass work{desk, off.begin()};
      for (int l = 0; l < 4; ++l) work.commit(off, l);
      work.backward();
      off.end_step();
    };
    step();
    step();
    auto graph = off.capture(desk.stream(), step);
    for (int i = 0; i < 3; ++i) graph.launch(desk.stream());
    step();
    CHECK(desk.wrong() == 0);
    CHECK(at(off.counters(), "peer 1").bytes_offloaded == 4 * 3 * size);
    CHECK(at(off.counters(), "host").bytes_offloaded == 4 * 1 * size);
  }
}

TEST_CASE("places: what a capture gives up is joined back from the neighbour's streams as well") {
  rig desk;
  offloader off(desk.dev, with_peer(small_options(), 3 * size));
  const auto step = [&](bool gives_up) {
    pass work{desk, off.begin()};
    for (int l = 0; l < 2; ++l) work.commit(off, l);
    if (!gives_up) work.backward();
    work.saved.clear();
    work.chunk = {};
    off.end_step();
  };
  step(false);
  step(false);
  auto graph = off.capture(desk.stream(), [&] { step(true); });
  graph.launch(desk.stream());
  step(false);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("places: memory of a neighbour goes back only after the copies into it") {
  using device = tidepool::test::faulty_device<tidepool::virtual_device>;
  device dev;
  const auto compute = dev.tidepool::virtual_device::make_stream();
  {
    tidepool::offloader<device, tidepool::modules<"fc1">> off(dev,
                                                              with_peer(small_options(), 4 * size));
    auto chunk = off.begin();
    auto x = off.allocate(size, compute.ref());
    chunk.commit<"fc1">(0, compute.ref(), x);
    CHECK(dev.flying() > 0);
  }
  CHECK(dev.freed_in_use() == 0);
  CHECK(dev.held() == device::holdings{});
}

TEST_CASE("places: an automatic plan says what leaves, and that goes to the nearest place") {
  for (std::uint64_t seed = 0; seed <= 8; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    auto opts = with_peer(arena_options(6 * size), 2 * size);
    opts.plan_effort = 20;
    opts.policy = tidepool::policy_kind::automatic;
    offloader off(desk.dev, opts, {.planner = tidepool::planner()});
    for (int step = 0; step < 5; ++step) {
      pass work{desk, off.begin()};
      for (int l = 0; l < 10; ++l) work.commit(off, l);
      work.backward();
      off.end_step();
    }
    CHECK(desk.wrong() == 0);
    REQUIRE(off.current_plan());
    CHECK(off.current_plan()->expected.runs);
    CHECK(at(off.counters(), "peer 1").bytes_offloaded > 0);
    CHECK(at(off.counters(), "host").bytes_offloaded > 0);
  }
}

TEST_CASE("places: trace and summary have them apart") {
  rig desk;
  offloader off(desk.dev, with_peer(small_options(), 2 * size));
  for (int step = 0; step < 2; ++step) {
    if (step == 1) off.start_trace("step", desk.stream());
    pass work{desk, off.begin()};
    for (int l = 0; l < 3; ++l) work.commit(off, l);
    work.backward();
    off.end_step();
  }
  const auto record = off.finish_trace();
  REQUIRE(record.lanes.size() == 5);
  CHECK(record.lanes ==
        std::vector<std::string>{"offload", "reload", "offload peer", "reload peer", "compute 0"});
  std::vector<int> spans(5);
  for (const auto& each : record.spans) {
    using kind = tidepool::trace::span_kind;
    if (each.kind != kind::offload && each.kind != kind::reload) continue;
    CHECK((each.kind == kind::offload) == (each.lane % 2 == 0));
    ++spans[each.lane];
  }
  CHECK(spans == std::vector<int>{1, 1, 2, 2, 0});

  std::ostringstream text;
  tidepool::trace::write_summary(text, off.counters());
  CHECK(says(text.str(), "offloaded to peer 1"));
  CHECK(says(text.str(), "offloaded to host"));
  CHECK(says(text.str(), "peak 4.00 KiB of 4.00 KiB"));
  std::ostringstream ranks;
  const tidepool::trace::rank_counters two[]{{"0", off.counters()}, {"1", off.counters()}};
  tidepool::trace::write_summary(ranks, two);
  CHECK(says(ranks.str(), "offloaded to peer 1"));
  CHECK(says(ranks.str(), "peak 8.00 KiB of 8.00 KiB"));
}
