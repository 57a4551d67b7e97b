// How copies are issued: large ones in pieces, small ones together where the device can.
#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::copy_direction;
using tidepool::copy_item;
using tidepool::copy_shape;
using tidepool::machine;
using tidepool::virtual_device;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn">>;

/// A virtual device that takes batches, or refuses them.
class batching_device : public virtual_device {
 public:
  using virtual_device::virtual_device;

  bool copy_batch(std::span<const copy_item> items, copy_direction direction, stream_ref on) {
    if (refuses) return false;
    batches.push_back(items.size());
    for (const auto& each : items) {
      virtual_device::copy(each.target, each.source, {each.bytes, 1, each.bytes, each.bytes},
                           direction, on);
    }
    return true;
  }
  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            stream_ref on) {
    ++single;
    virtual_device::copy(target, source, shape, direction, on);
  }

  bool refuses = false;
  std::vector<std::size_t> batches;
  std::size_t single = 0;
};

}  // namespace

TEST_CASE("copies: larger than a piece, they go in pieces, and the data is whole") {
  struct example {
    std::size_t piece, bytes;
    std::uint64_t copies;
  };
  for (const auto& [piece, bytes, copies] :
       {example{0, 10'000, 1}, example{10'000, 10'000, 1}, example{9'999, 10'000, 2},
        example{1000, 10'000, 10}, example{1024, 10'000, 10}, example{1 << 30, 64, 1}}) {
    const auto piece_size = piece;
    CAPTURE(piece_size);
    rig desk;
    auto opts = small_options();
    opts.copy_piece = piece;
    offloader off(desk.dev, opts);
    auto open = off.begin();
    auto x = off.allocate(bytes, desk.stream());
    desk.write(x, 3);
    open.commit<"core_attn">(0, desk.stream(), x);
    CHECK(desk.dev.offloads() == copies);
    open.restore<"core_attn">(0, desk.stream(), x);
    CHECK(desk.dev.reloads() == copies);
    CHECK(desk.dev.bytes[0] == bytes);
    CHECK(desk.dev.bytes[1] == bytes);
    desk.check(x, 3);
    CHECK(desk.wrong() == 0);
    CHECK(off.counters().modules[0].bytes_offloaded == bytes);
    CHECK(off.counters().modules[0].tensors_offloaded == 1);
  }
}

TEST_CASE("copies: in pieces they are as right as whole, in any order of the device") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    auto opts = tidepool::test::arena_options(8192);
    opts.copy_piece = 700;
    offloader off(desk.dev, opts);
    auto open = off.begin();
    std::vector<rig::buffer> x(6);
    for (std::uint32_t i = 0; i < 6; ++i) {
      x[i] = off.allocate(4096 - i * 100, desk.stream());
      desk.write(x[i], i);
      open.commit<"core_attn">(static_cast<int>(i), desk.stream(), x[i]);
    }
    for (std::uint32_t i = 6; i-- > 0;) {
      open.restore<"core_attn">(static_cast<int>(i), desk.stream(), x[i]);
      desk.check(x[i], i);
      x[i].reset(desk.stream());
    }
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("copies: the small tensors of a group go as one batch where the device takes batches") {
  for (const bool refuses : {false, true}) {
    CAPTURE(refuses);
    batching_device dev;
    dev.refuses = refuses;
    const auto stream = dev.make_stream();
    tidepool::offloader<batching_device, tidepool::modules<"core_attn">> off(dev, small_options());
    auto open = off.begin();
    auto x = off.allocate(256, stream.ref());
    auto y = off.allocate(512, stream.ref());
    auto z = off.allocate(4096, stream.ref());
    auto rows = z.view({.width = 8, .rows = 16, .pitch = 64});
    int wrong = 0;
    dev.launch(stream.ref(), 10, [a = x.as<int>(), b = y.as<int>(), c = z.as<int>()] {
      *a = 11;
      *b = 22;
      for (int i = 0; i < 1024; ++i) c[i] = i;
    });
    open.commit<"core_attn">(0, stream.ref(), x, rows, y);
    z.reset(stream.ref());
    open.restore<"core_attn">(0, stream.ref(), x, rows, y);
    dev.launch(stream.ref(), 10, [&wrong, a = x.as<int>(), b = y.as<int>(), c = rows.as<int>()] {
      wrong += (*a != 11) + (*b != 22);
      for (int i = 0; i < 16; ++i) wrong += (c[2 * i] != 16 * i) + (c[2 * i + 1] != 16 * i + 1);
    });
    dev.synchronize();
    CHECK(wrong == 0);
    if (refuses) {
      CHECK(dev.single == 6);
    } else {
      CHECK(dev.batches == std::vector<std::size_t>{2, 3});  // rows with gaps go alone
      CHECK(dev.single == 1);
    }
  }
}

TEST_CASE("copies: one tensor is no batch, nor are large ones") {
  batching_device dev;
  const auto stream = dev.make_stream();
  tidepool::offloader<batching_device, tidepool::modules<"core_attn">> off(dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(256, stream.ref());
  open.commit<"core_attn">(0, stream.ref(), x);
  auto y = off.allocate(std::size_t{2} << 20, stream.ref());
  auto z = off.allocate(std::size_t{2} << 20, stream.ref());
  open.commit<"core_attn">(1, stream.ref(), y, z);
  CHECK(dev.batches.empty());
  CHECK(dev.single == 3);
}

TEST_CASE("copies: what a commit or a restore that failed had queued is not copied with the next") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  rig::buffer saved[3];
  for (std::uint32_t i = 0; i < 3; ++i) {
    saved[i] = off.allocate(1024, desk.stream());
    desk.write(saved[i], i);
  }
  const auto fail_at_second = [&] {
    desk.dev.before_copy = [copies = 0]() mutable {
      if (++copies == 2) throw tidepool::device_error("the second copy fails", 1);
    };
  };
  fail_at_second();
  CHECK_THROWS_AS(open.commit<"core_attn">(0, desk.stream(), saved[0], saved[1], saved[2]),
                  tidepool::device_error);
  desk.dev.before_copy = {};
  auto before = desk.dev.offloads();
  open.commit<"core_attn">(0, desk.stream(), saved[0], saved[1], saved[2]);
  CHECK(desk.dev.offloads() - before == 3);
  fail_at_second();
  CHECK_THROWS_AS(open.restore<"core_attn">(0, desk.stream(), saved[0], saved[1], saved[2]),
                  tidepool::device_error);
  desk.dev.before_copy = {};
  before = desk.dev.reloads();
  open.restore<"core_attn">(0, desk.stream(), saved[0], saved[1], saved[2]);
  CHECK(desk.dev.reloads() - before == 3);
  for (std::uint32_t i = 0; i < 3; ++i) desk.check(saved[i], i);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("copies: a reload by hand that failed may be started again") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(1024, desk.stream());
  desk.write(x, 1);
  open.commit<"core_attn">(0, desk.stream(), x);
  desk.dev.before_copy = [] { throw tidepool::device_error("the copy fails", 1); };
  CHECK_THROWS_AS(open.start_reload<"core_attn">(0), tidepool::device_error);
  desk.dev.before_copy = {};
  open.start_reload<"core_attn">(0);
  CHECK(desk.dev.reloads() == 1);
  open.restore<"core_attn">(0, desk.stream(), x);
  CHECK(desk.dev.reloads() == 1);
  desk.check(x, 1);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("copies: a batch is for tensors below 1 MiB on average, which they may be by one byte") {
  constexpr std::size_t least = std::size_t{1} << 20;
  for (const bool below : {false, true}) {
    CAPTURE(below);
    batching_device dev;
    const auto stream = dev.make_stream();
    tidepool::offloader<batching_device, tidepool::modules<"core_attn">> off(dev, small_options());
    auto open = off.begin();
    auto x = off.allocate(least, stream.ref());
    auto y = off.allocate(below ? least - 1 : least, stream.ref());
    open.commit<"core_attn">(0, stream.ref(), x, y);
    CHECK(dev.batches.size() == (below ? 1 : 0));
    CHECK(dev.single == (below ? 0 : 2));
  }
}

TEST_CASE("copies: rows of the first tensor of all, of many, and of one twice, come back") {
  rig desk;
  offloader off(desk.dev, small_options());
  constexpr std::size_t count = 40;
  constexpr std::size_t pitch = 64;
  auto open = off.begin();
  auto x = off.allocate(pitch * count, desk.stream());
  desk.write(x, 9);
  std::vector<rig::view> rows;
  for (std::size_t i = 0; i < count; ++i) {
    rows.push_back(x.view({.offset = 4 * (i % 8), .width = 8, .rows = 1 + i / 8, .pitch = pitch}));
    open.commit<"core_attn">(static_cast<int>(i), desk.stream(), rows.back());
  }
  auto again = x.view({.offset = 4, .width = 8, .rows = 1, .pitch = pitch});
  const auto before = desk.dev.offloads();
  open.commit<"core_attn">(static_cast<int>(count), desk.stream(), again);
  CHECK(desk.dev.offloads() == before);  // that part is there already
  x.reset(desk.stream());
  open.end_forward();
  open.restore<"core_attn">(static_cast<int>(count), desk.stream(), again);
  desk.check(again, 9, 4, pitch);
  for (auto i = count; i-- > 0;) {
    open.restore<"core_attn">(static_cast<int>(i), desk.stream(), rows[i]);
    desk.check(rows[i], 9, 4 * (i % 8), pitch);
  }
  open.finish();
  CHECK(desk.wrong() == 0);
}
