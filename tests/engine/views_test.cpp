// Parts of buffers: pitched rectangles that leave alone, and views of a storage that leaves whole.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::view_shape;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

// 32 rows of 256 bytes.
constexpr std::size_t row = 256;
constexpr std::size_t size = 32 * row;
// A rectangle inside.
constexpr view_shape inner{.offset = 3 * row + 64, .width = 96, .rows = 20, .pitch = row};

}  // namespace

TEST_CASE("view: shows its rectangle of the buffer") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto x = off.allocate(size, desk.stream());
  const auto part = x.view(inner);
  CHECK(part);
  CHECK(part.data() == x.as<std::byte>() + inner.offset);
  CHECK(part.width() == inner.width);
  CHECK(part.rows() == inner.rows);
  CHECK(part.pitch() == inner.pitch);
  CHECK_FALSE(part.whole_storage());
  const auto dense = x.view({.offset = 8, .width = 16, .rows = 4});
  CHECK(dense.pitch() == 16);
}

TEST_CASE("view: a part that is not inside is refused with its numbers") {
  rig desk;
  offloader off(desk.dev, small_options());
  const auto x = off.allocate(1000, desk.stream());
  const auto refuse = [&](const view_shape& shape) {
    CHECK_THROWS_AS(static_cast<void>(x.view(shape)), tidepool::misuse_error);
  };
  refuse({.offset = 0, .width = 1001});
  refuse({.offset = 1, .width = 1000});
  refuse({.offset = 1001});
  CHECK_THROWS_WITH_AS(static_cast<void>(x.view({.offset = 0, .width = 10, .rows = 2, .pitch = 9})),
                       doctest::Contains("overlap; let the pitch be at least the width"),
                       tidepool::misuse_error);
  refuse({.offset = 0, .width = 10, .rows = 11, .pitch = 100});
  refuse({.offset = 1000, .width = 1});
  refuse({.offset = static_cast<std::size_t>(-1), .width = 2});
  refuse({.offset = 0, .width = 8, .rows = std::size_t{1} << 61, .pitch = 8});
  CHECK(x.view({.offset = 990, .width = 10}));
  CHECK(x.view({.offset = 0, .width = 10, .rows = 10, .pitch = 110}));  // the last pitch is no part
  CHECK_THROWS_WITH_AS(static_cast<void>(x.view({.offset = 4, .width = 2000})),
                       doctest::Contains("2000"), tidepool::misuse_error);
  const rig::buffer empty;
  CHECK_THROWS_AS(static_cast<void>(empty.view({.width = 1})), tidepool::misuse_error);
}

TEST_CASE("view: a pitched rectangle leaves as its rows alone and comes back dense") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto part = x.view(inner);
  open.commit<"core_attn">(0, desk.stream(), part);
  CHECK_FALSE(part);
  CHECK(x);
  CHECK(off.counters().modules[0].bytes_offloaded == inner.width * inner.rows);
  x.reset(desk.stream());
  open.end_forward();
  open.restore<"core_attn">(0, desk.stream(), part);
  REQUIRE(part);
  CHECK(part.width() == inner.width);
  CHECK(part.rows() == inner.rows);
  CHECK(part.pitch() == inner.width);
  CHECK(off.counters().modules[0].bytes_reloaded == inner.width * inner.rows);
  desk.check(part, 7, inner.offset, inner.pitch);
  part.reset(desk.stream());
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: the device memory of the buffer goes with the buffer, not with its views") {
  rig desk;
  offloader off(desk.dev, tidepool::test::arena_options(size + 4096));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto part = x.view(inner);
  x.reset(desk.stream());
  desk.check(part, 7, inner.offset, inner.pitch);  // keeps the storage alive
  CHECK_THROWS_AS(static_cast<void>(off.allocate(size, desk.stream())), tidepool::out_of_budget);
  open.commit<"core_attn">(0, desk.stream(), part);
  auto other = off.allocate(size, desk.stream());
  desk.write(other, 8);
  open.restore<"core_attn">(0, desk.stream(), part);
  desk.check(part, 7, inner.offset, inner.pitch);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: with whole_storage the storage leaves and the view comes back as it was") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto shape = inner;
  shape.whole_storage = true;
  auto part = x.view(shape);
  CHECK(part.whole_storage());
  x.reset(desk.stream());
  open.commit<"core_attn">(0, desk.stream(), part);
  CHECK(off.counters().modules[0].bytes_offloaded == size);
  open.restore<"core_attn">(0, desk.stream(), part);
  CHECK(part.pitch() == inner.pitch);
  CHECK(part.rows() == inner.rows);
  desk.check(part, 7, inner.offset, inner.pitch);
  part.reset(desk.stream());
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: of a storage that was saved already takes no copy of its own") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto part = x.view(inner);
  SUBCASE("by the same group") {
    open.commit<"core_attn">(0, desk.stream(), x, part);
    CHECK(off.counters().modules[0].bytes_offloaded == size);
    open.restore<"core_attn">(0, desk.stream(), x, part);
  }
  SUBCASE("by another group") {
    open.commit<"core_attn">(0, desk.stream(), x);
    open.commit<"expert_fc1">(0, desk.stream(), part);
    CHECK(off.counters().modules[0].bytes_offloaded == size);
    CHECK(off.counters().modules[1].bytes_offloaded == 0);
    CHECK(off.counters().modules[1].tensors_shared == 1);
    open.restore<"expert_fc1">(0, desk.stream(), part);
    open.restore<"core_attn">(0, desk.stream(), x);
  }
  CHECK(desk.dev.offloads() == 1);
  CHECK(desk.dev.reloads() == 1);
  CHECK(part.pitch() == inner.pitch);
  CHECK(part.data() == x.as<std::byte>() + inner.offset);
  desk.check(x, 7);
  desk.check(part, 7, inner.offset, inner.pitch);
  part.reset(desk.stream());
  x.reset(desk.stream());
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: the same rectangle saved twice is copied once") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto first = x.view(inner);
  auto second = x.view(inner);
  SUBCASE("by one group") {
    open.commit<"core_attn">(0, desk.stream(), first, second);
    x.reset(desk.stream());
    open.restore<"core_attn">(0, desk.stream(), first, second);
  }
  SUBCASE("by two groups") {
    open.commit<"core_attn">(0, desk.stream(), first);
    open.commit<"expert_fc1">(0, desk.stream(), second);
    x.reset(desk.stream());
    open.restore<"expert_fc1">(0, desk.stream(), second);
    open.restore<"core_attn">(0, desk.stream(), first);
  }
  CHECK(desk.dev.bytes[0] == inner.width * inner.rows);
  CHECK(desk.dev.bytes[1] == inner.width * inner.rows);
  CHECK(first.data() == second.data());
  desk.check(first, 7, inner.offset, inner.pitch);
  desk.check(second, 7, inner.offset, inner.pitch);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: other rectangles are copies of their own") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto shape = inner;
  auto first = x.view(shape);
  shape.offset += 4;
  auto second = x.view(shape);
  shape.rows = 2;
  auto third = x.view(shape);
  open.commit<"core_attn">(0, desk.stream(), first, second, third);
  CHECK(desk.dev.bytes[0] == inner.width * (2 * inner.rows + 2));
  x.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), first, second, third);
  desk.check(first, 7, inner.offset, row);
  desk.check(second, 7, inner.offset + 4, row);
  desk.check(third, 7, inner.offset + 4, row);
  CHECK(third.rows() == 2);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: of everything is the buffer itself") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto all = x.view({.width = row, .rows = 32});
  open.commit<"core_attn">(0, desk.stream(), all, x);
  CHECK(desk.dev.offloads() == 1);
  open.restore<"core_attn">(0, desk.stream(), all, x);
  CHECK(all.data() == x.data());
  CHECK(all.rows() == 32);
  desk.check(all, 7, 0, row);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: the smallest size that leaves is in elements of the part") {
  rig desk;
  auto opts = small_options();
  opts.min_tensor_elements = 100;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate<float>(1000, desk.stream());
  desk.write(x, 7);
  auto small = x.view({.width = 99 * sizeof(float)});
  auto large = x.view({.width = 100 * sizeof(float)});
  open.commit<"core_attn">(0, desk.stream(), small, large);
  CHECK(small);
  CHECK_FALSE(large);
  CHECK(off.counters().modules[0].tensors_small == 1);
  open.restore<"core_attn">(0, desk.stream(), small, large);
  desk.check(large, 7, 0, 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: comes back to another handle of its kind, a moved one keeps its shape") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 7);
  auto part = x.view(inner);
  auto moved = std::move(part);
  CHECK(moved.width() == inner.width);
  open.commit<"core_attn">(0, desk.stream(), moved);
  rig::view other;
  open.restore<"core_attn">(0, desk.stream(), other);
  CHECK(other.width() == inner.width);
  desk.check(other, 7, inner.offset, inner.pitch);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: what stays by Megatron's rule stays, whether or not it is a part") {
  rig desk;
  auto opts = small_options();
  opts.fraction = 0.5;
  rig::offloader<tidepool::modules<"core_attn">> off(desk.dev, opts);
  for (int step = 0; step < 2; ++step) {
    CAPTURE(step);
    auto open = off.begin();
    rig::view parts[2];
    for (int l = 0; l < 2; ++l) {
      auto x = off.allocate(4096, desk.stream());
      parts[l] = x.view({.width = 2048});
      x.reset(desk.stream());
      open.commit<"core_attn">(l, desk.stream(), parts[l]);
    }
    CHECK_FALSE(parts[0]);
    CHECK(static_cast<bool>(parts[1]) == (step == 1));
    for (int l = 1; l >= 0; --l) {
      open.restore<"core_attn">(l, desk.stream(), parts[l]);
      parts[l].reset(desk.stream());
    }
    open.finish();
    off.end_step();
  }
}

TEST_CASE("view: a part of a whole storage does not come back to a buffer, which has no end") {
  rig desk;
  rig::offloader<tidepool::modules<"core_attn">> off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(4096, desk.stream());
  auto part = x.view({.offset = 2048, .width = 2048, .whole_storage = true});
  x.reset(desk.stream());
  open.commit<"core_attn">(0, desk.stream(), part);
  rig::buffer wrong;
  CHECK_THROWS_WITH_AS(
      open.restore<"core_attn">(0, desk.stream(), wrong),
      doctest::Contains("argument 1 is a buffer, but what was committed is a view"),
      tidepool::misuse_error);
  rig::view other;
  open.restore<"core_attn">(0, desk.stream(), other);
  CHECK(other.width() == 2048);
  other.reset(desk.stream());
  open.finish();
}

TEST_CASE(
    "view: a part of a whole storage that comes back to a buffer is all of the storage there") {
  rig desk;
  offloader off(desk.dev, small_options());
  for (std::uint32_t step = 1; step <= 3; ++step) {
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, step);
    auto part = x.view({.width = row, .rows = 4, .whole_storage = true});
    x.reset(desk.stream());
    open.commit<"core_attn">(0, desk.stream(), part);
    rig::buffer whole;
    open.restore<"core_attn">(0, desk.stream(), whole);
    REQUIRE(whole.size() == size);
    desk.check(whole, step);
    open.finish();
    auto next = off.begin();  // and leaves again with all that it shows
    next.commit<"core_attn">(0, desk.stream(), whole);
    next.restore<"core_attn">(0, desk.stream(), whole);
    REQUIRE(whole.size() == size);
    desk.check(whole, step);
    whole.reset(desk.stream());
    next.finish();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: of a view's storage that left and came back") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn"}));
  for (std::uint32_t step = 1; step <= 3; ++step) {
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, step);
    auto first = x.view(inner);
    open.commit<"core_attn">(0, desk.stream(), first);
    auto second = x.view(inner);
    open.commit<"core_attn">(1, desk.stream(), second);
    open.restore<"core_attn">(1, desk.stream(), second);
    open.restore<"core_attn">(0, desk.stream(), first);
    x.reset(desk.stream());
    desk.check(first, step, inner.offset, inner.pitch);
    first.reset(desk.stream());
    desk.check(second, step, inner.offset, inner.pitch);
    second.reset(desk.stream());
    open.finish();
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
}

// The buffer is written anew for every microbatch, so the copy of its part is out of date.
TEST_CASE("view: a rectangle whose buffer has changed since its last copy is copied again") {
  for (const bool held : {false, true}) {
    CAPTURE(held);
    rig desk;
    offloader off(desk.dev, small_options());
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    auto first = off.begin({.microbatch = 0});
    auto before = x.view(inner);
    first.commit<"core_attn">(0, desk.stream(), before);
    first.restore<"core_attn">(0, desk.stream(), before);
    if (!held) before.reset(desk.stream());

    desk.write(x, 2);
    auto second = off.begin({.microbatch = 1});
    auto after = x.view(inner);
    second.commit<"core_attn">(0, desk.stream(), after);
    second.restore<"core_attn">(0, desk.stream(), after);
    desk.check(after, 2, inner.offset, inner.pitch);
    if (held) desk.check(before, 1, inner.offset, inner.pitch);
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("view: in random orders, beside buffers that come and go") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    rig desk(tidepool::machine{.order_seed = seed});
    auto opts = tidepool::test::arena_options(3 * size);
    opts.reload_ahead = seed % 4;
    offloader off(desk.dev, opts);
    for (std::uint32_t step = 1; step <= 2; ++step) {
      auto open = off.begin();
      std::vector<rig::view> dense(3);
      std::vector<rig::view> whole(3);
      for (int layer = 0; layer < 3; ++layer) {
        const auto at = static_cast<std::size_t>(layer);
        auto x = off.allocate(size, desk.stream());
        desk.write(x, step * 10 + static_cast<std::uint32_t>(layer));
        dense[at] = x.view(inner);
        auto shape = inner;
        shape.whole_storage = seed % 2 == 0;
        shape.rows -= at;
        whole[at] = x.view(shape);
        open.commit<"core_attn">(layer, desk.stream(), dense[at]);
        open.commit<"expert_fc1">(layer, desk.stream(), whole[at]);
        x.reset(desk.stream());
      }
      open.end_forward();
      for (int layer = 2; layer >= 0; --layer) {
        const auto at = static_cast<std::size_t>(layer);
        const auto tag = step * 10 + static_cast<std::uint32_t>(layer);
        open.restore<"expert_fc1">(layer, desk.stream(), whole[at]);
        desk.check(whole[at], tag, inner.offset, inner.pitch);
        whole[at].reset(desk.stream());
        open.restore<"core_attn">(layer, desk.stream(), dense[at]);
        desk.check(dense[at], tag, inner.offset, inner.pitch);
        dense[at].reset(desk.stream());
      }
      open.finish();
      off.end_step();
    }
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("view: an emptied one has no extent, until its tensor comes back") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 3);
  auto part = x.view({.offset = 256, .width = 256});
  auto open = off.begin();
  open.commit<"core_attn">(0, desk.stream(), part);
  CHECK_FALSE(part);
  CHECK(part.width() == 0);
  open.restore<"core_attn">(0, desk.stream(), part);
  CHECK(part.width() == 256);
  desk.check(part, 3, 256, 256);
  part.reset(desk.stream());
  CHECK(part.width() == 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("view: where memory is short, what came back of one is named by its module") {
  rig desk;
  offloader off(desk.dev, tidepool::test::arena_options(size + 512));
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 3);
  auto part = x.view({.offset = 256, .width = 256});
  auto open = off.begin();
  open.commit<"core_attn">(0, desk.stream(), part);
  x.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), part);
  CHECK_THROWS_WITH_AS(static_cast<void>(off.allocate(size + 512, desk.stream())),
                       doctest::Contains("Live: core_attn (restored and not reset) 256 bytes."),
                       tidepool::out_of_budget);
}

TEST_CASE("view: half of eight gigabytes is not small") {
  constexpr std::size_t gib = std::size_t{1} << 30;
  tidepool::machine large;
  large.moves_bytes = false;
  large.device_bytes = large.host_bytes = 64 * gib;
  rig desk(large);
  auto opts = small_options();
  opts.min_tensor_elements = std::size_t{1} << 20;
  opts.host_budget = 32 * gib;
  opts.device_step = opts.host_step = gib;
  for (const std::size_t whole : {4 * gib, 8 * gib, 16 * gib}) {
    CAPTURE(whole);
    offloader off(desk.dev, opts);
    auto chunk = off.begin();
    auto buffer = off.allocate<std::uint16_t>(whole / 2, desk.stream());
    auto rows = buffer.view({.width = 8192, .rows = whole / 16384, .pitch = 16384});
    buffer.reset(desk.stream());
    chunk.commit<"core_attn">(0, desk.stream(), rows);
    CHECK_FALSE(rows);
    CHECK(off.counters().modules[0].bytes_offloaded == whole / 2);
  }
}
