// Memory of a trainer's allocator that is short: what a release then starts, and what it must not.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "caching_allocator.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::machine;
using tidepool::options;
using tidepool::test::rig;
using tidepool::test::small_options;

using device = rig::device_type;
using allocator = tidepool::test::caching_allocator<device>;
using offloader = rig::offloader<tidepool::modules<"core_attn", "moe_act">>;

constexpr std::size_t size = 2048;

options budget_of(std::size_t bytes, std::size_t ahead = 3) {
  auto opts = small_options({"core_attn"});
  if (bytes > 0) opts.device_budget = bytes;
  opts.reload_ahead = ahead;
  return opts;
}

/// A link of 1 GB/s, and an allocator that can be made to have no more.
struct bench {
  rig desk{machine{.offload_rate = 1, .reload_rate = 1, .both_rate = 2, .poison = false}};
  allocator from{desk.dev, desk.stream()};
  int refused = 0;

  bench() { from.overwrites = false; }

  [[nodiscard]] auto memory() {
    return tidepool::memory_on<device>(
        desk.stream(),
        [this](std::size_t bytes) {
          auto* const data = from.take(bytes);
          refused += data == nullptr ? 1 : 0;
          return data;
        },
        [this](void* data) { from.give(data); });
  }
  [[nodiscard]] rig::buffer adopt(offloader& off, std::size_t bytes = size) {
    auto* const data = from.take(bytes);
    return off.adopt(data, bytes, desk.stream(), [this, data] { from.give(data); });
  }
  void work(double ns) {
    desk.dev.launch(desk.stream(), ns, [] {});
  }
};

}  // namespace

TEST_CASE("given memory: what was evicted does not come back at each release") {
  bench on;
  offloader off(on.desk.dev, budget_of(3 * size), {.memory = on.memory()});
  std::array<rig::buffer, 4> saved;
  auto chunk = off.begin();
  for (int l = 0; l < 4; ++l) {
    auto& each = saved[static_cast<std::size_t>(l)] = on.adopt(off);
    chunk.commit<"core_attn">(l, on.desk.stream(), each);
  }
  chunk.end_forward();
  on.desk.dev.synchronize();
  const auto before = off.counters().evictions;
  const auto begin = on.desk.dev.now_ns();
  chunk.restore<"core_attn">(3, on.desk.stream(), saved[3]);
  for (int i = 0; i < 20; ++i) {  // backward's own
    auto other = off.allocate<std::uint8_t>(size, on.desk.stream());
    on.work(100);
    other.reset(on.desk.stream());
  }
  on.desk.dev.synchronize();
  CHECK(off.counters().evictions - before <= 2);
  CHECK(on.desk.dev.now_ns() - begin < 12000);  // 2000 of work
  for (int l = 3; l-- > 0;) {
    chunk.restore<"core_attn">(l, on.desk.stream(), saved[static_cast<std::size_t>(l)]);
  }
  for (auto& each : saved) each.reset(on.desk.stream());
  chunk.finish();
}

TEST_CASE("given memory: a reload that cannot fit makes nobody wait") {
  bench on;
  offloader off(on.desk.dev, budget_of(40 * size), {.memory = on.memory()});
  auto first = off.begin();
  auto large = on.adopt(off, 30 * size);
  first.commit<"core_attn">(0, on.desk.stream(), large);
  auto held = on.adopt(off, 11 * size);
  first.end_forward();
  on.desk.dev.synchronize();
  off.release_borrowed();
  auto second = off.begin();
  std::vector<rig::buffer> saved(4);
  const auto begin = on.desk.dev.now_ns();
  const auto joins = off.counters().borrowed_joins;
  for (int l = 0; l < 4; ++l) {
    auto& each = saved[static_cast<std::size_t>(l)] = on.adopt(off, 4 * size);
    second.commit<"core_attn">(l, on.desk.stream(), each);
    auto small = on.adopt(off, 16);
    small.reset(on.desk.stream());
    on.work(100);
  }
  on.desk.dev.synchronize(on.desk.stream());
  CHECK(off.counters().borrowed_joins == joins);
  CHECK(on.desk.dev.now_ns() - begin < 1000);
}

TEST_CASE("given memory: a storage that a group saves twice is counted once") {
  bench on;
  offloader off(on.desk.dev, budget_of(3 * size), {.memory = on.memory()});
  auto chunk = off.begin();
  auto x = on.adopt(off, 2 * size);
  auto y = x.share();
  chunk.commit<"core_attn">(0, on.desk.stream(), x, y);
  chunk.end_forward();
  CHECK(off.counters().device_allocations == 1);
  chunk.restore<"core_attn">(0, on.desk.stream(), x, y);
  CHECK(off.counters().budget_exceeded == 0);
  x.reset(on.desk.stream());
  y.reset(on.desk.stream());
  chunk.finish();
}

TEST_CASE("given memory: an allocator that has no more is not asked at each release") {
  bench on;
  auto opts = budget_of(0);
  opts.borrowed_slack = 0;
  offloader off(on.desk.dev, opts, {.memory = on.memory()});
  auto chunk = off.begin();
  auto x = on.adopt(off, 2 * size);
  chunk.commit<"core_attn">(0, on.desk.stream(), x);
  on.from.most = on.from.in_use();
  chunk.end_forward();
  CHECK(on.refused == 1);
  for (int i = 0; i < 50; ++i) {
    on.from.most += 16;
    auto small = on.adopt(off, 16);
    small.reset(on.desk.stream());
    on.from.most -= 16;
  }
  CHECK(on.refused == 1);
  on.from.most = static_cast<std::size_t>(-1);
  chunk.restore<"core_attn">(0, on.desk.stream(), x);
  x.reset(on.desk.stream());
  chunk.finish();
}

TEST_CASE("given memory: what is adopted beyond the budget is counted") {
  bench on;
  offloader off(on.desk.dev, budget_of(3 * size), {.memory = on.memory()});
  const auto fits = on.adopt(off, 3 * size);
  CHECK(off.counters().budget_exceeded == 0);
  const auto more = on.adopt(off, size);
  CHECK(off.counters().budget_exceeded == 1);
}

TEST_CASE("given memory: an owner that drops a handle starts no reload in another's middle") {
  for (const bool drops : {false, true}) {
    CAPTURE(drops);
    bench on;
    bool asks = false;
    int taken = 0;
    offloader* self = nullptr;
    rig::buffer kept;
    offloader off(on.desk.dev, budget_of(0),
                  {.memory = tidepool::memory_on<device>(
                       on.desk.stream(),
                       [&](std::size_t bytes) {
                         // As torch's allocator does before it grows.
                         if (asks && ++taken == 2 && self != nullptr) self->release_borrowed();
                         return on.from.take(bytes);
                       },
                       [&](void* data) { on.from.give(data); })});
    self = &off;
    auto other = off.begin();
    auto chunk = off.begin();
    kept = on.adopt(off, 64);
    auto x = on.adopt(off);
    auto y = on.adopt(off);
    on.desk.write(x, 1);
    on.desk.write(y, 2);
    chunk.commit<"core_attn">(0, on.desk.stream(), x, y);
    auto* const data = on.from.take(size);
    auto waits = off.adopt(data, size, on.desk.stream(), [&, data] {
      on.from.give(data);
      if (drops) kept.reset(on.desk.stream());
    });
    on.from.most = 0;
    other.commit<"core_attn">(5, on.desk.stream(), waits);
    other.end_forward();
    chunk.end_forward();
    on.from.most = static_cast<std::size_t>(-1);
    asks = true;
    chunk.restore<"core_attn">(0, on.desk.stream(), x, y);
    on.desk.check(x, 1);
    on.desk.check(y, 2);
    CHECK(on.desk.wrong() == 0);
    for (auto* each : {&x, &y, &kept}) each->reset(on.desk.stream());
  }
}

TEST_CASE("given memory: an owner that drops a handle while a pass is given up") {
  bench on;
  offloader off(on.desk.dev, budget_of(5 * size), {.memory = on.memory()});
  auto kept = on.adopt(off, 2 * size);
  auto chunk = off.begin();
  auto x = on.adopt(off, 2 * size);
  auto y = on.adopt(off, 2 * size);
  chunk.commit<"core_attn">(0, on.desk.stream(), x);
  chunk.commit<"core_attn">(1, on.desk.stream(), y);
  chunk.end_forward();  // layer 1 is back, and there is no memory for layer 0
  auto next = off.begin();
  auto* const data = on.from.take(16);
  auto waits = off.adopt(data, 16, on.desk.stream(), [&, data] {
    on.from.give(data);
    kept.reset(on.desk.stream());
  });
  next.commit<"core_attn">(0, on.desk.stream(), waits);
  on.desk.dev.synchronize();
  const auto before = off.counters().device_allocations;
  chunk = {};
  on.desk.dev.synchronize();
  CHECK(off.counters().device_allocations == before);
}

TEST_CASE(
    "given memory: a stream that the trainer captures gives none, and the capture stays whole") {
  bench on;
  offloader off(on.desk.dev, budget_of(0, 0), {.memory = on.memory()});
  auto chunk = off.begin();
  auto x = on.adopt(off);
  on.desk.write(x, 1);
  chunk.commit<"core_attn">(0, on.desk.stream(), x);
  chunk.end_forward();
  const auto side = on.desk.dev.make_stream();
  on.desk.dev.begin_capture(on.desk.stream());
  on.work(100);
  CHECK_THROWS_WITH_AS(chunk.restore<"core_attn">(0, side.ref(), x),
                       doctest::Contains("the stream of this memory is being captured"),
                       tidepool::misuse_error);
  auto graph = on.desk.dev.end_capture(on.desk.stream());
  on.desk.dev.replay(graph, on.desk.stream());
  chunk.restore<"core_attn">(0, on.desk.stream(), x);
  on.desk.check(x, 1);
  CHECK(on.desk.wrong() == 0);
  x.reset(on.desk.stream());
  chunk.finish();
}

TEST_CASE("given memory: a handle that is destroyed starts no reload, as one that is reset does") {
  for (const bool reset : {false, true}) {
    CAPTURE(reset);
    bench on;
    offloader off(on.desk.dev, budget_of(2 * size), {.memory = on.memory()});
    auto chunk = off.begin();
    std::array<rig::buffer, 2> saved;
    for (int l = 0; l < 2; ++l) {
      auto& each = saved[static_cast<std::size_t>(l)] = on.adopt(off);
      chunk.commit<"core_attn">(l, on.desk.stream(), each);
    }
    std::optional held = on.adopt(off);
    chunk.end_forward();  // layer 1 is back, and there is no memory for layer 0
    CHECK(off.counters().device_allocations == 1);
    if (reset) held->reset(on.desk.stream());
    held.reset();
    CHECK(off.counters().device_allocations == (reset ? 2 : 1));
    for (int l = 2; l-- > 0;) {
      auto& each = saved[static_cast<std::size_t>(l)];
      chunk.restore<"core_attn">(l, on.desk.stream(), each);
      each.reset(on.desk.stream());
    }
    chunk.finish();
  }
}
