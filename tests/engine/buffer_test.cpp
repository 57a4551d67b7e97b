// Handles: ownership, moves, and lifetimes that end in any order.
#include "tidepool/buffer.hpp"

#include <doctest/doctest.h>

#include <concepts>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>

#include "rig.hpp"

namespace {

using tidepool::machine;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn">>;

constexpr std::size_t size = 2048;

}  // namespace

TEST_CASE("buffer: moves only, and without a throw") {
  static_assert(std::movable<rig::buffer> && !std::copyable<rig::buffer>);
  static_assert(std::movable<rig::view> && !std::copyable<rig::view>);
  static_assert(std::is_nothrow_move_constructible_v<rig::buffer>);
  static_assert(std::is_nothrow_move_assignable_v<rig::buffer>);
  static_assert(std::is_nothrow_destructible_v<rig::buffer>);
  static_assert(std::movable<offloader::chunk> && !std::copyable<offloader::chunk>);
  static_assert(std::is_nothrow_move_constructible_v<offloader::chunk>);
  static_assert(std::is_nothrow_destructible_v<offloader::chunk>);
  static_assert(!std::movable<offloader>);
}

TEST_CASE("buffer: an empty one") {
  rig desk;
  rig::buffer none;
  CHECK_FALSE(none);
  CHECK(none.data() == nullptr);
  CHECK(none.as<float>() == nullptr);
  CHECK(none.size() == 0);
  none.reset(desk.stream());
  const auto moved = std::move(none);
  CHECK_FALSE(moved);
}

TEST_CASE("buffer: allocated bytes and elements, aligned, apart") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto x = off.allocate<double>(100, desk.stream());
  auto y = off.allocate(100, desk.stream());
  CHECK(x.size() == 100 * sizeof(double));
  CHECK(y.size() == 100);
  CHECK(reinterpret_cast<std::uintptr_t>(x.data()) % 256 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(y.data()) % 256 == 0);
  CHECK(x.as<double>() == x.data());
  desk.write(x, 1);
  desk.write(y, 2);
  desk.check(x, 1);
  desk.check(y, 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("buffer: a move takes the memory along, assignment drops what was there") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(size, desk.stream());
  desk.write(y, 2);
  auto* const data = y.data();
  x = std::move(y);
  CHECK(x.data() == data);
  CHECK_FALSE(y);                         // NOLINT(bugprone-use-after-move)
  y = off.allocate(size, desk.stream());  // the memory of the first
  desk.write(y, 3);
  desk.check(x, 2);
  auto& same = x;
  x = std::move(same);
  CHECK(x.data() == data);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("buffer: fresh memory is poison, so that nobody reads what was never written") {
  rig desk;
  offloader off(desk.dev, arena_options(size));
  for (int i = 0; i < 2; ++i) {
    auto x = off.allocate<float>(16, desk.stream());
    desk.dev.synchronize();
    const float value = *x.as<float>();
    CHECK(value != value);
    desk.write(x, 1);
  }
}

TEST_CASE("buffer: a destroyed one gives its memory back in the order of its stream") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    rig desk(machine{.order_seed = seed});
    const auto other = desk.dev.make_stream();
    offloader off(desk.dev, arena_options(size));
    {
      auto x = off.allocate(size, desk.stream());
      desk.write(x, 1);
      desk.check(x, 1);
    }
    auto y = off.allocate(size, other.ref());
    desk.write_bytes(y.data(), size, 2, other.ref());
    desk.check_rows(y.data(), {size, 1, size, 0}, 2, 0, other.ref());
    y.reset(other.ref());
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("buffer: one that stayed is followed on the stream of its restore like one that left") {
  for (const int layer : {0, 1}) {  // of which 1 leaves
    CAPTURE(layer);
    for (std::uint64_t seed = 0; seed <= 20; ++seed) {
      rig desk(machine{.order_seed = seed});
      const auto other = desk.dev.make_stream();
      auto opts = arena_options(size);
      opts.offload_layers = {1};
      offloader off(desk.dev, opts);
      auto open = off.begin();
      auto x = off.allocate(size, desk.stream());
      desk.write(x, 1);
      open.commit<"core_attn">(layer, desk.stream(), x);
      CHECK(static_cast<bool>(x) == (layer == 0));
      auto written = desk.dev.make_event();
      desk.dev.record(written, desk.stream());
      desk.dev.wait(other.ref(), written);
      open.restore<"core_attn">(layer, other.ref(), x);
      desk.dev.launch(other.ref(), 50'000, [] {});
      desk.check_rows(x.data(), {size, 1, size, 0}, 1, 0, other.ref());
      x = {};
      auto y = off.allocate(size, desk.stream());
      desk.write(y, 2);
      CHECK(desk.wrong() == 0);
    }
  }
}

TEST_CASE("buffer: another offloader's memory in the place of what stayed keeps its own stream") {
  for (std::uint64_t seed = 0; seed <= 20; ++seed) {
    rig desk(machine{.order_seed = seed});
    const auto other = desk.dev.make_stream();
    auto opts = small_options();
    opts.offload_layers = {1};
    offloader off(desk.dev, opts);
    offloader another(desk.dev, arena_options(size));
    {
      auto first = another.allocate(size, other.ref());  // so that its lanes are in another order
      first.reset(other.ref());
    }
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    open.commit<"core_attn">(0, desk.stream(), x);
    auto y = another.allocate(size, desk.stream());
    desk.write(y, 1);
    open.restore<"core_attn">(0, desk.stream(), y);
    desk.dev.launch(desk.stream(), 50'000, [] {});
    desk.check(y, 1);
    y = {};
    auto z = another.allocate(size, other.ref());
    desk.write_bytes(z.data(), size, 2, other.ref());
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("buffer: reset on the stream that used it last, whichever that is") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    rig desk(machine{.order_seed = seed});
    const auto other = desk.dev.make_stream();
    auto ready = desk.dev.make_event();
    offloader off(desk.dev, arena_options(size));
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    desk.dev.record(ready, desk.stream());
    desk.dev.wait(other.ref(), ready);
    desk.check_rows(x.data(), {size, 1, size, 0}, 1, 0, other.ref());
    x.reset(other.ref());
    auto y = off.allocate(size, desk.stream());
    desk.write(y, 2);
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("buffer: outlives its offloader, full or empty, committed or not") {
  rig desk;
  rig::buffer held;
  rig::buffer gone;
  rig::buffer share;
  {
    offloader off(desk.dev, small_options());
    held = off.allocate(size, desk.stream());
    desk.write(held, 1);
    share = held.share();
    gone = off.allocate(size, desk.stream());
    desk.write(gone, 2);
    auto open = off.begin();
    open.commit<"core_attn">(0, desk.stream(), gone);
  }
  CHECK_FALSE(gone);
  CHECK(held);
  desk.check(held, 1);
  CHECK(desk.dev.device_held > 0);
  held.reset(desk.stream());
  desk.check(share, 1);
  CHECK(desk.wrong() == 0);
  const auto records = desk.dev.records;
  share = {};
  CHECK(desk.dev.records == records);  // nobody is left who would wait for it
  CHECK(desk.dev.device_held == 0);
  CHECK(desk.dev.host_held == 0);
}

TEST_CASE("buffer: a chunk outlives its offloader") {
  rig desk;
  offloader::chunk open;
  rig::buffer x;
  {
    offloader off(desk.dev, small_options());
    x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    open = off.begin();
    open.commit<"core_attn">(0, desk.stream(), x);
    open.end_forward();
  }
  open.restore<"core_attn">(0, desk.stream(), x);
  desk.check(x, 1);
  open.finish();
  x.reset(desk.stream());
  CHECK(desk.wrong() == 0);
  CHECK(desk.dev.device_held == 0);
  CHECK(desk.dev.host_held == 0);
}

TEST_CASE("buffer: everything goes back to the device, whoever ends last") {
  for (int order = 0; order < 6; ++order) {
    CAPTURE(order);
    rig desk;
    std::optional<offloader> off(std::in_place, desk.dev, small_options());
    std::optional<offloader::chunk> open(off->begin());
    std::optional<rig::buffer> x(off->allocate(size, desk.stream()));
    auto y = off->allocate(size, desk.stream());
    desk.write(*x, 1);
    desk.write(y, 2);
    open->commit<"core_attn">(0, desk.stream(), y);
    open->end_forward();  // a reload is under way
    const int first = order / 2;
    const int second = (first + 1 + order % 2) % 3;
    for (const int which : {first, second, 3 - first - second}) {
      if (which == 0) off.reset();
      if (which == 1) open.reset();
      if (which == 2) x.reset();
    }
    CHECK(desk.dev.device_held == 0);
    CHECK(desk.dev.host_held == 0);
  }
}

TEST_CASE("buffer: pinned memory goes only after the copies that use it") {
  rig desk;
  {
    offloader off(desk.dev, small_options());
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    open.commit<"core_attn">(0, desk.stream(), x);
    open.end_forward();
  }
  // Address sanitizers see a copy that comes too late.
  CHECK(desk.wrong() == 0);
  CHECK(desk.dev.host_held == 0);
}
