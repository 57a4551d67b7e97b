// An exception that destroys an offloader runs nothing that was queued for it, and frees nothing
// that is in use.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::join_site;
using tidepool::machine;
using tidepool::virtual_device;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;

struct own_error {};

// A step whose kernels count themselves, and which is left in the middle by an exception.
void leave(rig& desk, const tidepool::options& opts, rig::stream_ref on, int& ran) {
  offloader off(desk.dev, opts);
  std::vector<int> here(1, 1);  // of this frame, which is gone when the offloader is
  auto open = off.begin();
  auto x = off.allocate(size, on);
  auto y = off.allocate(size, on);
  for (const auto* each : {&x, &y}) {
    desk.dev.launch(on, 1000, [&ran, frame = here.data(), at = each->data()] {
      std::memset(at, *frame, size);
      ++ran;
    });
  }
  open.commit<"fc1">(0, on, x);
  open.restore<"fc1">(0, on, x);
  throw own_error();
}

void train(rig& desk, rig::stream_ref on) {
  offloader off(desk.dev, small_options());
  off.on_report(nullptr);
  auto open = off.begin();
  auto x = off.allocate(size, on);
  desk.write_bytes(x.data(), size, 3, on);
  open.commit<"fc1">(0, on, x);
  open.restore<"fc1">(0, on, x);
  desk.check_rows(x.data(), {size, 1, size, 0}, 3, 0, on);
  x.reset(on);
  open.finish();
  off.end_step();
}

}  // namespace

TEST_CASE("unwinding: what is queued for an offloader that an exception destroys is dropped") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    int ran = 0;
    for (const auto& opts : {small_options(), arena_options(8 * size)}) {
      CHECK_THROWS_AS(leave(desk, opts, desk.stream(), ran), own_error);
      CHECK(ran == 0);
      desk.dev.synchronize();
      CHECK(ran == 0);
      train(desk, desk.stream());  // device and stream go on
      CHECK(desk.wrong() == 0);
      CHECK(ran == 0);
    }
    CHECK(desk.dev.device_held == 0);
    CHECK(desk.dev.host_held == 0);
  }
}

TEST_CASE("unwinding: another offloader, on a stream of its own, keeps what is under way") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    const auto second = desk.dev.make_stream();
    int ran = 0;
    offloader off(desk.dev, small_options());
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    desk.write(x, 1);
    open.commit<"fc1">(0, desk.stream(), x);
    CHECK_THROWS_AS(leave(desk, small_options(), second.ref(), ran), own_error);
    open.restore<"fc1">(0, desk.stream(), x);
    desk.check(x, 1);
    CHECK(desk.wrong() == 0);
    CHECK(ran == 0);
    open.finish();
  }
}

TEST_CASE("unwinding: another offloader, on the same stream, keeps what was queued before") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    rig desk(machine{.order_seed = seed});
    int ran = 0;
    offloader off(desk.dev, small_options());
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    auto y = off.allocate(size, desk.stream());
    desk.write(x, 1);
    open.commit<"fc1">(0, desk.stream(), x);
    desk.write(y, 2);  // no event stands for this yet, so that nobody could say that it is gone
    CHECK_THROWS_AS(leave(desk, small_options(), desk.stream(), ran), own_error);
    open.commit<"fc1">(1, desk.stream(), y);
    open.restore<"fc1">(1, desk.stream(), y);
    desk.check(y, 2);
    open.restore<"fc1">(0, desk.stream(), x);
    desk.check(x, 1);
    CHECK(desk.wrong() == 0);
    CHECK(ran == 0);
    open.finish();
  }
}

TEST_CASE(
    "unwinding: what was queued since on a stream of both is dropped, and waits for it fail") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  const auto fail = [&] {
    offloader other(desk.dev, small_options());
    auto z = other.allocate(size, desk.stream());
    desk.write(x, 1);
    open.commit<"fc1">(0, desk.stream(), x);
    throw own_error();
  };
  CHECK_THROWS_AS(fail(), own_error);
  CHECK_THROWS_AS(open.restore<"fc1">(0, desk.stream(), x), tidepool::device_error);
}

TEST_CASE("unwinding: work on a stream that the offloader never saw finds its memory still there") {
  rig desk;
  const auto second = desk.dev.make_stream();
  std::size_t poisoned = 0;
  const auto fail = [&] {
    offloader off(desk.dev, small_options());
    auto x = off.allocate(size, desk.stream());
    desk.dev.launch(second.ref(), 1000, [&poisoned, at = static_cast<unsigned char*>(x.data())] {
      for (std::size_t i = 0; i < size; ++i) poisoned += at[i] == 0xFF ? 1 : 0;
    });
    throw own_error();
  };
  CHECK_THROWS_AS(fail(), own_error);
  CHECK(poisoned == 0);
  CHECK(desk.dev.memory().free == desk.dev.memory().total);
  desk.dev.synchronize();
  CHECK(poisoned == size);
}

TEST_CASE("unwinding: an offloader that fails while it is made drops nothing of another's") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 1);
  open.commit<"fc1">(0, desk.stream(), x);
  auto rings = small_options();
  rings.memory = tidepool::memory_kind::slots;
  rings.slots = {{size, 1}, {std::size_t{1} << 62, 1}};
  CHECK_THROWS_AS(offloader(desk.dev, rings), tidepool::out_of_budget);
  open.restore<"fc1">(0, desk.stream(), x);
  desk.check(x, 1);
  CHECK(desk.wrong() == 0);
  open.finish();
}

TEST_CASE(
    "unwinding: what waits for dropped work is dropped with it, and a later wait is refused") {
  virtual_device dev;
  const auto one = dev.make_stream();
  const auto two = dev.make_stream();
  const auto three = dev.make_stream();
  std::string ran;
  const auto kernel = [&](const auto& on, char name) {
    dev.launch(on.ref(), 10, [&ran, name] { ran += name; });
  };
  auto of_one = dev.make_event();
  auto of_two = dev.make_event();
  kernel(two, 'a');
  kernel(one, 'b');
  dev.record(of_one, one.ref());
  dev.wait(two.ref(), of_one);
  kernel(two, 'c');
  dev.record(of_two, two.ref());
  dev.wait(three.ref(), of_two);
  kernel(three, 'd');
  dev.drop(one.ref());
  CHECK_THROWS_WITH_AS(dev.wait(three.ref(), of_one), doctest::Contains("work that was dropped"),
                       tidepool::device_error);
  CHECK_THROWS_AS(dev.wait(three.ref(), of_two), tidepool::device_error);
  kernel(one, 'e');
  dev.record(of_one, one.ref());
  dev.wait(two.ref(), of_one);
  kernel(two, 'f');
  dev.synchronize();
  CHECK(ran == "eaf");
}
