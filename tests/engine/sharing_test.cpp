// One storage behind several handles is copied once, and lives as long as somebody needs it.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = tidepool::test::planning<
    rig::offloader<tidepool::modules<"core_attn", "expert_fc1", "moe_act">>>;

constexpr std::size_t size = 4096;

std::uint64_t bytes_offloaded(const offloader& off) {
  std::uint64_t sum = 0;
  for (const auto& each : off.counters().modules) sum += each.bytes_offloaded;
  return sum;
}

}  // namespace

TEST_CASE("sharing: a share is another handle to the same memory") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto x = off.allocate(size, desk.stream());
  auto y = x.share();
  CHECK(y.data() == x.data());
  CHECK(y.size() == size);
  desk.write(x, 1);
  x.reset(desk.stream());
  CHECK_FALSE(x);
  desk.check(y, 1);
  CHECK(desk.wrong() == 0);
  const rig::buffer empty;
  CHECK_FALSE(empty.share());
}

TEST_CASE("sharing: saved twice in one group it is copied once, and both handles come back") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = x.share();
  desk.write(x, 7);
  open.commit<"core_attn">(0, desk.stream(), x, y);
  CHECK_FALSE(x);
  CHECK_FALSE(y);
  CHECK(desk.dev.offloads() == 1);
  CHECK(off.counters().modules[0].bytes_offloaded == size);
  CHECK(off.counters().modules[0].tensors_offloaded == 1);
  CHECK(off.counters().modules[0].tensors_shared == 1);
  open.restore<"core_attn">(0, desk.stream(), x, y);
  CHECK(desk.dev.reloads() == 1);
  CHECK(x.data() == y.data());
  desk.check(x, 7);
  x.reset(desk.stream());
  desk.check(y, 7);
  y.reset(desk.stream());
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: saved by two groups it is copied once, and leaves with the last handle") {
  rig desk;
  offloader off(desk.dev, arena_options(size));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto y = x.share();
  open.commit<"core_attn">(0, desk.stream(), y);
  CHECK_FALSE(y);
  desk.check(x, 7);  // still here
  CHECK_THROWS_AS(static_cast<void>(off.allocate(size, desk.stream())), tidepool::out_of_budget);
  open.commit<"expert_fc1">(0, desk.stream(), x);
  CHECK_FALSE(x);
  CHECK(desk.dev.offloads() == 1);
  CHECK(bytes_offloaded(off) == size);
  auto other = off.allocate(size, desk.stream());  // there is room again
  desk.write(other, 9);
  other.reset(desk.stream());
  open.end_forward();
  open.restore<"expert_fc1">(0, desk.stream(), x);
  desk.check(x, 7);
  x.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), y);
  desk.check(y, 7);
  y.reset(desk.stream());
  open.finish();
  CHECK(desk.dev.reloads() == 1);  // nothing came between the two
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: what several groups saved may be restored in any order") {
  for (const bool reverse : {true, false}) {
    rig desk(tidepool::machine{.order_seed = 5});
    offloader off(desk.dev, small_options());
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 7);
    auto y = x.share();
    open.commit<"core_attn">(0, desk.stream(), x);
    open.commit<"expert_fc1">(0, desk.stream(), y);
    const auto first = [&] { open.restore<"core_attn">(0, desk.stream(), x); };
    const auto second = [&] { open.restore<"expert_fc1">(0, desk.stream(), y); };
    if (reverse) {
      second();
      first();
    } else {
      first();
      second();
    }
    CHECK(x.data() == y.data());
    desk.check(x, 7);
    desk.check(y, 7);
    x.reset(desk.stream());
    y.reset(desk.stream());
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("sharing: handles come back in the order in which they were given") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(2 * size, desk.stream());
  auto z = off.allocate(3 * size, desk.stream());
  desk.write(x, 1);
  desk.write(y, 2);
  desk.write(z, 3);
  open.commit<"core_attn">(0, desk.stream(), x, y, z);
  rig::buffer a;
  rig::buffer b;
  rig::buffer c;
  open.restore<"core_attn">(0, desk.stream(), a, b, c);  // any handles will do
  CHECK(a.size() == size);
  CHECK(b.size() == 2 * size);
  CHECK(c.size() == 3 * size);
  desk.check(a, 1);
  desk.check(b, 2);
  desk.check(c, 3);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: a group that stays keeps the storage on the device for the one that left") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn"}));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto y = x.share();
  auto* const data = x.data();
  open.commit<"core_attn">(0, desk.stream(), y);
  open.commit<"expert_fc1">(0, desk.stream(), x);  // not enabled
  CHECK_FALSE(y);
  CHECK(x);
  open.end_forward();
  open.restore<"expert_fc1">(0, desk.stream(), x);
  desk.check(x, 7);
  open.restore<"core_attn">(0, desk.stream(), y);
  CHECK(y.data() == data);
  CHECK(desk.dev.reloads() == 0);
  x.reset(desk.stream());
  desk.check(y, 7);
  y.reset(desk.stream());
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: a handle held over the end of forward may be dropped any time before restore") {
  for (const std::size_t ahead : {std::size_t{0}, std::size_t{2}}) {
    rig desk;
    auto opts = small_options();
    opts.reload_ahead = ahead;
    offloader off(desk.dev, opts);
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 7);
    auto y = x.share();
    open.commit<"core_attn">(0, desk.stream(), y);
    open.end_forward();
    desk.check(x, 7);
    x.reset(desk.stream());
    auto other = off.allocate(size, desk.stream());  // might take its place
    desk.write(other, 9);
    open.restore<"core_attn">(0, desk.stream(), y);
    REQUIRE(y.data() != nullptr);
    desk.check(y, 7);
    desk.check(other, 9);
    y.reset(desk.stream());
    open.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("sharing: an address that is used again is another storage") {
  rig desk;
  offloader off(desk.dev, arena_options(size));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto* const data = x.data();
  desk.write(x, 1);
  open.commit<"core_attn">(0, desk.stream(), x);
  auto y = off.allocate(size, desk.stream());
  REQUIRE(y.data() == data);
  desk.write(y, 2);
  open.commit<"core_attn">(1, desk.stream(), y);
  CHECK(bytes_offloaded(off) == 2 * size);
  CHECK(off.counters().modules[0].tensors_shared == 0);
  open.restore<"core_attn">(1, desk.stream(), y);
  desk.check(y, 2);
  y.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
  x.reset(desk.stream());
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: two microbatches that save one storage copy it once") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn"}));
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 5);
  auto y = x.share();
  auto first = off.begin({.microbatch = 0});
  auto second = off.begin({.microbatch = 1});
  first.commit<"core_attn">(0, desk.stream(), x);
  second.commit<"core_attn">(0, desk.stream(), y);
  CHECK(bytes_offloaded(off) == size);
  first.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 5);
  x.reset(desk.stream());
  first.finish();
  second.restore<"core_attn">(0, desk.stream(), y);
  desk.check(y, 5);
  y.reset(desk.stream());
  second.finish();
  off.end_step();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: a chunk that is abandoned leaves the storage to the other") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 5);
  auto y = x.share();
  auto second = off.begin({.microbatch = 1});
  {
    auto first = off.begin({.microbatch = 0});
    first.commit<"core_attn">(0, desk.stream(), x);
    second.commit<"core_attn">(0, desk.stream(), y);
    first.end_forward();
  }
  second.restore<"core_attn">(0, desk.stream(), y);
  desk.check(y, 5);
  CHECK(desk.wrong() == 0);
}

// As a static trainer does that never gives its buffers back.
TEST_CASE("sharing: a buffer that was restored leaves again with its next commit") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size, {"core_attn"}));
  auto x = off.allocate(size, desk.stream());
  for (std::uint32_t step = 1; step <= 3; ++step) {
    desk.write(x, step);
    auto open = off.begin();
    open.commit<"core_attn">(0, desk.stream(), x);
    CHECK_FALSE(x);
    {
      auto both = off.allocate(2 * size, desk.stream());  // all of the arena
      desk.write(both, 99);
    }
    open.end_forward();
    open.restore<"core_attn">(0, desk.stream(), x);
    desk.check(x, step);
    open.finish();
    off.end_step();
  }
  CHECK(off.counters().evictions == 0);
  CHECK(bytes_offloaded(off) == 3 * size);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: what the restored handle changed is what its next commit saves") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto x = off.allocate(size, desk.stream());
  auto open = off.begin();
  desk.write(x, 1);
  open.commit<"core_attn">(0, desk.stream(), x);
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.write(x, 2);
  auto next = off.begin({.microbatch = 1});
  next.commit<"core_attn">(0, desk.stream(), x);
  next.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: a reload undone for one group is not taken from another that shares it") {
  rig desk;
  auto opts = arena_options(4 * size);
  opts.reload_ahead = 2;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  auto y = x.share();
  auto own = off.allocate(size, desk.stream());
  desk.write(own, 2);
  auto more = off.allocate(size, desk.stream());
  desk.write(more, 3);
  open.commit<"core_attn">(0, desk.stream(), x, own);
  open.commit<"expert_fc1">(0, desk.stream(), y, more);
  open.end_forward();  // brings x and more for the second, own for the first
  CHECK(desk.dev.reloads() == 3);
  {
    auto big = off.allocate(3 * size, desk.stream());  // undoes at least one of them
    desk.write(big, 9);
  }
  CHECK(off.counters().evictions >= 1);
  open.restore<"expert_fc1">(0, desk.stream(), y, more);
  desk.check(y, 1);
  desk.check(more, 3);
  y.reset(desk.stream());
  more.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), x, own);
  desk.check(x, 1);
  desk.check(own, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: what waits for its second group gives way when room is short") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  auto y = x.share();
  open.commit<"core_attn">(0, desk.stream(), x);
  open.commit<"expert_fc1">(0, desk.stream(), y);
  open.restore<"expert_fc1">(0, desk.stream(), y);
  desk.check(y, 1);
  y.reset(desk.stream());
  {
    auto all = off.allocate(2 * size, desk.stream());
    desk.write(all, 9);
  }
  CHECK(off.counters().evictions == 1);
  open.restore<"core_attn">(0, desk.stream(), x);
  REQUIRE(x.data() != nullptr);
  desk.check(x, 1);
  x.reset(desk.stream());
  open.finish();
  CHECK(desk.dev.reloads() == 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: what another group keeps on the device does not leave with a second one") {
  for (const bool keeps : {true, false}) {
    CAPTURE(keeps);
    rig desk;
    auto opts = small_options();
    opts.offload_layers = {keeps ? 1 : 0, 1};
    offloader off(desk.dev, opts);
    for (std::uint32_t step = 0; step < 3; ++step) {
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      auto y = x.share();
      auto z = off.allocate(size, desk.stream());
      auto w = z.share();
      desk.write(x, step);
      desk.write(z, step + 10);
      open.commit<"core_attn">(0, desk.stream(), x);
      open.commit<"moe_act">(1, desk.stream(), y);
      // Nobody keeps this: it leaves, though another handle holds it a while longer.
      open.commit<"expert_fc1">(1, desk.stream(), z);
      CHECK(static_cast<bool>(y) == keeps);
      CHECK_FALSE(z);
      w.reset(desk.stream());
      open.end_forward();
      open.restore<"expert_fc1">(1, desk.stream(), z);
      open.restore<"moe_act">(1, desk.stream(), y);
      desk.check(y, step);
      y.reset(desk.stream());
      open.restore<"core_attn">(0, desk.stream(), x);
      desk.check(x, step);
      desk.check(z, step + 10);

      // Once its group was restored it may leave again.
      auto next = off.begin();
      auto again = x.share();
      x.reset(desk.stream());
      z.reset(desk.stream());
      next.commit<"moe_act">(1, desk.stream(), again);
      CHECK_FALSE(again);
      next.end_forward();
      next.restore<"moe_act">(1, desk.stream(), again);
      desk.check(again, step);
      again.reset(desk.stream());
      next.finish();
      open.finish();
      off.end_step();
      CHECK(off.counters().modules[0].step_bytes == (keeps ? 0 : size));
      CHECK(off.counters().modules[2].step_bytes == size);
    }
    CHECK(desk.wrong() == 0);
  }
}

// What the other handle was last used for is known to it alone.
TEST_CASE("sharing: a handle that goes without a word is followed on its own stream") {
  enum class other_goes { by_reset, by_commit, comes_back };
  for (const auto how : {other_goes::by_reset, other_goes::by_commit, other_goes::comes_back}) {
    for (std::uint64_t seed = 0; seed <= 20; ++seed) {
      CAPTURE(static_cast<int>(how));
      CAPTURE(seed);
      rig desk(tidepool::machine{.order_seed = seed});
      const auto side = desk.dev.make_stream();
      auto ready = desk.dev.make_event();
      offloader off(desk.dev, arena_options(size));
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      auto y = x.share();
      desk.write(x, 5);
      desk.dev.record(ready, desk.stream());
      desk.dev.wait(side.ref(), ready);
      if (how == other_goes::by_reset) {
        x.reset(side.ref());
      } else {
        open.commit<"core_attn">(0, side.ref(), x);
      }
      if (how == other_goes::comes_back) open.restore<"core_attn">(0, side.ref(), x);
      desk.dev.launch(desk.stream(), 50000, [] {});
      desk.check(y, 5);
      y = {};
      x.reset(side.ref());
      auto z = off.allocate(size, side.ref());
      desk.write_bytes(z.data(), size, 9, side.ref());
      z.reset(side.ref());
      CHECK(desk.wrong() == 0);
    }
  }
}

TEST_CASE("sharing: a group of which all was saved before asks nothing of the copy streams") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = x.share();
  open.commit<"core_attn">(0, desk.stream(), x);
  const auto waits = desk.dev.waits;
  const auto records = desk.dev.records;
  open.commit<"expert_fc1">(0, desk.stream(), y);
  CHECK(desk.dev.waits == waits);
  CHECK(desk.dev.records == records + 1);  // where the compute stream is
}

TEST_CASE("sharing: what one group keeps stays for others until that group has come back") {
  rig desk;
  auto opts = small_options();
  opts.offload_layers = {1};
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto kept = off.allocate(size, desk.stream());
  auto second = kept.share();
  auto third = kept.share();
  auto fourth = kept.share();
  open.commit<"core_attn">(0, desk.stream(), kept);
  open.commit<"core_attn">(1, desk.stream(), second);
  CHECK(second);
  open.restore<"core_attn">(1, desk.stream(), second);
  auto next = off.begin();
  next.commit<"core_attn">(1, desk.stream(), third);
  CHECK(third);
  open.restore<"core_attn">(0, desk.stream(), kept);
  next.commit<"core_attn">(1, desk.stream(), fourth);
  CHECK_FALSE(fourth);
}

TEST_CASE("sharing: what stays for a group that a plan keeps must be in its handle as well") {
  tidepool::plan::profile step;
  step.modules = {"core_attn", "expert_fc1", "moe_act"};
  step.passes = {{0, false}, {0, true}};
  step.chunks.push_back({0, {{tidepool::module_id{0}, 0, size}, {tidepool::module_id{1}, 0, 0}}});
  tidepool::plan::step_plan made;
  made.what = {{tidepool::plan::action::keep, tidepool::plan::action::offload}};
  rig desk;
  offloader off(desk.dev, small_options());
  off.follow(made, step);
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  auto y = x.share();
  open.commit<"core_attn">(0, desk.stream(), x);
  open.commit<"expert_fc1">(0, desk.stream(), y);
  REQUIRE(y);
  const auto restore = [&](rig::buffer& handle) {
    open.restore<"expert_fc1">(0, desk.stream(), handle);
  };
  auto other = off.allocate(size, desk.stream());
  CHECK_THROWS_WITH_AS(restore(other), doctest::Contains("holds other memory"),
                       tidepool::misuse_error);
  rig::buffer none;
  CHECK_THROWS_WITH_AS(restore(none), doctest::Contains("is empty, but its tensor stayed"),
                       tidepool::misuse_error);
  restore(y);
  desk.check(y, 1);
  open.restore<"core_attn">(0, desk.stream(), x);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: what stayed may be given up, or another buffer come in its place") {
  rig desk;
  auto opts = small_options();
  opts.offload_layers = {1};
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto gone = off.allocate(size, desk.stream());
  auto other = off.allocate(size, desk.stream());
  open.commit<"core_attn">(0, desk.stream(), gone, other);
  gone.reset(desk.stream());
  other = off.allocate(size, desk.stream());
  open.restore<"core_attn">(0, desk.stream(), gone, other);
  CHECK_FALSE(gone);
  open.finish();
  auto next = off.begin();
  next.commit<"core_attn">(1, desk.stream(), other);
  CHECK_FALSE(other);
}

TEST_CASE("sharing: a group that stayed keeps nothing for others once its chunk was given up") {
  rig desk;
  auto opts = small_options();
  opts.offload_layers = {1};
  offloader off(desk.dev, opts);
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  {
    auto given_up = off.begin();
    given_up.commit<"core_attn">(0, desk.stream(), x);
  }
  auto open = off.begin();
  open.commit<"core_attn">(1, desk.stream(), x);
  CHECK_FALSE(x);
  open.restore<"core_attn">(1, desk.stream(), x);
  desk.check(x, 1);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("sharing: which group keeps what is told by the storage, not by a restored handle") {
  rig desk;
  auto opts = small_options();
  opts.offload_layers = {1};
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(size, desk.stream());
  auto x_too = x.share();
  auto y_too = y.share();
  open.commit<"core_attn">(0, desk.stream(), x);
  open.commit<"core_attn">(2, desk.stream(), y);
  open.restore<"core_attn">(0, desk.stream(), y);  // in the place of x
  auto next = off.begin();
  next.commit<"core_attn">(1, desk.stream(), x_too);
  CHECK_FALSE(x_too);
  next.commit<"core_attn">(1, desk.stream(), y_too);
  CHECK(y_too);
  // An address, and an entry, that are used again are another storage.
  y_too.reset(desk.stream());
  y.reset(desk.stream());
  auto later = off.allocate(size, desk.stream());
  auto later_too = later.share();
  auto keeps = off.begin();
  keeps.commit<"core_attn">(0, desk.stream(), later);
  rig::buffer none;
  open.restore<"core_attn">(2, desk.stream(), none);
  next.commit<"core_attn">(1, desk.stream(), later_too);
  CHECK(later_too);
}

namespace {

enum class why : std::uint8_t { shared, shared_until_backward, by_layer, opted_out, small };

// Wrong words where what was committed on one stream, and never left, is restored on another.
std::size_t wrong_on_another_stream(why stays, std::uint64_t seed, bool in_graph,
                                    std::optional<tidepool::join_site> without = {}) {
  rig desk(tidepool::machine{.poison = false, .order_seed = seed});
  auto owned = desk.dev.make_stream();
  const auto forward = desk.stream();
  const auto back = owned.ref();
  auto opts = small_options();
  if (stays == why::by_layer) opts.offload_layers = {1};
  if (stays == why::small) opts.min_tensor_elements = size + 1;
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  const auto join = [&](rig::stream_ref waiter, rig::stream_ref other) {
    auto now = desk.dev.make_event();
    desk.dev.record(now, other);
    desk.dev.wait(waiter, now);
  };
  // Another one in each run: memory of the run before may hold what that one wrote.
  auto tag = static_cast<std::uint32_t>(1000 * seed + (without ? 500 : 0));
  const auto step = [&] {
    ++tag;
    join(back, forward);  // takes part in a capture, but comes after nothing of this step
    auto open = off.begin();
    auto x = off.allocate(size, forward);
    desk.write(x, tag);
    auto y = x.share();
    if (stays != why::shared && stays != why::shared_until_backward) y.reset(forward);
    if (stays == why::opted_out) x.keep_resident();
    open.commit<"core_attn">(0, forward, x);
    open.end_forward();
    if (stays == why::shared_until_backward) y.reset(forward);
    open.restore<"core_attn">(0, back, x);
    desk.check_rows(x.data(), {size, 1, size, 0}, tag, 0, back);
    join(forward, back);
    x.reset(forward);
    y.reset(forward);
    open.finish();
    off.end_step();
  };
  step();
  step();
  desk.dev.synchronize();
  if (without) desk.dev.leave_out(*without);
  if (in_graph) {
    auto graph = off.capture(forward, step);
    graph.launch(forward);
    return desk.wrong();
  }
  step();
  return desk.wrong();
}

}  // namespace

TEST_CASE("sharing: what never left is read after the work that produced it, on any stream") {
  for (const auto stays :
       {why::shared, why::shared_until_backward, why::by_layer, why::opted_out, why::small}) {
    for (const bool in_graph : {false, true}) {
      CAPTURE(static_cast<int>(stays));
      CAPTURE(in_graph);
      std::size_t wrong = 0;
      std::size_t caught = 0;
      for (std::uint64_t seed = 1; seed <= 60 || (caught == 0 && seed <= 600); ++seed) {
        wrong += wrong_on_another_stream(stays, seed, in_graph);
        caught += wrong_on_another_stream(stays, seed, in_graph, tidepool::join_site::consumer);
      }
      CHECK(wrong == 0);
      CHECK(caught > 0);
    }
  }
}
