// Edges of packing: odd pieces, host blocks of failed commits, budgets, discarded tensors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "codec/bf16_tensors.hpp"
#include "packing_desk.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/codec/pack_form.hpp"
#include "tidepool/error.hpp"
#include "tidepool/memory/stream_memory.hpp"

namespace {

using tidepool::aligned;
using tidepool::test::arena_options;
using tidepool::test::bf16_kind;
using tidepool::test::packing;
using tidepool::test::rig;
using tidepool::test::small_machine;
using desk = tidepool::test::packing_desk;
using tidepool::test::small_options;
namespace pack_form = tidepool::pack_form;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t numbers = 5'000;  // with a tail
constexpr std::size_t bytes = 2 * numbers;

}  // namespace

TEST_CASE("packing: the last piece of a tensor fits the memory through which it comes back") {
  constexpr std::size_t piece = tidepool::test::small_piece;
  for (const std::size_t less : {0U, 2U, 286U, 288U, 1024U}) {
    CAPTURE(less);
    const std::size_t large = 2 * piece - less;
    auto model = small_machine();
    model.pack_piece = piece;
    desk on(model);
    // Room for the tensor, its packed form, and a little more.
    auto opts = packing(arena_options(6 * piece));
    opts.host_step = 4 * piece;
    opts.host_budget = 4 * piece;
    opts.reload_ahead = 0;
    offloader off(on.dev, opts);
    auto pass = off.begin();
    auto x = off.allocate<tidepool::test::bf16_number>(large / 2, on.stream());
    on.write_numbers(x, bf16_kind::random, 3, on.stream());
    pass.commit<"core_attn">(0, on.stream(), x);
    pass.end_forward();
    // Small tensors fill the arena; then there is room for the tensor, and for one packed piece or
    // two.
    constexpr std::size_t small = piece / 16;
    std::vector<rig::buffer> all;
    const auto fill = [&] {
      try {
        for (;;) on.write(all.emplace_back(off.allocate(small, on.stream())), 7);
      } catch (const tidepool::out_of_budget&) {
      }
    };
    fill();
    std::ranges::sort(all, {}, [](const rig::buffer& each) { return each.data(); });
    const auto free = [&](std::size_t count) {
      for (std::size_t i = 0; i + count < all.size(); ++i) {
        const auto* const at = static_cast<const std::byte*>(all[i].data());
        if (all[i + count].data() != at + count * small) continue;
        for (std::size_t k = 0; k < count; ++k) all[i + k].reset(on.stream());
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(i),
                  all.begin() + static_cast<std::ptrdiff_t>(i + count));
        return true;
      }
      return false;
    };
    REQUIRE(free(less == 288 ? 24 : 12));
    REQUIRE(free(2 * piece / small));
    pass.restore<"core_attn">(0, on.stream(), x);
    on.check_numbers(x, bf16_kind::random, 3, on.stream());
    for (const auto& each : all) on.check(each, 7);
    CHECK(on.wrong() == 0);  // words of other tensors
    CHECK(on.wrong_tensors == 0);
    for (auto& each : all) each.reset(on.stream());
    x.reset(on.stream());
    pass.finish();
  }
}

TEST_CASE("packing: a host block that an unpacked commit leaves again is not packed into early") {
  for (const bool state : {false, true}) {
    CAPTURE(state);
    auto model = small_machine();
    model.reload_rate = 0.5;  // the reload reads the block for long
    desk on(model);
    auto side = on.dev.make_stream();
    auto opts = packing(small_options());
    opts.offload_modules = {"core_attn", "expert_fc1"};
    opts.host_step = 256;
    opts.host_budget = aligned(pack_form::host_bytes(bytes));  // of one tensor
    offloader off(on.dev, opts);
    auto first = off.begin();
    auto x = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
    on.write_numbers(x, bf16_kind::random, 1, on.stream());
    first.commit<"core_attn">(0, on.stream(), x);
    first.restore<"core_attn">(0, on.stream(), x);
    on.check_numbers(x, bf16_kind::random, 1, on.stream());
    auto second = off.begin();
    if (state) {
      const auto gone = off.state_on_host(bytes, "state");
    } else {
      auto y = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
      auto z = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
      CHECK_THROWS_AS((second.commit<"expert_fc1">(0, on.stream(), y, z)), tidepool::out_of_budget);
      y.reset(on.stream());
      z.reset(on.stream());
    }
    // Another stream, which waited for nothing, packs a tensor into the same block.
    auto other = off.allocate<tidepool::test::bf16_number>(numbers, side.ref());
    on.write_numbers(other, bf16_kind::one_far, 9, side.ref());
    second.commit<"core_attn">(1, side.ref(), other);
    static_cast<void>(on.wrong());
    CHECK(on.wrong_tensors == 0);
    second.restore<"core_attn">(1, side.ref(), other);
    on.check_numbers(other, bf16_kind::one_far, 9, side.ref());
    static_cast<void>(on.wrong());
    CHECK(on.wrong_tensors == 0);
    x.reset(on.stream());
    other.reset(side.ref());
    first.finish();
    second.finish();
  }
}

TEST_CASE("packing: packed blocks of a group together keep the budget of an allocator's memory") {
  desk on(small_machine());
  std::size_t held = 0;
  std::size_t peak = 0;
  std::vector<std::pair<void*, std::size_t>> sizes;
  auto opts = packing(small_options());
  constexpr std::size_t count = 4;
  const auto link = aligned(pack_form::packed_bytes(bytes));
  opts.device_budget = count * bytes + link;  // room for one packed block
  {
    offloader off(on.dev, opts,
                  {.memory = tidepool::memory_on<rig::device_type>(
                       on.stream(),
                       [&](std::size_t b) {
                         held += b;
                         peak = std::max(peak, held);
                         return on.dev.try_allocate(b);
                       },
                       [&](void* p, std::size_t b) {
                         held -= b;
                         on.dev.deallocate(p);
                       })});
    auto pass = off.begin();
    std::vector<rig::buffer> all;
    for (std::size_t i = 0; i < count; ++i) {
      auto& x = all.emplace_back(off.allocate<tidepool::test::bf16_number>(numbers, on.stream()));
      on.write_numbers(x, bf16_kind::gauss, i, on.stream());
    }
    pass.commit<"core_attn">(0, on.stream(), all[0], all[1], all[2], all[3]);
    pass.restore<"core_attn">(0, on.stream(), all[0], all[1], all[2], all[3]);
    for (std::size_t i = 0; i < count; ++i) {
      on.check_numbers(all[i], bf16_kind::gauss, i, on.stream());
      all[i].reset(on.stream());
    }
    static_cast<void>(on.wrong());
    CHECK(on.wrong_tensors == 0);
    CHECK(off.counters().budget_exceeded == 0);
    pass.finish();
  }
  CHECK(peak <= count * aligned(bytes) + link);
}

TEST_CASE("packing: a reload ahead takes no memory before there is room for the packed form, too") {
  constexpr std::size_t layers = 12;
  for (const std::size_t tensors : {3, 4, 5}) {
    CAPTURE(tensors);
    desk on(small_machine());
    auto opts = packing(small_options());
    opts.reload_ahead = 4;
    opts.device_budget = tensors * aligned(bytes);
    std::size_t taken = 0;
    offloader off(on.dev, opts,
                  {.memory = tidepool::memory_on<rig::device_type>(
                       on.stream(),
                       [&](std::size_t b) {
                         taken += b == aligned(bytes) ? 1 : 0;
                         return on.dev.try_allocate(b);
                       },
                       [&](void* p) { on.dev.deallocate(p); })});
    auto pass = off.begin();
    std::vector<rig::buffer> all;
    for (std::size_t l = 0; l < layers; ++l) {
      auto& x = all.emplace_back(off.allocate<tidepool::test::bf16_number>(numbers, on.stream()));
      on.write_numbers(x, bf16_kind::gauss, l, on.stream());
      pass.commit<"core_attn">(static_cast<int>(l), on.stream(), x);
    }
    pass.end_forward();
    for (std::size_t l = layers; l-- > 0;) {
      pass.restore<"core_attn">(static_cast<int>(l), on.stream(), all[l]);
      on.check_numbers(all[l], bf16_kind::gauss, l, on.stream());
      all[l].reset(on.stream());
    }
    pass.finish();
    static_cast<void>(on.wrong());
    CHECK(on.wrong_tensors == 0);
    CHECK(taken == 2 * layers);  // each tensor once in forward, and once in backward
  }
}

TEST_CASE("packing: an allocator that drops a handle starts no reload in the middle of a commit") {
  desk on(small_machine());
  const auto link = aligned(pack_form::packed_bytes(bytes));
  auto opts = packing(small_options());
  opts.reload_ahead = 1;
  opts.device_budget = 3 * aligned(bytes) + 3 * link;
  std::size_t to_drop = 0;  // the request at which the handle goes
  rig::buffer held;
  offloader off(on.dev, opts,
                {.memory = tidepool::memory_on<rig::device_type>(
                     on.stream(),
                     [&](std::size_t b) {
                       if (to_drop > 0 && --to_drop == 0) held.reset(on.stream());
                       return on.dev.try_allocate(b);
                     },
                     [&](void* p) { on.dev.deallocate(p); })});
  const auto fresh = [&](std::uint64_t seed) {
    auto x = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
    on.write_numbers(x, bf16_kind::gauss, seed, on.stream());
    return x;
  };
  auto first = off.begin();
  auto a = fresh(1);
  first.commit<"core_attn">(0, on.stream(), a);
  held = off.allocate(bytes, on.stream());
  auto x = fresh(2);
  auto y = fresh(3);
  on.dev.synchronize();
  {
    const auto more = off.allocate(2 * link, on.stream());
    first.end_forward();  // finds no room for a reload ahead
  }
  auto second = off.begin({.microbatch = 1});
  to_drop = 2;  // for the second packed block
  second.commit<"core_attn">(0, on.stream(), x, y);
  CHECK_FALSE(held);
  CHECK(off.counters().modules[0].bytes_packed == 3 * bytes);
  CHECK(off.counters().modules[0].bytes_reloaded == 0);
  second.restore<"core_attn">(0, on.stream(), x, y);
  first.restore<"core_attn">(0, on.stream(), a);
  for (auto* each : {&a, &x, &y}) {
    const std::uint64_t seed = each == &a ? 1 : each == &x ? 2 : 3;
    on.check_numbers(*each, bf16_kind::gauss, seed, on.stream());
    each->reset(on.stream());
  }
  CHECK(on.wrong_numbers() == 0);
  first.finish();
  second.finish();
}

TEST_CASE("packing: a tensor that was packed once does not count when it is discarded later") {
  using tidepool::plan::action;
  tidepool::plan::profile step;
  step.modules = {"core_attn", "expert_fc1"};
  step.passes = {{0, false}, {0, true}, {1, false}, {1, true}};
  step.chunks.push_back({0, {{tidepool::module_id{0}, 0, bytes}}, 0});
  step.chunks.push_back({0, {{tidepool::module_id{1}, 0, bytes, 1.0}}, 1});
  tidepool::plan::step_plan made;
  made.what = {{action::offload}, {action::recompute}};
  desk on(small_machine());
  auto opts = arena_options(4 * aligned(bytes));
  opts.pack = {"all"};
  tidepool::test::planning<offloader> off(on.dev, opts);
  off.follow(made, step);
  auto x = off.allocate<tidepool::test::bf16_number>(numbers, on.stream());
  on.write_numbers(x, bf16_kind::gauss, 1, on.stream());
  auto first = off.begin();
  first.commit<"core_attn">(0, on.stream(), x);
  first.restore<"core_attn">(0, on.stream(), x);
  first.finish();
  auto second = off.begin({.microbatch = 1});
  second.commit_or_discard<"expert_fc1">(0, on.stream(), x);
  REQUIRE(second.will_recompute<"expert_fc1">(0));
  second.restore_or_recompute<"expert_fc1">(
      0, on.stream(), [&] { on.write_numbers(x, bf16_kind::gauss, 1, on.stream()); }, x);
  x.reset(on.stream());
  second.finish();
  off.end_step();
  CHECK(off.counters().modules[0].bytes_packed == bytes);
  CHECK(off.counters().modules[1].bytes_offloaded == 0);
  CHECK(off.counters().modules[1].bytes_packed == 0);
  CHECK(off.counters().modules[1].bytes_on_link == 0);
}

TEST_CASE("packing: a tensor that a name discards holds BF16 numbers when it is computed again") {
  desk on(small_machine());
  auto opts = packing(small_options());
  opts.recompute_modules = {"layernorm"};
  offloader off(on.dev, opts);
  auto x = off.allocate(bytes, on.stream());
  x.holds_bfloat16();
  const auto write = [&] { on.write_numbers(x, bf16_kind::gauss, 1, on.stream()); };
  write();
  auto pass = off.begin();
  pass.commit_or_discard("layernorm", 0, on.stream(), x);
  pass.end_forward();
  pass.restore_or_recompute("layernorm", 0, on.stream(), write, x);
  pass.finish();
  auto next = off.begin({.microbatch = 1});
  next.commit<"core_attn">(0, on.stream(), x);
  next.restore<"core_attn">(0, on.stream(), x);
  on.check_numbers(x, bf16_kind::gauss, 1, on.stream());
  CHECK(on.wrong_numbers() == 0);
  CHECK(off.counters().modules[0].bytes_packed == bytes);
  x.reset(on.stream());
  next.finish();
}

TEST_CASE("packing: a chunk that outlives its offloader unpacks, also what another chunk shares") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    auto model = small_machine();
    model.order_seed = seed;
    desk on(model);
    offloader::chunk first, second;
    rig::buffer x, shared;
    {
      offloader off(on.dev, packing(small_options()));
      x = off.allocate(bytes, on.stream());
      x.holds_bfloat16();
      on.write_numbers(x, bf16_kind::gauss, 1, on.stream());
      shared = x.share();
      first = off.begin();
      second = off.begin({.microbatch = 1});
      first.commit<"core_attn">(0, on.stream(), x);
      second.commit<"expert_fc1">(0, on.stream(), shared);
      CHECK(off.counters().modules[0].bytes_packed == bytes);
    }
    second.restore<"expert_fc1">(0, on.stream(), shared);
    on.check_numbers(shared, bf16_kind::gauss, 1, on.stream());
    shared.reset(on.stream());
    first.restore<"core_attn">(0, on.stream(), x);
    on.check_numbers(x, bf16_kind::gauss, 1, on.stream());
    x.reset(on.stream());
    first.finish();
    second.finish();
    CHECK(on.wrong_numbers() == 0);
    CHECK(on.dev.device_held + on.dev.host_held == 0);
  }
}

TEST_CASE("packing: a device whose pieces would share spill is refused") {
  for (const std::size_t piece : {std::size_t{0}, std::size_t{24} << 10}) {
    auto model = small_machine();
    model.pack_piece = piece;
    desk on(model);
    CHECK_THROWS_WITH_AS(offloader(on.dev, packing(small_options())),
                         doctest::Contains("must return a multiple of 16384"),
                         tidepool::option_error);
  }
}

TEST_CASE(
    "packing: a reload does without a second block where the pool would have to grow for it") {
  using tidepool::test::small_piece;
  auto model = small_machine();
  model.pack_piece = small_piece;
  desk on(model);
  constexpr std::size_t large = 2 * small_piece;
  constexpr std::size_t half = pack_form::packed_bytes(small_piece);
  constexpr std::size_t last = 5 * small_piece / 2;  // no larger as a pool rounds it
  auto opts = packing(small_options());
  opts.offload_modules = {"core_attn", "expert_fc1"};
  opts.device_step = 256;
  opts.reload_ahead = 0;
  // Room for the tensor, its packed form, a small tensor, and a last one.
  opts.device_budget = large + 2 * half + 256 + last;
  offloader off(on.dev, opts);
  off.on_report({});
  // A graph knows the pool's addresses, so that no region goes back.
  off.begin().finish();
  off.end_step();
  const auto graph = off.capture(on.stream(), [] {});
  auto pass = off.begin();
  auto small = off.allocate(256, on.stream());
  on.write(small, 2);
  auto x = off.allocate<tidepool::test::bf16_number>(large / 2, on.stream());
  on.write_numbers(x, bf16_kind::one_far, 1);
  pass.commit<"core_attn">(0, on.stream(), x);
  pass.commit<"expert_fc1">(0, on.stream(), small);
  // Behind this reload the packed form has left, and half of its room is taken.
  pass.restore<"expert_fc1">(0, on.stream(), small);
  auto held = off.allocate(half, on.stream());
  pass.restore<"core_attn">(0, on.stream(), x);
  on.check_numbers(x, bf16_kind::one_far, 1);
  on.check(small, 2);
  CHECK(on.dev.bytes[static_cast<std::size_t>(tidepool::copy_direction::host_to_device)] ==
        2 * half + 256);  // no kernel reads host memory instead
  rig::buffer more;
  CHECK_NOTHROW(more = off.allocate(last, on.stream()));
  CHECK(on.wrong() == 0);
  CHECK(on.wrong_numbers() == 0);
  for (auto* each : {&x, &small, &held, &more}) each->reset(on.stream());
  pass.finish();
}
