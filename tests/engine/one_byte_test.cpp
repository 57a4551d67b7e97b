// A tensor of one byte is one like any other: nothing takes it for none.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>

#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;
using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 4096;

void write_byte(rig& desk, void* to, unsigned char value) {
  desk.dev.launch(desk.stream(), 1000, [=] { std::memcpy(to, &value, 1); });
}
void check_byte(rig& desk, const void* from, unsigned char value, int& wrong) {
  desk.dev.launch(desk.stream(), 1000,
                  [=, &wrong] { wrong += std::memcmp(from, &value, 1) == 0 ? 0 : 1; });
}

}  // namespace

TEST_CASE("one byte: it leaves, counts against the cap, and comes back") {
  rig desk;
  int wrong = 0;
  auto opts = small_options();
  opts.max_inflight = 0;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(1, desk.stream());
  write_byte(desk, x.data(), 0x42);
  open.commit<"fc1">(0, desk.stream(), x);
  const auto seen = off.counters().modules.at(0);
  CHECK(desk.dev.offloads() == 1);
  CHECK(seen.bytes_offloaded == 1);
  CHECK(seen.groups_offloaded == 1);
  CHECK(seen.cap_joins == 1);
  open.restore<"fc1">(0, desk.stream(), x);
  check_byte(desk, x.data(), 0x42, wrong);
  CHECK(desk.wrong() == 0);
  CHECK(wrong == 0);
}

TEST_CASE("one byte: found no room for the rest of its group, it is reloaded again with it") {
  rig desk;
  int wrong = 0;
  offloader off(desk.dev, arena_options(2 * size));
  auto open = off.begin();
  auto x = off.allocate(1, desk.stream());
  auto y = off.allocate(size, desk.stream());
  write_byte(desk, x.data(), 0x42);
  desk.write(y, 7);
  open.commit<"fc1">(0, desk.stream(), x, y);
  auto between = off.allocate(size, desk.stream());
  desk.write(between, 8);
  open.end_forward();
  CHECK(desk.dev.reloads() == 0);
  between.reset(desk.stream());
  open.restore<"fc1">(0, desk.stream(), x, y);
  check_byte(desk, x.data(), 0x42, wrong);
  desk.check(y, 7);
  CHECK(off.counters().modules.at(0).bytes_reloaded == size + 1);
  CHECK(desk.wrong() == 0);
  CHECK(wrong == 0);
}

TEST_CASE("one byte: kept by its layer, it may leave with another once its group is over") {
  for (const bool forgotten : {false, true}) {
    CAPTURE(forgotten);
    rig desk;
    auto opts = small_options();
    opts.offload_layers = {1};
    offloader off(desk.dev, opts);
    auto x = off.allocate(1, desk.stream());
    {
      auto open = off.begin();
      open.commit<"fc1">(0, desk.stream(), x);
      CHECK(x);
      if (forgotten) {
        open.forget<"fc1">(0);
      } else {
        open.restore<"fc1">(0, desk.stream(), x);
      }
      open.finish();
    }
    auto open = off.begin();
    open.commit<"fc1">(1, desk.stream(), x);
    CHECK_FALSE(x);
    CHECK(desk.dev.offloads() == 1);
  }
}

TEST_CASE("one byte: a view may be as narrow, and begin one byte behind its buffer") {
  rig desk;
  int wrong = 0;
  offloader off(desk.dev, small_options());
  auto x = off.allocate(4, desk.stream());
  write_byte(desk, x.as<unsigned char>() + 1, 0x42);
  auto part = x.view({.offset = 1, .width = 1});
  CHECK(part.data() == x.as<unsigned char>() + 1);
  CHECK(part.width() == 1);
  auto open = off.begin();
  open.commit<"fc1">(0, desk.stream(), part);
  open.restore<"fc1">(0, desk.stream(), part);
  check_byte(desk, part.data(), 0x42, wrong);
  CHECK(desk.wrong() == 0);
  CHECK(wrong == 0);
}

TEST_CASE("one byte: a view that begins so far behind its buffer is restored into a view") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto x = off.allocate(4, desk.stream());
  auto part = x.view({.offset = 1, .width = 2, .whole_storage = true});
  x.reset(desk.stream());
  auto open = off.begin();
  open.commit<"fc1">(0, desk.stream(), part);
  rig::buffer whole;
  CHECK_THROWS_AS(open.restore<"fc1">(0, desk.stream(), whole), tidepool::misuse_error);
  open.restore<"fc1">(0, desk.stream(), part);
  CHECK(part.width() == 2);
}
