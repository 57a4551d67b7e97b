// Programs that are right though they look wrong: nothing is found.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "checked_training.hpp"

namespace {

using tidepool::copy_direction;
using tidepool::test::arena_options;
using tidepool::test::checked;
using tidepool::test::checked_offloader;
using tidepool::test::checked_training;
using desk = tidepool::test::checked_desk;
using tidepool::test::small_options;
using tidepool::test::tensor_bytes;

void check_right(const desk& at) {
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
}

}  // namespace

TEST_CASE("right: steps on one stream, in as little memory as there may be") {
  desk at;
  checked_offloader off(at.dev, arena_options(3 * tensor_bytes));
  checked_training work{at, off};
  for (int i = 0; i < 4; ++i) work.step(at.compute.ref());
  CHECK(off.counters().arena_waits > 0);
  check_right(at);
}

TEST_CASE("right: two streams that meet by way of a third") {
  desk at;
  auto third = at.dev.make_stream();
  std::array<float, 64> weights{};
  at.dev.writes(std::span(weights), at.compute.ref(), "optimizer");
  at.join(at.compute.ref(), third.ref());
  at.join(third.ref(), at.side.ref());
  at.dev.writes(std::span(weights), at.side.ref(), "gemm");
  check_right(at);
}

TEST_CASE("right: the host waits, and no stream does") {
  desk at;
  std::array<float, 64> weights{};
  at.dev.writes(std::span(weights), at.compute.ref(), "optimizer");
  at.dev.synchronize(at.compute.ref());
  at.dev.writes(std::span(weights), at.side.ref(), "gemm");
  at.dev.synchronize();
  at.dev.host_reads(weights.data(), sizeof weights, "checkpoint");
  check_right(at);
}

TEST_CASE("right: the host saw that an event has passed") {
  desk at;
  std::array<float, 64> weights{};
  auto mark = at.dev.make_event();
  at.dev.writes(std::span(weights), at.compute.ref(), "optimizer");
  at.dev.record(mark, at.compute.ref());
  at.dev.launch(at.side.ref(), 1, [] {});
  at.dev.checked::watched::synchronize();  // the device goes on, and nobody is told
  REQUIRE(at.dev.passed(mark));
  at.dev.writes(std::span(weights), at.side.ref(), "gemm");
  check_right(at);
}

TEST_CASE("right: halves of one array, written on two streams") {
  desk at;
  std::array<float, 64> sums{};
  const std::span<float> all(sums);
  at.dev.writes(all.first(32), at.compute.ref(), "left");
  at.dev.writes(all.last(32), at.side.ref(), "right");
  at.join(at.compute.ref(), at.side.ref());
  at.dev.reads(all, at.side.ref(), "both");
  check_right(at);
}

TEST_CASE("right: two streams read at once, and the writer waits for both") {
  desk at;
  auto third = at.dev.make_stream();
  std::array<float, 64> weights{};
  at.dev.writes(std::span(weights), at.compute.ref(), "optimizer");
  for (const auto& to : {at.side.ref(), third.ref()}) {
    at.join(at.compute.ref(), to);
    at.dev.reads(std::span(weights), to, "gemm");
    at.join(to, at.compute.ref());
  }
  at.dev.writes(std::span(weights), at.compute.ref(), "optimizer");
  check_right(at);
}

TEST_CASE("right: padding that nothing writes goes to the host and back, and nobody reads it") {
  desk at;
  checked_offloader off(at.dev, small_options());
  auto chunk = off.begin();
  auto x = off.allocate(tensor_bytes, at.compute.ref());
  at.dev.writes(x.data(), 100, at.compute.ref(), "rows");
  chunk.commit<"fc1">(0, at.compute.ref(), x);
  chunk.end_forward();
  chunk.restore<"fc1">(0, at.compute.ref(), x);
  at.dev.reads(x.data(), 100, at.compute.ref(), "rows");
  check_right(at);
}

TEST_CASE("right: an event that is recorded again stands for later work, of another stream") {
  desk at;
  std::array<float, 64> sums{};
  auto mark = at.dev.make_event();
  at.dev.record(mark, at.compute.ref());
  at.dev.writes(std::span(sums), at.side.ref(), "reduce");
  at.dev.record(mark, at.side.ref());
  at.dev.wait(at.compute.ref(), mark);
  at.dev.reads(std::span(sums), at.compute.ref(), "use");
  check_right(at);
}

TEST_CASE("right: an event that was never recorded is no wait") {
  desk at;
  auto mark = at.dev.make_event();
  at.dev.begin_capture(at.compute.ref());
  at.dev.wait(at.compute.ref(), mark);
  auto graph = at.dev.end_capture(at.compute.ref());
  at.dev.wait(at.side.ref(), mark);
  check_right(at);
}

TEST_CASE("right: memory is freed and allocated again at one address, for another stream") {
  desk at;
  for (int i = 0; i < 8; ++i) {
    const auto& on = i % 2 == 0 ? at.compute : at.side;
    auto* const own = at.dev.allocate(4096);
    at.dev.writes(own, 4096, on.ref(), "scratch");
    at.dev.reads(own, 4096, on.ref(), "scratch");
    at.dev.deallocate(own);
  }
  check_right(at);
}

TEST_CASE("right: memory that nobody touched changes streams without a word") {
  desk at(tidepool::machine{.poison = false});
  checked_offloader off(at.dev, arena_options(tensor_bytes));
  auto x = off.allocate(tensor_bytes, at.compute.ref());
  x.reset(at.side.ref());
  auto y = off.allocate(tensor_bytes, at.side.ref());
  at.write(y, at.side.ref());
  check_right(at);
}

TEST_CASE("right: a commit on a stream that writes nothing but waits for the writer") {
  desk at;
  checked_offloader off(at.dev, small_options());
  auto chunk = off.begin();
  auto x = off.allocate(tensor_bytes, at.compute.ref());
  at.write(x, at.compute.ref());
  at.join(at.compute.ref(), at.side.ref());
  chunk.commit<"fc1">(0, at.side.ref(), x);
  chunk.end_forward();
  chunk.restore<"fc1">(0, at.compute.ref(), x);
  at.join(at.compute.ref(), at.side.ref());
  at.read(x, at.side.ref());
  x.reset(at.side.ref());
  check_right(at);
}

TEST_CASE("right: a graph on two streams, launched again and again") {
  desk at;
  std::array<float, 64> sums{};
  const std::span<float> all(sums);
  at.dev.writes(all, at.compute.ref(), "clear");
  at.dev.begin_capture(at.compute.ref());
  at.join(at.compute.ref(), at.side.ref());
  at.dev.writes(all.first(32), at.compute.ref(), "left");
  at.dev.writes(all.last(32), at.side.ref(), "right");
  at.join(at.side.ref(), at.compute.ref());
  at.dev.reads(all, at.compute.ref(), "both");
  auto graph = at.dev.end_capture(at.compute.ref());
  for (int i = 0; i < 3; ++i) at.dev.replay(graph, at.compute.ref());
  at.join(at.compute.ref(), at.side.ref());
  at.dev.replay(graph, at.side.ref());
  at.dev.writes(all, at.side.ref(), "clear");
  check_right(at);
}

TEST_CASE("right: a pipelined schedule on two streams, with sharing and memory that is short") {
  desk at;
  checked_offloader off(at.dev, arena_options(24 * tensor_bytes));
  checked_training work{at, off};
  for (int step = 0; step < 3; ++step) {
    std::vector<checked_training::pass> open;
    for (int m = 0; m < 6; ++m) {
      open.push_back(work.forward(at.compute.ref(), m));
      if (open.size() < 3) continue;
      at.join(at.compute.ref(), at.side.ref());
      work.backward(open.front(), at.side.ref());
      open.erase(open.begin());
    }
    at.join(at.compute.ref(), at.side.ref());
    for (auto& each : open) work.backward(each, at.side.ref());
    off.end_step();
    at.join(at.side.ref(), at.compute.ref());
  }
  check_right(at);
}

TEST_CASE("right: adopted memory, used on a second stream and given up there") {
  desk at;
  auto opts = small_options();
  opts.borrowed_slack = 0;
  checked_offloader off(at.dev, opts);
  auto* const own = at.dev.allocate(tensor_bytes);
  for (int i = 0; i < 3; ++i) {
    at.dev.writes(own, tensor_bytes, at.compute.ref(), "produce");
    bool back = false;
    auto x = off.adopt(own, tensor_bytes, at.compute.ref(), [&] { back = true; });
    at.join(at.compute.ref(), at.side.ref());
    at.read(x, at.side.ref());
    x.reset(at.side.ref());
    REQUIRE(back);
  }
  at.dev.deallocate(own);
  check_right(at);
}

// Its bytes are back with the last reference, whatever copies read them when an earlier one goes.
TEST_CASE("right: a tensor that is adopted several times, whole and in part") {
  for (const bool part : {false, true}) {
    desk at;
    tidepool::offloader<checked, tidepool::modules<"fc1", "fc2">> off(at.dev, small_options());
    auto* const own = static_cast<std::byte*>(at.dev.allocate(tensor_bytes));
    const auto from = part ? tensor_bytes / 4 : 0;
    for (int i = 0; i < 3; ++i) {
      at.dev.writes(own, tensor_bytes, at.compute.ref(), "produce");
      bool back = false;
      std::shared_ptr<void> reference(own, [&](void*) { back = true; });
      auto one = off.adopt(own, tensor_bytes, at.compute.ref(), reference);
      auto two = off.adopt(own + from, tensor_bytes / 2, at.compute.ref(), reference);
      auto idle = off.adopt(own, tensor_bytes, at.compute.ref(), std::move(reference));
      at.join(at.compute.ref(), at.side.ref());
      auto pass = off.begin();
      pass.commit<"fc1">(0, at.compute.ref(), one);
      pass.commit<"fc2">(0, at.compute.ref(), two);  // still reads it when the first goes back
      off.release_borrowed();
      at.read(idle, at.side.ref());
      at.join(at.side.ref(), at.compute.ref());
      idle.reset(at.compute.ref());
      off.release_borrowed();
      CHECK(back);
      pass.end_forward();
      pass.restore<"fc2">(0, at.compute.ref(), two);
      two.reset(at.compute.ref());
      pass.restore<"fc1">(0, at.compute.ref(), one);
      one.reset(at.compute.ref());
      pass.finish();
      off.end_step();
    }
    at.dev.deallocate(own);
    check_right(at);
  }
}

TEST_CASE("right: two references on two streams, and a writer that waits for both") {
  desk at;
  auto opts = small_options();
  opts.borrowed_slack = 0;
  checked_offloader off(at.dev, opts);
  auto* const own = at.dev.allocate(tensor_bytes);
  for (int i = 0; i < 3; ++i) {
    at.dev.writes(own, tensor_bytes, at.compute.ref(), "produce");
    at.join(at.compute.ref(), at.side.ref());
    auto one = off.adopt(own, tensor_bytes, at.compute.ref(), [] {});
    auto two = off.adopt(own, tensor_bytes, at.side.ref(), [] {});
    at.read(one, at.compute.ref());
    at.read(two, at.side.ref());
    one.reset(at.compute.ref());
    two.reset(at.side.ref());
    at.join(at.side.ref(), at.compute.ref());
  }
  at.dev.deallocate(own);
  check_right(at);
}

TEST_CASE("right: a capture that fails leaves nothing behind") {
  desk at;
  checked_offloader off(at.dev, arena_options(6 * tensor_bytes));
  checked_training work{at, off};
  for (int i = 0; i < 2; ++i) work.step(at.compute.ref());
  CHECK_THROWS_AS(static_cast<void>(off.capture(at.compute.ref(),
                                                [&] {
                                                  auto open = work.forward(at.compute.ref());
                                                  throw 1;
                                                })),
                  int);
  for (int i = 0; i < 2; ++i) work.step(at.compute.ref());
  check_right(at);
}

// A trainer that declares nothing is told of its offloader's copies alone.
TEST_CASE("right: nothing is declared") {
  desk at;
  checked_offloader off(at.dev, arena_options(3 * tensor_bytes));
  for (int step = 0; step < 2; ++step) {
    auto chunk = off.begin();
    std::vector<desk::buffer> saved(4);
    for (int l = 0; l < 4; ++l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      x = off.allocate(tensor_bytes, at.compute.ref());
      chunk.commit<"fc1">(l, at.compute.ref(), x);
    }
    chunk.end_forward();
    for (int l = 4; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      chunk.restore<"fc1">(l, at.compute.ref(), x);
      x.reset(at.compute.ref());
    }
    chunk.finish();
    off.end_step();
  }
  check_right(at);
}
