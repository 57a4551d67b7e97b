// Reloads ahead of their use, and what gives way when the device is full.
#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/plan/detail/reload_queue.hpp"
#include "tidepool/rules/reloads_ahead.hpp"

namespace {

using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t size = 1024;

/// A chunk of `bytes.size()` groups of one buffer each.
class saved_chunk {
 public:
  saved_chunk(rig& desk, offloader& off, const std::vector<std::size_t>& bytes, int microbatch = 0)
      : desk_(&desk),
        tag_(static_cast<std::uint32_t>(microbatch * 100)),
        open(off.begin({.microbatch = microbatch})),
        x(bytes.size()) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      x[i] = off.allocate(bytes[i], desk.stream());
      desk.write(x[i], tag_ + static_cast<std::uint32_t>(i));
      open.commit<"core_attn">(static_cast<int>(i), desk.stream(), x[i]);
    }
  }

  void restore(std::size_t i) {
    open.restore<"core_attn">(static_cast<int>(i), desk_->stream(), x[i]);
    desk_->check(x[i], tag_ + static_cast<std::uint32_t>(i));
  }
  void release(std::size_t i) { x[i].reset(desk_->stream()); }
  void backward() {
    for (auto i = x.size(); i-- > 0;) {
      if (x[i]) continue;
      restore(i);
      release(i);
    }
    open.finish();
  }

 private:
  rig* desk_;
  std::uint32_t tag_;

 public:
  offloader::chunk open;
  std::vector<rig::buffer> x;
};

options ahead(std::size_t groups, std::optional<std::size_t> bytes = {}) {
  auto opts = small_options({"core_attn"});
  opts.reload_ahead = groups;
  opts.reload_ahead_bytes = bytes;
  return opts;
}

}  // namespace

TEST_CASE("reload: nothing comes back before forward has ended") {
  rig desk;
  offloader off(desk.dev, ahead(3));
  saved_chunk chunk(desk, off, {size, size});
  CHECK(desk.dev.reloads() == 0);
  chunk.open.end_forward();
  CHECK(desk.dev.reloads() == 2);
  chunk.open.end_forward();  // again is nothing
  CHECK(desk.dev.reloads() == 2);
}

TEST_CASE("reload: without end_forward reloads start with the first restore") {
  rig desk;
  offloader off(desk.dev, ahead(2));
  saved_chunk chunk(desk, off, {size, size, size, size, size});
  chunk.restore(4);
  CHECK(desk.dev.reloads() == 3);
  chunk.backward();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("reload: as many groups ahead as asked for, and one more with each restore") {
  for (const std::size_t count : {0U, 1U, 2U, 4U}) {
    CAPTURE(count);
    rig desk;
    offloader off(desk.dev, ahead(count));
    saved_chunk chunk(desk, off, std::vector<std::size_t>(8, size));
    chunk.open.end_forward();
    CHECK(desk.dev.reloads() == count);
    for (std::size_t i = 8; i-- > 0;) {
      chunk.restore(i);
      CHECK(desk.dev.reloads() == std::min<std::size_t>(8, (8 - i) + count));
      chunk.release(i);
    }
    chunk.open.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("reload: as many bytes ahead as asked for") {
  const std::vector<std::size_t> bytes{5 * size, size, 2 * size, size, size};
  const auto ahead_of = [&](std::size_t groups, std::size_t limit) {
    rig desk;
    offloader off(desk.dev, ahead(groups, limit));
    saved_chunk chunk(desk, off, bytes);
    chunk.open.end_forward();
    const auto first = desk.dev.reloads();
    chunk.backward();
    CHECK(desk.wrong() == 0);
    return first;
  };
  CHECK(ahead_of(10, 2 * size) == 2);
  CHECK(ahead_of(10, 4 * size) == 3);
  CHECK(ahead_of(10, 5 * size) == 4);
  CHECK(ahead_of(10, 100 * size) == 5);
  CHECK(ahead_of(1, 100 * size) == 1);  // whichever is met first
  CHECK(ahead_of(0, 100 * size) == 0);
}

TEST_CASE("reload: a limit of bytes below one group lets one go ahead, none is none") {
  rig desk;
  offloader off(desk.dev, ahead(10, 1));
  saved_chunk chunk(desk, off, {size, size});
  chunk.open.end_forward();
  CHECK(desk.dev.reloads() == 1);
  rig other;
  offloader never(other.dev, ahead(10, 0));
  saved_chunk late(other, never, {size, size});
  late.open.end_forward();
  CHECK(other.dev.reloads() == 0);
}

TEST_CASE("reload: the limit is over all chunks") {
  rig desk;
  offloader off(desk.dev, ahead(3));
  saved_chunk first(desk, off, {size, size}, 0);
  first.open.end_forward();
  saved_chunk second(desk, off, {size, size}, 1);
  second.open.end_forward();
  CHECK(desk.dev.reloads() == 3);
  first.backward();
  second.backward();
  CHECK(desk.dev.reloads() == 4);
  CHECK(desk.wrong() == 0);
}

// The host is no further than the device here; where it runs far ahead, so do the reloads.
TEST_CASE("reload: ahead of use it hides behind the kernels, on demand it does not") {
  const auto clock = [](std::size_t count) {
    tidepool::machine model;
    model.reload_rate = 1;  // 1 us for each group
    model.copy_latency_ns = 0;
    rig desk(model);
    offloader off(desk.dev, ahead(count));
    saved_chunk chunk(desk, off, std::vector<std::size_t>(10, 1000));
    chunk.open.end_forward();
    desk.dev.synchronize();
    const auto begin = desk.dev.now_ns();
    for (std::size_t i = 10; i-- > 0;) {
      chunk.restore(i);  // with a check of 1 us
      chunk.release(i);
      desk.dev.synchronize(desk.stream());
    }
    chunk.open.finish();
    CHECK(desk.wrong() == 0);
    return desk.dev.now_ns() - begin;
  };
  CHECK(clock(0) == doctest::Approx(20'000).epsilon(0.01));
  CHECK(clock(2) == doctest::Approx(10'000).epsilon(0.01));
}

TEST_CASE("reload: without room ahead nothing is lost, it comes on demand") {
  rig desk;
  auto opts = arena_options(2 * size, {"core_attn"});
  opts.reload_ahead = 8;
  offloader off(desk.dev, opts);
  saved_chunk chunk(desk, off, std::vector<std::size_t>(6, size));
  chunk.open.end_forward();
  CHECK(desk.dev.reloads() == 2);
  chunk.backward();
  CHECK(desk.dev.reloads() == 6);
  CHECK(off.counters().evictions == 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("reload: forward takes memory back from a group that came ahead, and its data is right") {
  for (std::uint64_t seed = 0; seed <= 20; ++seed) {
    CAPTURE(seed);
    rig desk(tidepool::machine{.order_seed = seed});
    auto opts = arena_options(3 * size, {"core_attn"});
    opts.reload_ahead = 2;
    offloader off(desk.dev, opts);
    saved_chunk first(desk, off, std::vector<std::size_t>(3, size), 0);
    first.open.end_forward();
    CHECK(desk.dev.reloads() == 2);
    auto x = off.allocate(size, desk.stream());
    CHECK(off.counters().evictions == 0);
    auto y = off.allocate(size, desk.stream());
    CHECK(off.counters().evictions == 1);  // the one that is needed last
    desk.write(x, 50);
    desk.write(y, 51);
    desk.check(x, 50);
    desk.check(y, 51);
    x.reset(desk.stream());
    y.reset(desk.stream());
    first.backward();
    CHECK(desk.dev.reloads() == 4);
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("reload: everything that came ahead gives way before forward is refused") {
  rig desk;
  auto opts = arena_options(4 * size, {"core_attn"});
  opts.reload_ahead = 4;
  offloader off(desk.dev, opts);
  saved_chunk first(desk, off, std::vector<std::size_t>(4, size), 0);
  first.open.end_forward();
  CHECK(desk.dev.reloads() == 4);
  {
    auto all = off.allocate(4 * size, desk.stream());
    desk.write(all, 9);
    CHECK(off.counters().evictions == 4);
    CHECK_THROWS_AS(static_cast<void>(off.allocate(1, desk.stream())), tidepool::out_of_budget);
  }
  first.backward();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("reload: a reload on demand takes the place of one that is needed later") {
  rig desk;
  auto opts = arena_options(2 * size, {"core_attn"});
  opts.reload_ahead = 2;
  offloader off(desk.dev, opts);
  saved_chunk chunk(desk, off, std::vector<std::size_t>(4, size));
  chunk.open.end_forward();  // 3 and 2 are there
  chunk.restore(0);          // out of order
  CHECK(off.counters().evictions == 1);
  chunk.release(0);
  chunk.restore(3);
  chunk.release(3);
  chunk.restore(2);
  chunk.release(2);
  chunk.restore(1);
  chunk.release(1);
  chunk.open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("reload: several tensors of a group come together or not at all") {
  rig desk;
  auto opts = arena_options(3 * size, {"core_attn"});
  opts.reload_ahead = 4;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  std::vector<rig::buffer> x(4);
  for (std::size_t i = 0; i < 4; ++i) {
    x[i] = off.allocate(size, desk.stream());
    desk.write(x[i], static_cast<std::uint32_t>(i));
    if (i % 2 == 1) {
      open.commit<"core_attn">(static_cast<int>(i / 2), desk.stream(), x[i - 1], x[i]);
    }
  }
  open.end_forward();
  CHECK(desk.dev.reloads() == 2);  // half of the other group would fit
  auto rest = off.allocate(size, desk.stream());
  CHECK(off.counters().evictions == 0);
  rest.reset(desk.stream());
  for (const std::size_t layer : {1U, 0U}) {
    auto& a = x[2 * layer];
    auto& b = x[2 * layer + 1];
    open.restore<"core_attn">(static_cast<int>(layer), desk.stream(), a, b);
    desk.check(a, static_cast<std::uint32_t>(2 * layer));
    desk.check(b, static_cast<std::uint32_t>(2 * layer + 1));
    a.reset(desk.stream());
    b.reset(desk.stream());
  }
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("reload: restore fails where nothing can give way, and may be tried again") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size, {"core_attn"}));
  saved_chunk chunk(desk, off, {size});
  {
    auto all = off.allocate(2 * size, desk.stream());
    CHECK_THROWS_WITH_AS(chunk.open.restore<"core_attn">(0, desk.stream(), chunk.x[0]),
                         doctest::Contains("reload of core_attn of layer 0, microbatch 0"),
                         tidepool::out_of_budget);
    CHECK_FALSE(chunk.x[0]);
  }
  chunk.backward();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("reload: a group reloaded again after a refused restore counts once against the limit") {
  rig desk;
  auto opts = arena_options(3 * size, {"core_attn"});
  opts.reload_ahead = 1;
  opts.margin = false;
  offloader off(desk.dev, opts);
  const auto stream = desk.stream();
  auto filler = off.allocate(size, stream);
  auto open = off.begin();
  const auto save = [&](int layer, auto&... handles) {
    open.commit<"core_attn">(layer, stream, handles...);
  };
  auto w = off.allocate(size, stream);
  save(0, w);
  auto x = off.allocate(size, stream);
  desk.write(x, 1);
  auto first = x.share();
  auto last = x.share();
  auto y = off.allocate(size, stream);
  desk.write(y, 2);
  save(1, first);
  save(2, x, y);
  save(3, last);
  open.end_forward();
  open.restore<"core_attn">(3, stream, last);  // y comes ahead, beside x
  last.reset(stream);
  auto other = off.allocate(size, stream);  // in the place of x
  CHECK(off.counters().evictions == 1);
  CHECK_THROWS_AS(open.restore<"core_attn">(2, stream, x, other), tidepool::misuse_error);
  other.reset(stream);
  const auto before = off.counters().modules[0].bytes_reloaded;
  open.start_reload<"core_attn">(2);
  filler.reset(stream);
  open.restore<"core_attn">(2, stream, x, y);
  desk.check(x, 1);
  desk.check(y, 2);
  CHECK(off.counters().modules[0].bytes_reloaded == before + 2 * size);  // x, and w ahead
  for (auto* each : {&x, &y}) each->reset(stream);
  open.restore<"core_attn">(1, stream, first);
  first.reset(stream);
  open.restore<"core_attn">(0, stream, w);
  open.finish();
  desk.dev.synchronize();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("reload: host memory that is still read is waited for once there is a step of it") {
  for (const std::size_t free_in_flight : {std::size_t{1}, std::size_t{2}}) {
    rig desk;
    auto opts = small_options();
    opts.host_step = 4096;
    rig::offloader<tidepool::modules<"fc1">> off(desk.dev, opts);
    auto open = off.begin();
    std::vector<rig::buffer> saved(free_in_flight);
    for (std::size_t i = 0; i < free_in_flight; ++i) {
      saved[i] = off.allocate(4096, desk.stream());
      desk.write(saved[i], 1);
      open.commit<"fc1">(static_cast<int>(i), desk.stream(), saved[i]);
    }
    CHECK(off.counters().host_reserved == free_in_flight * 4096);
    for (std::size_t i = free_in_flight; i-- > 0;) {
      open.restore<"fc1">(static_cast<int>(i), desk.stream(), saved[i]);
    }
    auto next = off.begin();
    auto x = off.allocate(4096, desk.stream());
    desk.write(x, 2);
    next.commit<"fc1">(0, desk.stream(), x);
    CHECK(off.counters().host_reserved == 2 * 4096);
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("reload: a group that had to give way is reloaded ahead again when there is room") {
  constexpr std::size_t big = 4096;
  constexpr std::size_t little = 1024;
  rig desk;
  auto opts = arena_options(big + little + 256);
  opts.reload_ahead = 4;  // so that the search comes to the end of the chunk
  opts.reload_ahead_bytes = 2 * little;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto kept = off.allocate(256, desk.stream());
  kept.keep_resident();
  open.commit<"expert_fc1">(0, desk.stream(), kept);
  rig::buffer saved[2];
  for (int l = 0; l < 2; ++l) {
    saved[l] = off.allocate(l == 0 ? big : little, desk.stream());
    desk.write(saved[l], static_cast<std::uint32_t>(l));
    open.commit<"core_attn">(l, desk.stream(), saved[l]);
  }
  open.end_forward();
  CHECK(desk.dev.reloads() == 2);
  auto gradient = off.allocate(big, desk.stream());
  CHECK(off.counters().evictions == 1);
  open.restore<"core_attn">(1, desk.stream(), saved[1]);
  desk.check(saved[1], 1);
  CHECK(desk.dev.reloads() == 2);
  gradient.reset(desk.stream());
  open.restore<"expert_fc1">(0, desk.stream(), kept);
  CHECK(desk.dev.reloads() == 3);
  open.restore<"core_attn">(0, desk.stream(), saved[0]);
  CHECK(desk.dev.reloads() == 3);
  desk.check(saved[0], 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("reload: what has come back counts no longer against the bytes that run ahead") {
  rig desk;
  auto opts = small_options();
  opts.reload_ahead = 8;
  opts.reload_ahead_bytes = 4096;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  rig::buffer saved[3];
  for (int l = 0; l < 3; ++l) {
    saved[l] = off.allocate(4096, desk.stream());
    open.commit<"core_attn">(l, desk.stream(), saved[l]);
  }
  open.end_forward();
  for (int l = 3; l-- > 0;) {
    CHECK(desk.dev.reloads() == static_cast<std::uint64_t>(3 - l));
    open.restore<"core_attn">(l, desk.stream(), saved[l]);
  }
}

TEST_CASE("reload: a chunk that saved nothing has its turn in backward, and the next runs ahead") {
  for (int step = 0; step < 2; ++step) {
    rig desk;
    offloader off(desk.dev, small_options());
    for (int before = 0; before < step; ++before) {
      off.begin().finish();
      off.begin().finish();
      off.end_step();
    }
    auto empty = off.begin();
    empty.end_forward();
    empty.finish();
    auto open = off.begin();
    auto x = off.allocate(4096, desk.stream());
    open.commit<"core_attn">(0, desk.stream(), x);
    open.end_forward();
    CHECK(desk.dev.reloads() == 1);
  }
}

TEST_CASE("reload: what is ahead has limits by groups and bytes, and the latest goes first") {
  tidepool::detail::reloads_ahead<int> ahead;
  CHECK(ahead.empty());
  CHECK_FALSE(ahead.may_grow(0, ahead.unlimited));
  auto first = ahead.add(1, 100);
  auto second = ahead.add(2, 50);
  CHECK(ahead.may_grow(3, 151));
  CHECK_FALSE(ahead.may_grow(2, 151));
  CHECK_FALSE(ahead.may_grow(3, 150));
  CHECK(ahead.latest() == 2);
  ahead.forget(first);
  ahead.forget(first);  // it is not there any more
  CHECK(ahead.latest() == 2);
  CHECK(ahead.may_grow(2, 51));
  CHECK_FALSE(ahead.may_grow(2, 50));
  ahead.forget(second);
  CHECK(ahead.empty());
  CHECK(second == ahead.none);
}

TEST_CASE("reload: in a step that is known the queue goes back by what was evicted") {
  namespace plan = tidepool::plan;
  using plan::detail::place;
  plan::profile step;  // one chunk of four groups, the third of which saves nothing
  step.chunks.push_back({0, std::vector<plan::group_profile>(4), 0});
  for (std::uint32_t g = 0; g < 4; ++g) {
    if (g != 2) step.storages.push_back({256, 0, g, 0});
    step.events.push_back({plan::event_kind::commit, g, 0, 1, 0});
  }
  for (std::uint32_t g = 4; g-- > 0;) {
    step.events.push_back({plan::event_kind::restore, g, 0, 1, 0});
  }
  const plan::detail::layout map(step);
  plan::detail::reload_queue queue;
  std::vector<std::uint32_t> seen;
  bool room = true;
  const auto advance = [&] {
    seen.clear();
    queue.advance([](std::uint32_t group) { return group != 1; },
                  [&](std::uint32_t group) {
                    if (!room) return false;
                    queue.where(group) = place::arriving;
                    seen.push_back(group);
                    return true;
                  });
    return seen;
  };
  using groups = std::vector<std::uint32_t>;
  for (int run = 0; run < 2; ++run) {
    queue.start(map, 2, queue.unlimited);
    for (std::uint32_t g = 0; g < 4; ++g) queue.where(g) = place::away;
    CHECK(advance().empty());  // its forward pass is not over
    queue.end_forward(0);
    room = false;
    CHECK(advance().empty());
    room = true;
    CHECK(advance() == groups{3, 0});
    CHECK(queue.evict() == 0);
    CHECK(queue.where(0) == place::away);
    CHECK(queue.evict() == 3);
    CHECK(queue.evict() == plan::none);
    CHECK(advance() == groups{3, 0});
    queue.restored(3);
    CHECK(queue.evict() == 0);
    SUBCASE("restored on demand") {
      queue.restored(0);
      CHECK(advance().empty());
    }
    SUBCASE("there at the end of the run") { CHECK(advance() == groups{0}); }
  }
  for (const auto there : {place::device, place::arriving, place::nowhere}) {
    queue.start(map, 2, queue.unlimited);
    queue.end_forward(0);
    queue.where(0) = place::away;
    queue.where(3) = there;  // passed over, but waited for where it was not committed yet
    CHECK(advance().size() == (there == place::nowhere ? 0 : 1));
  }
  queue.start(map, 2, 256);
  for (std::uint32_t g = 0; g < 4; ++g) queue.where(g) = place::away;
  queue.end_forward(0);
  CHECK(advance() == groups{3});
  queue.restored(3);
  CHECK(advance() == groups{0});
}
