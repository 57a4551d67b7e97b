// Memory that is zeroed or poisoned when it is handed out, and chunks that release at each commit.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"

namespace {

using tidepool::fill;
using tidepool::fixed_block;
using tidepool::join_site;
using tidepool::machine;
using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t size = 1024;

// Counts the bytes that are not `byte`, when the device comes to it.
void count_other(rig& desk, const void* data, unsigned char byte, std::size_t& others,
                 rig::stream_ref on, std::size_t bytes = size) {
  desk.dev.launch(on, 100, [=, &others] {
    const auto* const at = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) others += at[i] == byte ? 0 : 1;
  });
}

// One block, over and over.
options one_block() {
  auto opts = arena_options(size);
  opts.poison = true;
  return opts;
}

}  // namespace

TEST_CASE("fill: zeros come behind the last user of the memory, in every order") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = seed % 2 == 0, .order_seed = seed});
    auto other = desk.dev.make_stream();
    offloader off(desk.dev, arena_options(size));
    std::size_t not_zero = 0;
    for (std::uint32_t round = 0; round < 4; ++round) {
      const auto on = round % 2 == 0 ? desk.stream() : other.ref();
      auto x = off.allocate(size, on, fill::zero);
      count_other(desk, x.data(), 0, not_zero, on);
      desk.write_bytes(x.data(), size, round, on);
      x.reset(on);
    }
    desk.dev.synchronize();
    CHECK(not_zero == 0);
  }
}

TEST_CASE("fill: without it memory is as it was left, and elements count as without") {
  rig desk(machine{.poison = false});
  offloader off(desk.dev, arena_options(size));
  std::size_t not_zero = 0;
  auto x = off.allocate<float>(size / sizeof(float), desk.stream());
  desk.write(x, 1);
  x.reset(desk.stream());
  x = off.allocate<float>(size / sizeof(float), desk.stream());
  count_other(desk, x.data(), 0, not_zero, desk.stream());
  x.reset(desk.stream());
  desk.dev.synchronize();
  CHECK(not_zero > size / 2);
  x = off.allocate<float>(size / sizeof(float), desk.stream(), fill::zero);
  not_zero = 0;
  count_other(desk, x.data(), 0, not_zero, desk.stream());
  desk.dev.synchronize();
  CHECK(not_zero == 0);
  CHECK(x.size() == size);
}

TEST_CASE("fill: zeros that nobody waited for do not come late into another's memory") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = false, .order_seed = seed});
    auto other = desk.dev.make_stream();
    offloader off(desk.dev, arena_options(size));
    auto x = off.allocate(size, desk.stream(), fill::zero);
    x.reset(other.ref());  // nobody touched it
    auto y = off.allocate(size, other.ref());
    desk.write_bytes(y.data(), size, 3, other.ref());
    desk.check_rows(y.data(), {size, 1, size, 0}, 3, 0, other.ref());
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("fill: what was allocated zeroed is zeroed when it is to be computed again") {
  rig desk(machine{.poison = false});
  auto opts = arena_options(size, {"none"});
  opts.recompute_modules = {"layernorm"};
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  auto pass = off.begin();
  auto x = off.allocate(size, desk.stream(), fill::zero);
  desk.write(x, 1);
  pass.commit_or_discard<"layernorm">(0, desk.stream(), x);
  auto y = off.allocate(size, desk.stream());
  desk.write(y, 2);
  y.reset(desk.stream());
  pass.end_forward();
  std::size_t not_zero = 0;
  pass.restore_or_recompute<"layernorm">(
      0, desk.stream(), [&] { count_other(desk, x.data(), 0, not_zero, desk.stream()); }, x);
  x.reset(desk.stream());
  pass.finish();
  desk.dev.synchronize();
  CHECK(not_zero == 0);
}

TEST_CASE("fill: what a plan discards comes back zeroed to who computes it again") {
  rig desk(machine{.poison = false});
  tidepool::test::planning<offloader> off(desk.dev, small_options());
  off.on_report([](std::string_view) {});
  tidepool::plan::profile step;
  step.modules = {"core_attn", "expert_fc1"};
  step.passes = {{0, false}, {0, true}};
  step.chunks.emplace_back().groups.push_back({tidepool::module_id{0}, 0, size, 1.0});
  tidepool::plan::step_plan made;
  made.what = {{tidepool::plan::action::recompute}};
  off.follow(made, step);
  auto pass = off.begin();
  auto x = off.allocate(size, desk.stream(), fill::zero);
  desk.write(x, 1);
  pass.commit_or_discard<"core_attn">(0, desk.stream(), x);
  std::vector<rig::buffer> others;
  for (std::uint32_t i = 0; i < 20; ++i) {
    others.push_back(off.allocate(size, desk.stream()));
    desk.write(others.back(), i);
  }
  for (auto& each : others) each.reset(desk.stream());
  pass.end_forward();
  std::size_t not_zero = 0;
  bool called = false;
  pass.restore_or_recompute<"core_attn">(
      0, desk.stream(),
      [&] {
        called = true;
        count_other(desk, x.data(), 0, not_zero, desk.stream());
      },
      x);
  x.reset(desk.stream());
  pass.finish();
  desk.dev.synchronize();
  CHECK(called);
  CHECK(not_zero == 0);
}

TEST_CASE("fill: inside a graph zeros are written at every launch") {
  rig desk(machine{.poison = false});
  offloader off(desk.dev, small_options());
  std::size_t not_zero = 0;
  const auto step = [&] {
    auto pass = off.begin();
    auto x = off.allocate(size, desk.stream(), fill::zero);
    count_other(desk, x.data(), 0, not_zero, desk.stream());
    desk.write(x, 5);
    pass.commit<"core_attn">(0, desk.stream(), x);
    pass.end_forward();
    pass.restore<"core_attn">(0, desk.stream(), x);
    desk.check(x, 5);
    x.reset(desk.stream());
    pass.finish();
    off.end_step();
  };
  off.on_report([](std::string_view) {});
  step();
  auto graph = off.capture(desk.stream(), step);
  for (int i = 0; i < 3; ++i) graph.launch(desk.stream());
  CHECK(desk.wrong() == 0);
  CHECK(not_zero == 0);
}

TEST_CASE("poison: memory is filled when it is handed out and when it is given back") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = false, .order_seed = seed});
    auto other = desk.dev.make_stream();
    offloader off(desk.dev, one_block());
    std::size_t clean = 0;
    auto x = off.allocate(size, desk.stream());
    auto* const place = x.data();
    count_other(desk, place, 0xFF, clean, desk.stream());
    desk.write(x, 1);
    auto mine = x.share();
    desk.check(x, 1);
    x.reset(desk.stream());
    mine.reset(other.ref());
    count_other(desk, place, 0xFF, clean, other.ref());  // stale: it was given back
    CHECK(desk.wrong() == 0);
    CHECK(clean == 0);
  }
}

TEST_CASE("poison: who gets the memory next, on another stream, comes behind its filling") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = false, .order_seed = seed});
    auto other = desk.dev.make_stream();
    offloader off(desk.dev, one_block());
    for (std::uint32_t round = 0; round < 4; ++round) {
      const auto on = round % 2 == 0 ? desk.stream() : other.ref();
      auto x = off.allocate(size, on);
      desk.write_bytes(x.data(), size, round, on);
      desk.check_rows(x.data(), {size, 1, size, 0}, round, 0, on);
      x.reset(on);
    }
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("poison: what stayed, and is given back on another stream, goes behind its filling") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = false, .order_seed = seed});
    auto other = desk.dev.make_stream();
    auto opts = one_block();
    opts.min_tensor_elements = size + 1;
    offloader off(desk.dev, opts);
    const auto busy = [&](rig::stream_ref on) {
      for (int i = 0; i < 16; ++i) desk.dev.launch(on, 100, [] {});
    };
    auto pass = off.begin();
    busy(other.ref());  // so that the filling there may be late
    auto x = off.allocate(size, other.ref());
    pass.commit<"core_attn">(0, other.ref(), x);
    pass.end_forward();
    pass.restore<"core_attn">(0, other.ref(), x);
    x.reset(desk.stream());
    auto next = off.allocate(size, desk.stream());
    desk.write(next, 7);
    busy(desk.stream());
    desk.check(next, 7);
    CHECK(desk.wrong() == 0);
    pass.finish();
  }
}

TEST_CASE("poison: it is behind the copy of what leaves, and bits stay as they are") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = false, .order_seed = seed});
    auto opts = small_options();
    opts.poison = true;
    offloader off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    for (int step = 0; step < 3; ++step) {
      auto pass = off.begin();
      std::vector<rig::buffer> saved(5);
      const void* stale = nullptr;
      for (std::uint32_t l = 0; l < 5; ++l) {
        saved[l] = off.allocate(size, desk.stream());
        desk.write(saved[l], l);
        stale = saved[l].data();
        pass.commit<"core_attn">(static_cast<int>(l), desk.stream(), saved[l]);
      }
      pass.end_forward();
      for (std::uint32_t l = 5; l-- > 0;) {
        pass.restore<"core_attn">(static_cast<int>(l), desk.stream(), saved[l]);
        desk.check(saved[l], l);
        stale = saved[l].data();
        saved[l].reset(desk.stream());
        std::size_t clean = 0;
        count_other(desk, stale, 0xFF, clean, desk.stream());
        desk.dev.synchronize();
        CHECK(clean == 0);
      }
      pass.finish();
      off.end_step();
    }
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("poison: a block of the trainer's own is not filled once it went back") {
  rig desk(machine{.poison = false});
  void* const memory = desk.dev.allocate(size);
  {
    fixed_block source(memory, size);
    auto opts = small_options();
    opts.poison = true;
    offloader off(desk.dev, opts);
    auto x = off.allocate_from(source, size, desk.stream());
    desk.write(x, 4);
    x.reset(desk.stream());
    desk.check_rows(memory, {size, 1, size, 0}, 4, 0, desk.stream());
    CHECK(desk.wrong() == 0);
  }
  desk.dev.deallocate(memory);
}

TEST_CASE("poison: a pass that is given up behind a launch is filled behind it") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = false, .order_seed = seed});
    offloader off(desk.dev, one_block());
    off.on_report([](std::string_view) {});
    offloader::chunk pass;
    const void* here = nullptr;
    rig::buffer x;
    const auto forward = [&] {
      pass = off.begin();
      x = off.allocate(size, desk.stream());
      here = x.data();
      desk.write(x, 1);
      pass.commit<"core_attn">(0, desk.stream(), x);
      pass.end_forward();  // it comes back ahead of its use
    };
    forward();
    pass.restore<"core_attn">(0, desk.stream(), x);
    x.reset(desk.stream());
    pass.finish();
    off.end_step();
    auto graph = off.capture(desk.stream(), forward);
    graph.launch(desk.stream());
    pass = {};
    desk.dev.synchronize();
    std::size_t others = 0;
    count_other(desk, here, 0xFF, others, desk.stream());
    desk.dev.synchronize();
    CHECK(others == 0);
  }
}

TEST_CASE("poison: what only a capture made is not filled before its graph has run") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = false, .order_seed = seed});
    offloader off(desk.dev, one_block());
    off.on_report([](std::string_view) {});
    rig::buffer first;
    rig::buffer second;
    const auto write_first = [&] {
      first = off.allocate(size, desk.stream());
      desk.write(first, 1);
    };
    const auto replace_first = [&] {
      auto pass = off.begin();
      desk.check(first, 1);
      pass.commit<"core_attn">(0, desk.stream(), first);
      pass.end_forward();
      pass.restore<"core_attn">(0, desk.stream(), first);
      first.reset(desk.stream());
      pass.finish();
      second = off.allocate(size, desk.stream());
      desk.write(second, 2);
    };
    write_first();
    replace_first();
    second.reset(desk.stream());
    off.end_step();
    auto writes = off.capture(desk.stream(), write_first);
    writes.launch(desk.stream());
    auto replaces = off.capture(desk.stream(), replace_first);
    second.reset(desk.stream());
    replaces.launch(desk.stream());
    desk.dev.synchronize();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("poison: memory whose filling is refused is not there, and is asked for again") {
  rig desk(machine{.poison = false});
  auto opts = small_options();
  opts.poison = true;
  offloader off(desk.dev, opts);
  auto pass = off.begin();
  std::vector<rig::buffer> x;
  for (std::uint32_t l = 0; l < 2; ++l) {
    x.push_back(off.allocate(size, desk.stream()));
    desk.write(x.back(), l);
    pass.commit<"core_attn">(static_cast<int>(l), desk.stream(), x.back());
  }
  desk.dev.before_fill = [] { throw tidepool::device_error("fill_bytes", 1); };
  CHECK_NOTHROW(pass.end_forward());  // reloads ahead of their use are given up
  CHECK_THROWS_AS(static_cast<void>(off.allocate(size, desk.stream())), tidepool::device_error);
  CHECK_THROWS_AS(pass.restore<"core_attn">(1, desk.stream(), x[1]), tidepool::device_error);
  desk.dev.before_fill = nullptr;
  for (std::uint32_t l = 2; l-- > 0;) {
    pass.restore<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
    desk.check(x[l], l);
    x[l].reset(desk.stream());
  }
  pass.finish();
  CHECK(desk.wrong() == 0);
  CHECK(off.counters().live_peak == 2 * size);
}

TEST_CASE("poison: where filling is refused, the memory stays behind what had filled it before") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.poison = false, .order_seed = seed});
    auto opts = arena_options(2 * size);
    opts.poison = true;
    offloader off(desk.dev, opts);
    auto pass = off.begin();
    for (std::uint32_t l = 0; l < 2; ++l) {
      auto x = off.allocate(size, desk.stream());
      desk.write(x, l);
      pass.commit<"core_attn">(static_cast<int>(l), desk.stream(), x);
    }
    // The reload ahead has joined the offload stream, which the compute stream has not.
    desk.dev.before_fill = [] { throw tidepool::device_error("fill_bytes", 1); };
    CHECK_NOTHROW(pass.end_forward());
    desk.dev.before_fill = nullptr;
    pass = {};
    auto next = off.allocate(size, desk.stream());
    desk.write(next, 7);
    desk.dev.launch(desk.stream(), 9000, [] {});
    desk.check(next, 7);
    desk.dev.synchronize();
    CHECK(desk.wrong() == 0);
    next.reset(desk.stream());
  }
}

TEST_CASE("release: a commit gives memory back, whether its module leaves or not") {
  for (const auto& opts : {arena_options(2 * size), arena_options(2 * size, {"none"})}) {
    rig desk;
    offloader off(desk.dev, opts);
    auto pass = off.begin({.microbatch = 4, .forward_only = true, .release = true});
    for (std::uint32_t l = 0; l < 9; ++l) {
      auto x = off.allocate(size, desk.stream());
      auto small = off.allocate(size / 2, desk.stream());
      small.keep_resident();
      desk.write(x, l);
      desk.check(x, l);
      pass.commit<"core_attn">(static_cast<int>(l), desk.stream(), x, small);
      CHECK_FALSE(x);
      CHECK_FALSE(small);
      CHECK(says(message_of([&] { static_cast<void>(x.data()); }),
                 "the commit of core_attn of layer " + std::to_string(l)));
      const auto refused = message_of(
          [&] { pass.restore<"core_attn">(static_cast<int>(l), desk.stream(), x, small); });
      CHECK(says(refused, "microbatch 4: its commit released it"));
      CHECK(says(message_of([&] {
                   pass.restore_or_recompute<"core_attn">(
                       static_cast<int>(l), desk.stream(), [] {}, x, small);
                 }),
                 "its commit released it"));
      CHECK(says(message_of([&] { pass.commit<"core_attn">(0, desk.stream(), x); }),
                 "argument 1 holds no memory"));
    }
    pass.end_forward();
    pass.finish();
    CHECK(desk.wrong() == 0);
    CHECK(desk.dev.offloads() + desk.dev.reloads() == 0);
    CHECK(off.counters().modules[0].groups == 0);
  }
}

TEST_CASE("release: what another handle holds stays, and by hand nothing is released") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto pass = off.begin({.forward_only = true, .release = true});
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  auto mine = x.share();
  auto part = x.view({.width = 64, .rows = 4, .pitch = 128});
  pass.commit<"core_attn">(0, desk.stream(), x, part);
  CHECK_FALSE(part);
  desk.check(mine, 1);
  pass.start_offload<"expert_fc1">(0, desk.stream(), mine);
  pass.start_reload<"expert_fc1">(0);
  desk.check(mine, 1);
  CHECK(says(message_of([&] { pass.commit<"expert_fc1">(0, desk.stream(), mine, mine); }),
             "argument 2 is given twice"));
  pass.commit<"expert_fc1">(0, desk.stream(), mine);
  pass.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("release: it goes with forward_only alone") {
  rig desk;
  offloader off(desk.dev, small_options());
  CHECK(says(message_of([&] { static_cast<void>(off.begin({.microbatch = 2, .release = true})); }),
             "begin of microbatch 2: release gives up at each commit what backward needs"));
  auto open = off.begin({.microbatch = 3, .forward_only = true, .release = true});
  CHECK(open.info().microbatch == 3);
  CHECK(open.info().release);
  open.finish();
  CHECK_FALSE(open.info().release);
}

TEST_CASE("release: in every order nobody writes into memory that a pass still reads") {
  for (const bool left_out : {false, true}) {
    int wrong = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      rig desk(machine{.order_seed = seed});
      auto other = desk.dev.make_stream();
      offloader off(desk.dev, arena_options(2 * size));
      if (left_out) desk.dev.leave_out(join_site::device_reuse);
      for (int pass_number = 0; pass_number < 3; ++pass_number) {
        auto pass = off.begin({.forward_only = true, .release = true});
        for (std::uint32_t l = 0; l < 4; ++l) {
          const auto on = l % 2 == 0 ? desk.stream() : other.ref();
          auto x = off.allocate(size, on);
          desk.write_bytes(x.data(), size, l, on);
          desk.check_rows(x.data(), {size, 1, size, 0}, l, 0, on);
          pass.commit<"core_attn">(static_cast<int>(l), on, x);
        }
        pass.finish();
      }
      wrong += desk.wrong() == 0 ? 0 : 1;
    }
    CHECK((wrong > 0) == left_out);
  }
}

TEST_CASE("lists: handles whose number is known at run time") {
  rig desk;
  offloader off(desk.dev, small_options());
  off.on_report([](std::string_view) {});
  auto pass = off.begin();
  std::vector<rig::buffer> saved;
  std::vector<rig::handle*> list;
  for (std::uint32_t i = 0; i < 3; ++i) {
    saved.push_back(off.allocate(size, desk.stream()));
    desk.write(saved.back(), i);
  }
  for (auto& each : saved) list.push_back(&each);
  const auto id = off.module("core_attn");
  pass.commit(id, 0, desk.stream(), std::span<rig::handle* const>(list));
  CHECK_FALSE(saved[2]);
  CHECK(off.counters().modules[0].tensors_offloaded == 3);
  pass.restore<"core_attn">(0, desk.stream(), saved[0], saved[1], saved[2]);
  for (std::uint32_t i = 0; i < 3; ++i) {
    desk.check(saved[i], i);
    saved[i].reset(desk.stream());
  }
  pass.finish();
  CHECK(desk.wrong() == 0);
}
