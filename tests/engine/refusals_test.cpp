// What an error says: its numbers, and no advice that would not help.

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "engines.hpp"
#include "messages.hpp"
#include "rig.hpp"
#include "tidepool/engine/engine.hpp"
#include "tidepool/engine/misuse.hpp"
#include "tidepool/engine/shortage.hpp"
#include "tidepool/error.hpp"
#include "tidepool/plan/profile.hpp"

namespace {

namespace detail = tidepool::detail;
namespace plan = tidepool::plan;

using tidepool::memory_kind;
using tidepool::options;
using tidepool::out_of_budget;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::says;

using offloader = rig::offloader<tidepool::modules<"core_attn", "moe_act">>;

constexpr std::size_t size = 2048;

std::string refused(offloader& off, rig& desk, std::size_t bytes) {
  try {
    static_cast<void>(off.allocate(bytes, desk.stream()));
  } catch (const out_of_budget& problem) {
    return problem.what();
  }
  FAIL_CHECK("nothing was short");
  return {};
}

// One microbatch of two small groups.
void step(rig& desk, offloader& off) {
  auto open = off.begin();
  std::array<rig::buffer, 2> x;
  for (int l = 0; l < 2; ++l) {
    auto& each = x[static_cast<std::size_t>(l)];
    each = off.allocate(size, desk.stream());
    open.commit<"core_attn">(l, desk.stream(), each);
  }
  open.end_forward();
  for (int l = 2; l-- > 0;) {
    auto& each = x[static_cast<std::size_t>(l)];
    open.restore<"core_attn">(l, desk.stream(), each);
    each.reset(desk.stream());
  }
  open.finish();
  off.end_step();
}

// An arena of four tensors, full, or with two free places that do not touch.
std::string short_of_one(const options& opts, bool steps, bool pieces) {
  rig desk;
  offloader off(desk.dev, opts);
  if (steps) step(desk, off);
  std::vector<rig::buffer> held;
  for (int i = 0; i < 4; ++i) held.push_back(off.allocate(size, desk.stream()));
  if (pieces) {
    held[0].reset(desk.stream());
    held[2].reset(desk.stream());
  }
  return refused(off, desk, 2 * size);
}

}  // namespace

TEST_CASE("refusal: no margin is named that keeps nothing") {
  auto opts = arena_options(4 * size);
  auto text = short_of_one(opts, true, false);  // by the rule, and without one
  CHECK(says(text, "Raise --device-budget, or run fewer microbatches"));
  opts.margin = true;
  text = short_of_one(opts, false, false);  // in the first step nothing stays
  CHECK(says(text, "Raise --device-budget, or run fewer microbatches"));
  text = short_of_one(opts, true, false);
  CHECK(says(text,
             "Raise --device-budget, take --no-margin, take --policy=automatic and"
             " parts::planner, or run"));
}

TEST_CASE("refusal: a plan might find room that is in pieces, but for options of the rule alone") {
  auto opts = arena_options(4 * size);
  auto text = short_of_one(opts, true, true);
  CHECK(says(text, "there is room, but in pieces"));
  CHECK(says(text,
             "Raise --device-budget, take --policy=automatic and parts::planner, or run fewer"
             " microbatches"));
  opts.delta_bytes_per_rank = 1;
  text = short_of_one(opts, true, true);
  CHECK(says(text, "Raise --device-budget, or run fewer microbatches"));
}

TEST_CASE("refusal: room in pieces is enough room, to the byte, whoever holds the rest") {
  alignas(256) std::array<std::byte, 256> memory{};
  rig desk;
  offloader off(desk.dev, arena_options(1024));
  tidepool::fixed_block own(memory.data(), memory.size());
  auto open = off.begin();
  auto away = off.allocate_from(own, 256, desk.stream());
  open.commit<"core_attn">(0, desk.stream(), away);
  const auto first = off.allocate(256, desk.stream());
  const auto second = off.allocate(255, desk.stream());
  CHECK(says(refused(off, desk, 513), "there is room, but in pieces"));
  CHECK_FALSE(says(refused(off, desk, 514), "in pieces"));
}

TEST_CASE("refusal: no plan is named where none is followed") {
  rig desk;
  offloader off(desk.dev, arena_options(4 * size));
  step(desk, off);
  const auto first = off.begin();
  const auto second = off.begin({.microbatch = 1});  // one more than the step before had
  const auto held = off.allocate(3 * size, desk.stream());
  CHECK_FALSE(says(refused(off, desk, 2 * size), "The plan"));
}

TEST_CASE("refusal: who follows a plan from elsewhere is not told to have one made") {
  using detail::engine;
  rig desk;
  auto* const on = new engine(std::make_unique<detail::hardware_of<rig::device_type>>(desk.dev),
                              arena_options(4 * size), {"core_attn"}, 1);
  const auto lane = detail::lane_of<rig::device_type>(*on, desk.stream());
  const auto allocate = [&](std::size_t bytes) {
    return detail::buffer_of<rig::device_type>(on->allocate(bytes, bytes, lane));
  };
  on->follow({}, {});
  {
    std::array<rig::buffer, 4> held;
    for (auto& each : held) each = allocate(size);
    held[0].reset(desk.stream());
    held[2].reset(desk.stream());
    std::string text;
    try {
      static_cast<void>(allocate(2 * size));
    } catch (const out_of_budget& problem) {
      text = problem.what();
    }
    CHECK(says(text, "there is room, but in pieces"));
    CHECK(says(text,
               "A plan from elsewhere is in its first step: is it of this model and these options?"
               " Raise --device-budget, or run fewer microbatches"));
  }
  engine::release(on);
}

TEST_CASE("refusal: a step that is still open says which of its chunks is, the first of them") {
  rig desk;
  offloader off(desk.dev, arena_options(4 * size));
  step(desk, off);
  {
    const auto first = off.begin({.microbatch = 3});
    const auto second = off.begin({.microbatch = 4});
    CHECK_THROWS_WITH_AS(off.end_step(),
                         doctest::Contains("the chunk of microbatch 3 is still open"),
                         tidepool::misuse_error);
  }
  const auto evaluated = off.begin({.microbatch = 7, .forward_only = true});
  CHECK_THROWS_WITH_AS(off.end_step(),
                       doctest::Contains("the forward_only chunk of microbatch 7 is still open"),
                       tidepool::misuse_error);
}

namespace {

constexpr auto attention = static_cast<tidepool::module_id>(0);

// Chunks of two groups each, 100 and 30 bytes; passes as named.
plan::profile profile_of(std::size_t chunks, const std::vector<plan::pass>& passes) {
  plan::profile result;
  for (std::size_t i = 0; i < chunks; ++i) {
    result.chunks.push_back({0, {{attention, 0, 100}, {attention, 1, 30}}, 0});
  }
  result.passes = passes;
  return result;
}

// Keeps the first group of each chunk.
detail::residency keeping_first(std::size_t chunks) {
  detail::residency keeps({});
  keeps.settle(plan::actions(chunks, {plan::action::keep, plan::action::offload}));
  return keeps;
}

}  // namespace

TEST_CASE("refusal: chunks in flight are those that wait for backward, at most of the step") {
  const auto two_at_once =
      profile_of(3, {{0, false}, {1, false}, {1, true}, {0, true}, {2, false}, {2, true}});
  CHECK(detail::most_kept(two_at_once, keeping_first(3)).chunks == 2);
  const auto in_turn = profile_of(2, {{0, false}, {0, true}, {1, false}, {1, true}});
  CHECK(detail::most_kept(in_turn, keeping_first(2)).chunks == 1);
}

TEST_CASE("refusal: what stays now is what the plan keeps of open chunks and is not restored") {
  const auto planned = profile_of(2, {});
  const auto keeps = keeping_first(2);
  std::array<detail::chunk_state, 2> chunks;
  detail::open_chunks open;
  open.make_room(2);
  for (std::size_t i = 0; i < 2; ++i) {
    chunks[i].start({}, i);
    open.add(chunks[i]);
    for (int l = 0; l < 2; ++l) chunks[i].add(attention, l, 0);
  }
  auto now = detail::kept_now(open, planned, keeps);
  CHECK(now.chunks == 2);
  CHECK(now.bytes == 0);
  chunks[0].groups[0].kept = 1;
  chunks[1].groups[0].kept = 90;  // in part; the plan knows what could have left
  chunks[1].groups[1].kept = 30;  // without the plan's wish
  chunks[1].begin_backward();
  now = detail::kept_now(open, planned, keeps);
  CHECK(now.chunks == 1);
  CHECK(now.bytes == 200);
  open.remove(chunks[0]);
  now = detail::kept_now(open, planned, keeps);
  CHECK(now.chunks == 0);
  CHECK(now.bytes == 100);
}

TEST_CASE("refusal: as much as was planned is as planned, more bytes or more chunks are not") {
  CHECK(detail::against_plan({100, 2}, {100, 2}).empty());
  CHECK(detail::against_plan({99, 1}, {100, 2}).empty());
  CHECK(says(detail::against_plan({101, 2}, {100, 2}),
             "The plan keeps 100 bytes at once and was made of a step with at most 2 chunks in"
             " flight; now 2 are, and 101 bytes stay"));
  CHECK(says(detail::against_plan({100, 3}, {100, 2}), "now 3 are, and 100 bytes stay"));
}

TEST_CASE("shortage: of which nothing else is known, no number is made up") {
  detail::shortage of;
  of.call = "allocate";
  CHECK(in_words(of) ==
        "allocate: 0 bytes of device memory do not fit (the device has no more; 0 bytes reserved,"
        " largest free block 0 bytes) and nothing is in flight to wait for. Live: nothing. Leave "
        "it more"
        " of the device, offload more modules, or run fewer microbatches in flight");
  of.none_leaves = true;
  CHECK(
      says(in_words(of), "name modules to offload (none is: --offload-modules=all), or run fewer"));
}

TEST_CASE("shortage: a slot of just that size is large enough, and none is no size at all") {
  detail::shortage of;
  of.memory = memory_kind::slots;
  of.bytes = 512;
  CHECK(says(in_words(of), "no ring has slots so large, the largest have 0 bytes. Add a ring"));
  of.rings = {{512, 1}};
  CHECK(says(in_words(of), "every slot of at least 512 bytes is taken"));
  of.rings = {{500, 1}};  // as it is rounded up
  CHECK(says(in_words(of), "every slot of at least 512 bytes is taken"));
  of.bytes = 513;
  CHECK(says(in_words(of), "no ring has slots so large"));
}

TEST_CASE("refusal: a count is too large once its bytes pass half of what can be named") {
  constexpr auto most = std::numeric_limits<std::size_t>::max() / 2;
  CHECK(detail::bytes_of(most, 1) == most);
  CHECK(detail::bytes_of(most / 8, 8) == most / 8 * 8);
  CHECK_THROWS_AS(static_cast<void>(detail::bytes_of(most / 8 + 1, 8)), tidepool::misuse_error);
  CHECK_THROWS_AS(static_cast<void>(detail::bytes_of(most + 1, 1)), tidepool::misuse_error);
}

TEST_CASE("refusal: memory that is laid out otherwise names the first tensor that has moved") {
  int there = 0;
  const detail::memory_layout wanted{{1, &there, nullptr, 100}, {2, &there + 1, nullptr, 200}};
  auto found = wanted;
  found[1].device = nullptr;
  CHECK(says(detail::difference(wanted, found), "a tensor of 200 bytes was on the device at "));
  found.pop_back();
  CHECK(says(detail::difference(wanted, found), "200 bytes"));
  CHECK(says(detail::difference(wanted, found), "and is not now: it has gone"));
  CHECK(says(detail::difference(found, wanted), "a tensor is alive that was not"));
}
