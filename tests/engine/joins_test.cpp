// Invariants 1 to 6: each of the joins that keep data right is needed, and together they suffice.
// The programs here run in random orders, any that streams and joins allow.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "program.hpp"
#include "rig.hpp"

namespace {

using tidepool::join_site;
using tidepool::memory_kind;
using tidepool::test::program;
using tidepool::test::rig;
using tidepool::test::run;
using tidepool::test::small_options;

constexpr memory_kind every_kind[]{memory_kind::pool, memory_kind::arena, memory_kind::slots};

// A program whose device memory is tight, or its host memory.
program tight(memory_kind kind, join_site site) {
  program plan;
  plan.opts = small_options();
  plan.opts.memory = kind;
  plan.microbatches = 6;
  plan.tensors = 1;
  const bool host = site == join_site::host_reuse;
  if (host) {
    // A commit behind the restore on the same stream is ordered already. On two streams, with room
    // on the device for everybody, only this join keeps the host block; and reloads have to be far
    // behind offloads to get into their way.
    plan.two_streams = true;
    plan.model.reload_rate = 0.5;
    plan.opts.max_inflight_bytes = std::size_t{1} << 20;  // lets the pool grow instead of waiting
    plan.smallest = plan.largest = 3072;
    plan.opts.host_step = std::size_t{14} * 3072;
    plan.opts.host_budget = std::size_t{14} * 3072;
    plan.opts.reload_ahead = 1;
  }
  if (kind == memory_kind::pool) {
    plan.opts.device_step = 4096;
    if (!host) plan.opts.device_budget = 16 * 1024;
  }
  if (kind == memory_kind::arena) plan.opts.device_budget = (host ? 600 : 14) * 1024;
  if (kind == memory_kind::slots) plan.opts.slots = {{3072, host ? 160U : 5U}};
  return plan;
}

// How many of the first `seeds` orders end with a wrong word.
int wrong_orders(program plan, int seeds) {
  int wrong = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    plan.seed = static_cast<std::uint64_t>(seed);
    const bool by_the_clock = plan.model.reload_rate < 1 && seed % 2 == 0;
    plan.model.order_seed = by_the_clock ? 0 : plan.seed;
    wrong += run(plan).wrong > 0 ? 1 : 0;
  }
  return wrong;
}

void check_needed(join_site site, std::vector<join_site> with = {}) {
  for (const auto kind : every_kind) {
    CAPTURE(static_cast<int>(kind));
    CAPTURE(std::string(name_of(site)));
    auto plan = tight(kind, site);
    CHECK(wrong_orders(plan, 25) == 0);
    plan.left_out = with;
    plan.left_out.push_back(site);
    CHECK(wrong_orders(plan, 25) > 0);
  }
}

}  // namespace

TEST_CASE("joins: an offload reads its source only after the producer") {
  check_needed(join_site::producer);
}

TEST_CASE("joins: device memory is reused only after its last user, be it an offload or a reader") {
  check_needed(join_site::device_reuse, {join_site::reload_reuse});
}

TEST_CASE("joins: a reload waits for the offload of its own group") {
  check_needed(join_site::own_offload);
}

TEST_CASE("joins: a host block is reused only after the reload out of it") {
  check_needed(join_site::host_reuse);
}

TEST_CASE("joins: a consumer reads only after its group's reload") {
  check_needed(join_site::consumer);
}

TEST_CASE("joins: the cap is no data join") {
  for (const auto kind : every_kind) {
    auto plan = tight(kind, join_site::cap);
    plan.opts.max_inflight = 1;
    plan.left_out = {join_site::cap};
    CHECK(wrong_orders(plan, 10) == 0);
  }
}

TEST_CASE("joins: without those of the data it is wrong, whatever the cap") {
  auto plan = tight(memory_kind::pool, join_site::producer);
  plan.opts.max_inflight = 0;
  plan.left_out = {join_site::producer, join_site::device_reuse, join_site::own_offload,
                   join_site::consumer};
  CHECK(wrong_orders(plan, 10) > 0);
}

// Everything that a program can do at once, with nothing left out.
TEST_CASE("joins: every order of every program is right") {
  for (int seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    const auto bit = [&](int which) { return (seed >> which & 1) != 0; };
    program plan;
    plan.seed = plan.model.order_seed = static_cast<std::uint64_t>(seed);
    plan.depth = 1 + seed % 4;
    plan.microbatches = 4 + seed % 3;
    plan.layers = 1 + seed % 3;
    plan.model_chunks = 1 + seed % 2;
    plan.tensors = 1 + seed % 3;
    plan.two_streams = bit(0);
    plan.shuffled = bit(1);
    plan.shares = bit(2);
    plan.evaluates = bit(3);
    plan.opts.margin = bit(4);
    plan.opts.fraction = bit(5) ? 0.6 : 1;
    plan.opts.reload_ahead = static_cast<std::size_t>(seed % 5);
    if (seed % 3 == 0) plan.opts.max_inflight = static_cast<std::size_t>(seed % 4);
    if (seed % 7 == 0) plan.opts.min_tensor_elements = 800;
    for (const auto kind : every_kind) {
      CAPTURE(static_cast<int>(kind));
      plan.opts.memory = kind;
      plan.opts.device_budget.reset();
      plan.opts.slots.clear();
      // Room for what stays: everything, with the options above, at the worst.
      if (kind == memory_kind::arena) plan.opts.device_budget = 400 * 1024;
      if (kind == memory_kind::slots) plan.opts.slots = {{1024, 60}, {3072, 160}};
      CHECK(run(plan).wrong == 0);
    }
  }
}

// As little room as a program can do with, so that reloads are undone and everything waits.
TEST_CASE("joins: every order is right where the device is as tight as can be") {
  std::uint64_t evictions = 0;
  std::uint64_t waits = 0;
  for (int seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    program plan;
    plan.seed = plan.model.order_seed = static_cast<std::uint64_t>(seed);
    plan.opts = small_options();
    plan.opts.memory = memory_kind::arena;
    plan.opts.device_budget = std::size_t{9} * 1024;  // three tensors
    plan.opts.reload_ahead = 4;
    plan.depth = 1 + seed % 4;
    plan.microbatches = 5;
    plan.tensors = 1 + seed % 2;
    plan.shuffled = seed % 3 == 0;
    plan.two_streams = seed % 5 == 0;
    const auto seen = run(plan);
    CHECK(seen.wrong == 0);
    evictions += seen.counters.evictions;
    waits += seen.counters.arena_waits;
  }
  CHECK(evictions > 0);
  CHECK(waits > 100);
}

TEST_CASE("joins: memory for a compute stream is awaited by that stream, not by reloads") {
  for (const auto left_out : {join_site::device_reuse, join_site::reload_reuse}) {
    rig desk;
    const auto other = desk.dev.make_stream();
    rig::offloader<> off(desk.dev, tidepool::test::arena_options(4096));
    desk.dev.leave_out(left_out);
    auto x = off.allocate(4096, desk.stream());
    desk.write(x, 1);
    desk.dev.launch(desk.stream(), 50'000, [] {});
    desk.check(x, 1);
    x.reset(desk.stream());
    const auto y = off.allocate(4096, other.ref());
    desk.write_bytes(y.data(), y.size(), 2, other.ref());
    CHECK((desk.wrong() > 0) == (left_out == join_site::device_reuse));
  }
}

TEST_CASE("joins: memory that nobody touched, given back on another stream, is not filled later") {
  enum class way { reset, commit, discard, write_back };
  for (const auto how : {way::reset, way::commit, way::discard, way::write_back}) {
    CAPTURE(static_cast<int>(how));
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      CAPTURE(seed);
      rig desk(tidepool::machine{.order_seed = seed});
      const auto second = desk.dev.make_stream();
      auto opts = tidepool::test::arena_options(2048);
      opts.recompute_modules = {"layernorm"};
      rig::offloader<tidepool::modules<"fc1">> off(desk.dev, opts);
      auto open = off.begin();
      auto state = off.state_on_host(2048, "moments");
      auto x =
          how == way::write_back ? state.create(desk.stream()) : off.allocate(2048, desk.stream());
      if (how == way::reset) x.reset(second.ref());
      if (how == way::commit) open.commit<"fc1">(0, second.ref(), x);
      if (how == way::discard) open.commit_or_discard<"layernorm">(0, second.ref(), x);
      if (how == way::write_back) state.write_back(x, second.ref());
      auto next = off.allocate(2048, second.ref());
      desk.write_bytes(next.data(), 2048, 1, second.ref());
      desk.check_rows(next.data(), {2048, 1, 2048, 0}, 1, 0, second.ref());
      next.reset(second.ref());
      CHECK(desk.wrong() == 0);
    }
  }
}
