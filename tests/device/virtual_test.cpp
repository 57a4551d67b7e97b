#include "tidepool/device/virtual.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tidepool/error.hpp"

namespace {

using tidepool::copy_direction;
using tidepool::copy_shape;
using tidepool::machine;
using tidepool::virtual_device;

// 10 and 20 bytes a nanosecond alone, half of that each when both are busy, 100 ns before each
// copy.
machine round_numbers() {
  return {.offload_rate = 10, .reload_rate = 20, .both_rate = 15, .copy_latency_ns = 100};
}

copy_shape dense(std::size_t bytes) { return {bytes, 1, bytes, bytes}; }

/// Host memory for both sides of copies whose content does not matter.
struct room {
  std::vector<std::byte> source = std::vector<std::byte>(1 << 20);
  std::vector<std::byte> target = std::vector<std::byte>(1 << 20);

  void copy(virtual_device& dev, std::size_t bytes, copy_direction direction,
            virtual_device::stream_ref on) {
    dev.copy(target.data(), source.data(), dense(bytes), direction, on);
  }
};

constexpr auto out = copy_direction::device_to_host;
constexpr auto in = copy_direction::host_to_device;

}  // namespace

TEST_CASE("virtual device: nothing runs before somebody synchronizes") {
  virtual_device dev;
  const auto stream = dev.make_stream();
  int run = 0;
  dev.launch(stream.ref(), 50, [&] { ++run; });
  CHECK(run == 0);
  CHECK(dev.now_ns() == 0);
  dev.synchronize(stream.ref());
  CHECK(run == 1);
  CHECK(dev.now_ns() == doctest::Approx(50));
}

TEST_CASE("virtual device: kernels of one stream follow each other, of two run side by side") {
  virtual_device dev;
  const auto first = dev.make_stream();
  const auto second = dev.make_stream();
  std::vector<std::pair<int, double>> ends;
  const auto note = [&](int which) {
    return [&, which] { ends.emplace_back(which, dev.now_ns()); };
  };
  dev.launch(first.ref(), 30, note(1));
  dev.launch(first.ref(), 30, note(2));
  dev.launch(second.ref(), 40, note(3));
  dev.synchronize();
  REQUIRE(ends.size() == 3);
  CHECK(ends[0] == std::pair(1, 30.0));
  CHECK(ends[1] == std::pair(3, 40.0));
  CHECK(ends[2] == std::pair(2, 60.0));
}

TEST_CASE("virtual device: synchronizing one stream runs the clock no further than it needs") {
  virtual_device dev;
  const auto first = dev.make_stream();
  const auto second = dev.make_stream();
  bool ended = false;
  dev.launch(first.ref(), 10, {});
  dev.launch(second.ref(), 1000, [&] { ended = true; });
  dev.synchronize(first.ref());
  CHECK(dev.now_ns() == doctest::Approx(10));
  CHECK_FALSE(ended);
  dev.synchronize();
  CHECK(ended);
  CHECK(dev.now_ns() == doctest::Approx(1000));
}

TEST_CASE("virtual device: a copy takes its latency and its bytes at the rate of its direction") {
  room host;
  for (const auto& [direction, expected] :
       {std::pair(out, 100 + 5000 / 10.0), std::pair(in, 100 + 5000 / 20.0)}) {
    virtual_device dev(round_numbers());
    const auto stream = dev.make_stream();
    host.copy(dev, 5000, direction, stream.ref());
    dev.synchronize();
    CHECK(dev.now_ns() == doctest::Approx(expected));
  }
}

TEST_CASE("virtual device: a neighbour has a link and a latency of its own, or shares the host's") {
  room host;
  for (const bool shared : {false, true}) {
    CAPTURE(shared);
    auto about = round_numbers();
    about.peer_offload_rate = 40;
    about.peer_latency_ns = 50;
    about.peer_shares_link = shared;
    virtual_device dev(about);
    const auto one = dev.make_stream();
    const auto other = dev.make_stream();
    host.copy(dev, 4000, copy_direction::device_to_peer, one.ref());
    dev.synchronize();
    CHECK(dev.now_ns() == doctest::Approx(50 + (shared ? 400 : 100)));
    host.copy(dev, 4000, copy_direction::device_to_peer, one.ref());
    host.copy(dev, 4000, out, other.ref());
    const auto begin = dev.now_ns();
    dev.synchronize();
    // Alone 500 ns for the copy to the host; the other one's bytes need the same wire.
    CHECK(dev.now_ns() - begin == doctest::Approx(shared ? 50 + 800 : 500));
  }
}

TEST_CASE("virtual device: both directions at once share the rate for both") {
  room host;
  virtual_device dev(round_numbers());
  const auto offloads = dev.make_stream();
  const auto reloads = dev.make_stream();
  auto sent = dev.make_event(true);
  auto fetched = dev.make_event(true);
  auto begin = dev.make_event(true);
  dev.record(begin, offloads.ref());
  host.copy(dev, 5000, out, offloads.ref());
  dev.record(sent, offloads.ref());
  host.copy(dev, 20000, in, reloads.ref());
  dev.record(fetched, reloads.ref());
  dev.synchronize();
  // 15 of 10 + 20: each runs at half of its rate while the other does. The offload ends after
  // 100 + 5000 / 5 = 1100; by then 10 000 of the reload have moved, the rest alone takes 500.
  CHECK(dev.elapsed_us(begin, sent) * 1000 == doctest::Approx(1100));
  CHECK(dev.elapsed_us(begin, fetched) * 1000 == doctest::Approx(1600));
}

TEST_CASE("virtual device: a link with room for both slows neither") {
  room host;
  auto model = round_numbers();
  model.both_rate = 40;
  virtual_device dev(model);
  const auto offloads = dev.make_stream();
  const auto reloads = dev.make_stream();
  host.copy(dev, 5000, out, offloads.ref());
  host.copy(dev, 5000, in, reloads.ref());
  dev.synchronize();
  CHECK(dev.now_ns() == doctest::Approx(600));
}

TEST_CASE("virtual device: two copies of one direction share its rate") {
  room host;
  virtual_device dev(round_numbers());
  const auto first = dev.make_stream();
  const auto second = dev.make_stream();
  host.copy(dev, 1000, out, first.ref());
  host.copy(dev, 3000, out, second.ref());
  dev.synchronize();
  // Together until 1000 of each have moved (200 ns), then 2000 alone.
  CHECK(dev.now_ns() == doctest::Approx(100 + 200 + 200));
}

TEST_CASE("virtual device: the latency of one copy hides behind the bytes of another") {
  room host;
  virtual_device dev(round_numbers());
  const auto first = dev.make_stream();
  const auto second = dev.make_stream();
  host.copy(dev, 1000, out, first.ref());
  dev.launch(second.ref(), 100, {});
  host.copy(dev, 1000, out, second.ref());
  dev.synchronize();
  // The first moves from 100 to 200 alone; the second begins to move at 200.
  CHECK(dev.now_ns() == doctest::Approx(300));
}

TEST_CASE("virtual device: a copy of no bytes takes its latency") {
  room host;
  virtual_device dev(round_numbers());
  const auto stream = dev.make_stream();
  host.copy(dev, 0, out, stream.ref());
  dev.synchronize();
  CHECK(dev.now_ns() == doctest::Approx(100));
}

TEST_CASE("virtual device: a stream waits for what was recorded on another") {
  virtual_device dev;
  const auto first = dev.make_stream();
  const auto second = dev.make_stream();
  auto done = dev.make_event();
  double seen = 0;
  dev.launch(first.ref(), 70, {});
  dev.record(done, first.ref());
  dev.launch(first.ref(), 500, {});  // behind the record: not waited for
  dev.wait(second.ref(), done);
  dev.launch(second.ref(), 10, [&] { seen = dev.now_ns(); });
  dev.synchronize();
  CHECK(seen == doctest::Approx(80));
}

TEST_CASE("virtual device: an event never recorded is no wait") {
  virtual_device dev;
  const auto stream = dev.make_stream();
  const auto never = dev.make_event();
  dev.wait(stream.ref(), never);
  dev.launch(stream.ref(), 5, {});
  dev.synchronize();
  CHECK(dev.now_ns() == doctest::Approx(5));
}

TEST_CASE("virtual device: a wait means the record before it, whatever is recorded later") {
  virtual_device dev;
  const auto first = dev.make_stream();
  const auto second = dev.make_stream();
  const auto third = dev.make_stream();
  auto mark = dev.make_event(true);
  auto begin = dev.make_event(true);
  dev.record(begin, first.ref());
  double early = 0;
  double late = 0;
  dev.launch(first.ref(), 10, {});
  dev.record(mark, first.ref());
  dev.wait(second.ref(), mark);
  dev.launch(second.ref(), 1, [&] { early = dev.now_ns(); });
  dev.launch(first.ref(), 90, {});
  dev.record(mark, first.ref());
  dev.wait(third.ref(), mark);
  dev.launch(third.ref(), 1, [&] { late = dev.now_ns(); });
  dev.synchronize();
  CHECK(early == doctest::Approx(11));
  CHECK(late == doctest::Approx(101));
  CHECK(dev.elapsed_us(begin, mark) == doctest::Approx(0.1));  // of its last record
}

TEST_CASE(
    "virtual device: an event may be recorded on another stream, and destroyed before it ran") {
  virtual_device dev;
  const auto first = dev.make_stream();
  const auto second = dev.make_stream();
  std::vector<int> order;
  dev.launch(first.ref(), 100, [&] { order.push_back(1); });
  {
    auto mark = dev.make_event();
    dev.record(mark, second.ref());
    dev.record(mark, first.ref());
    dev.wait(second.ref(), mark);
  }
  const auto reused = dev.make_event();  // takes its place
  dev.wait(second.ref(), reused);
  dev.launch(second.ref(), 1, [&] { order.push_back(2); });
  dev.synchronize();
  CHECK(order == std::vector{1, 2});
}

TEST_CASE("virtual device: work of a destroyed stream still runs, a new stream has a new key") {
  virtual_device dev;
  bool run = false;
  std::uint64_t key = 0;
  {
    const auto brief = dev.make_stream();
    key = brief.ref().key();
    dev.launch(brief.ref(), 10, [&] { run = true; });
  }
  std::set<std::uint64_t> keys{key};
  for (int i = 0; i < 5; ++i) {
    const auto next = dev.make_stream();
    CHECK(keys.insert(next.ref().key()).second);
    dev.synchronize();
  }
  CHECK(run);
}

TEST_CASE("virtual device: streams and events move") {
  virtual_device dev;
  auto stream = dev.make_stream();
  const auto key = stream.ref().key();
  auto moved = std::move(stream);
  CHECK(moved.ref().key() == key);
  auto other = dev.make_stream();
  other = std::move(moved);
  CHECK(other.ref().key() == key);
  auto mark = dev.make_event();
  auto next = std::move(mark);
  dev.launch(other.ref(), 10, {});
  dev.record(next, other.ref());
  dev.synchronize();
  CHECK(dev.now_ns() == doctest::Approx(10));
}

TEST_CASE("virtual device: real bytes move, row by row where there are rows") {
  virtual_device dev;
  const auto stream = dev.make_stream();
  std::vector<unsigned char> source(100);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i);
  SUBCASE("dense, of an odd size") {
    std::vector<unsigned char> target(100, 255);
    dev.copy(target.data(), source.data(), dense(77), out, stream.ref());
    dev.synchronize();
    CHECK(std::equal(target.begin(), target.begin() + 77, source.begin()));
    CHECK(target[77] == 255);
  }
  SUBCASE("pitched") {
    for (const std::size_t rows : {2U, 3U, 5U}) {
      std::vector<unsigned char> target(100, 255);
      dev.copy(target.data(), source.data(),
               {.width = 4, .rows = rows, .source_pitch = 20, .target_pitch = 7}, out,
               stream.ref());
      dev.synchronize();
      for (std::size_t i = 0; i < target.size(); ++i) {
        const auto row = i / 7;
        const bool written = row < rows && i % 7 < 4;
        CHECK(target[i] == (written ? source[row * 20 + i % 7] : 255));
      }
    }
  }
}

TEST_CASE("virtual device: a copy reads half at its start and half at its end") {
  auto model = round_numbers();
  virtual_device dev(model);
  const auto copies = dev.make_stream();
  const auto compute = dev.make_stream();
  std::vector<char> source(1000, 'a');
  std::vector<char> target(1000, '-');
  dev.copy(target.data(), source.data(), dense(1000), out, copies.ref());
  dev.launch(compute.ref(), 150, [&] { std::fill(source.begin(), source.end(), 'b'); });
  dev.synchronize();
  CHECK(target.front() == 'a');
  CHECK(target[499] == 'a');
  CHECK(target[500] == 'b');
  CHECK(target.back() == 'b');
}

TEST_CASE("virtual device: device memory has a capacity and a peak") {
  virtual_device dev(machine{.device_bytes = 1000, .host_bytes = 500});
  CHECK(dev.memory().total == 1000);
  CHECK(dev.memory().free == 1000);
  auto* const first = dev.try_allocate(600);
  REQUIRE(first != nullptr);
  CHECK(dev.memory().free == 400);
  CHECK(dev.try_allocate(401) == nullptr);
  auto* const second = dev.try_allocate(400);
  CHECK(second != nullptr);
  dev.deallocate(first);
  CHECK(dev.memory().free == 600);
  CHECK(dev.peak() == 1000);
  CHECK_THROWS_WITH_AS(static_cast<void>(dev.allocate(601)), doctest::Contains("601 bytes"),
                       tidepool::device_error);
  auto* const third = dev.allocate(600);
  dev.deallocate(second);
  dev.deallocate(third);
  dev.deallocate(nullptr);
  CHECK(dev.memory().free == 1000);
}

TEST_CASE("virtual device: host memory has a capacity of its own") {
  virtual_device dev(machine{.device_bytes = 1000, .host_bytes = 500});
  auto* const host = dev.try_allocate_host(500);
  REQUIRE(host != nullptr);
  CHECK(dev.try_allocate_host(1) == nullptr);
  CHECK(dev.memory().free == 1000);
  dev.deallocate_host(host);
  auto* const again = dev.try_allocate_host(500);
  CHECK(again != nullptr);
  dev.deallocate_host(again);
}

TEST_CASE("virtual device: memory is aligned, and what is left is given back with the device") {
  virtual_device dev;
  for (const std::size_t bytes : {1U, 255U, 256U, 1000U}) {
    CHECK(reinterpret_cast<std::uintptr_t>(dev.try_allocate(bytes)) % 256 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(dev.try_allocate_host(bytes)) % 256 == 0);
  }
}

TEST_CASE("virtual device: fresh memory is poison, numbers in it are none") {
  virtual_device dev;
  for (auto* pointer : {dev.try_allocate(64), dev.try_allocate_host(64)}) {
    float value = 0;
    std::memcpy(&value, pointer, sizeof value);
    CHECK(value != value);
  }
}

TEST_CASE(
    "virtual device: poison on a stream comes in its order, or not at all where that is off") {
  for (const bool poisons : {true, false}) {
    virtual_device dev(machine{.poison = poisons});
    const auto stream = dev.make_stream();
    std::array<unsigned char, 16> bytes{};
    unsigned char seen = 1;
    dev.launch(stream.ref(), 10, [&] { bytes[3] = 7; });
    dev.poison(bytes.data(), bytes.size(), stream.ref());
    dev.launch(stream.ref(), 10, [&] { seen = bytes[3]; });
    dev.synchronize();
    CHECK(seen == (poisons ? 0xFF : 7));
    CHECK(dev.now_ns() == doctest::Approx(20));
  }
}

TEST_CASE("virtual device: freeing waits for what is queued") {
  virtual_device dev;
  const auto stream = dev.make_stream();
  auto* const pointer = static_cast<int*>(dev.allocate(sizeof(int)));
  bool run = false;
  dev.launch(stream.ref(), 10, [&, pointer] {
    *pointer = 1;
    run = true;
  });
  dev.deallocate(pointer);
  CHECK(run);
}

TEST_CASE("virtual device: joins are left out by kind") {
  using tidepool::join_site;
  virtual_device dev;
  CHECK_FALSE(dev.leaves_out(join_site::producer));
  dev.leave_out(join_site::producer);
  dev.leave_out(join_site::cap);
  CHECK(dev.leaves_out(join_site::producer));
  CHECK(dev.leaves_out(join_site::cap));
  CHECK_FALSE(dev.leaves_out(join_site::consumer));
}

TEST_CASE("virtual device: the same program gives the same times and the same order") {
  const auto trace = [](std::uint64_t order_seed) {
    room host;
    virtual_device dev(machine{.order_seed = order_seed});
    std::vector<std::pair<int, double>> seen;
    std::vector<virtual_device::stream> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(dev.make_stream());
    std::mt19937_64 random(5);
    for (int i = 0; i < 200; ++i) {
      const auto on = streams[random() % 4].ref();
      if (random() % 3 == 0) {
        host.copy(dev, random() % 100000, random() % 2 == 0 ? out : in, on);
      } else {
        dev.launch(on, static_cast<double>(random() % 5000),
                   [&, i] { seen.emplace_back(i, dev.now_ns()); });
      }
    }
    dev.synchronize();
    return seen;
  };
  CHECK(trace(0) == trace(0));
  CHECK(trace(7) == trace(7));
  CHECK(trace(7) != trace(8));
  CHECK(trace(0) != trace(7));
}

TEST_CASE("virtual device: a random order is a legal one") {
  constexpr std::size_t stream_count = 4;
  constexpr std::size_t op_count = 60;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    virtual_device dev(machine{.order_seed = seed});
    std::mt19937_64 random(seed);
    std::vector<virtual_device::stream> streams;
    for (std::size_t i = 0; i < stream_count; ++i) streams.push_back(dev.make_stream());
    std::vector<virtual_device::event> events;
    std::array<std::vector<std::size_t>, op_count> needs;  // what has to end before
    std::array<std::size_t, stream_count> last{};
    last.fill(op_count);
    std::vector<bool> ended(op_count);
    std::size_t early = 0;
    std::size_t run = 0;
    for (std::size_t i = 0; i < op_count; ++i) {
      const auto stream = random() % stream_count;
      if (last[stream] < op_count) needs[i].push_back(last[stream]);
      last[stream] = i;
      if (i > 0 && random() % 3 == 0) {
        needs[i].push_back(random() % i);
        dev.wait(streams[stream].ref(), events[needs[i].back()]);
      }
      dev.launch(streams[stream].ref(), 10, [&, i] {
        for (const auto other : needs[i]) early += ended[other] ? 0 : 1;
        ended[i] = true;
        ++run;
      });
      events.push_back(dev.make_event());
      dev.record(events.back(), streams[stream].ref());
    }
    dev.synchronize();
    CHECK(run == op_count);
    CHECK(early == 0);
  }
}

TEST_CASE("virtual device: every legal order may come") {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    virtual_device dev(machine{.order_seed = seed});
    const auto first = dev.make_stream();
    const auto second = dev.make_stream();
    auto mark = dev.make_event();
    std::vector<int> order;
    const auto note = [&](int which) { return [&order, which] { order.push_back(which); }; };
    dev.launch(first.ref(), 1, note(1));
    dev.record(mark, first.ref());
    dev.launch(first.ref(), 1, note(2));
    dev.launch(second.ref(), 1, note(3));
    dev.wait(second.ref(), mark);
    dev.launch(second.ref(), 1, note(4));
    dev.synchronize();
    orders.insert(order);
  }
  // Of 1 before 2, 3 before 4 and 1 before 4.
  CHECK(orders == std::set<std::vector<int>>{
                      {1, 2, 3, 4}, {1, 3, 2, 4}, {1, 3, 4, 2}, {3, 1, 2, 4}, {3, 1, 4, 2}});
}

TEST_CASE("virtual device: in a random order a copy may be overtaken between start and end") {
  std::set<std::pair<char, char>> seen;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    virtual_device dev(machine{.order_seed = seed});
    const auto copies = dev.make_stream();
    const auto compute = dev.make_stream();
    std::array<char, 2> source{'a', 'a'};
    std::array<char, 2> target{};
    dev.copy(target.data(), source.data(), dense(2), out, copies.ref());
    dev.launch(compute.ref(), 1, [&] { source = {'b', 'b'}; });
    dev.synchronize();
    seen.emplace(target[0], target[1]);
  }
  CHECK(seen == std::set<std::pair<char, char>>{{'a', 'a'}, {'a', 'b'}, {'b', 'b'}});
}

TEST_CASE("virtual device: a kernel that throws reaches who synchronizes, and the rest goes on") {
  virtual_device dev;
  const auto stream = dev.make_stream();
  bool run = false;
  dev.launch(stream.ref(), 10, [] { throw tidepool::device_error("broken", 7); });
  dev.launch(stream.ref(), 10, [&] { run = true; });
  CHECK_THROWS_AS(dev.synchronize(), tidepool::device_error);
  CHECK_FALSE(run);
  dev.synchronize();
  CHECK(run);
}
