// Borrowed memory: tensors in a trainer's own allocator, which gets them back in the order of its
// stream, and no sooner.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caching_allocator.hpp"
#include "heap_counter.hpp"
#include "rig.hpp"
#include "schedule.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/error.hpp"
#include "tidepool/plan.hpp"

namespace {

using tidepool::join_site;
using tidepool::machine;
using tidepool::memory_kind;
using tidepool::options;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using device = rig::device_type;
using allocator = tidepool::test::caching_allocator<device>;
using offloader = rig::offloader<tidepool::modules<"core_attn", "moe_act">>;

constexpr std::size_t size = 2048;
constexpr std::uint64_t seeds = 40;

// ---- a small training, with the same arithmetic whoever holds its tensors ----

enum class memory { trainers, own, given };  // nothing leaves; adopted, and reloaded into either

struct training_run {
  std::uint64_t hash = 0;
  std::uint64_t joins = 0;
  std::size_t left_over = 0;  // bytes that the allocator did not get back
  std::size_t peak = 0;       // of the allocator
};

class training {
 public:
  training(std::uint64_t seed, memory how, const options& opts,
           std::optional<join_site> without = {})
      : desk_(machine{.poison = true, .order_seed = seed}), from_(desk_.dev, desk_.stream()) {
    if (without) desk_.dev.leave_out(*without);
    if (how == memory::trainers) return;
    tidepool::parts parts;
    if (how == memory::given) {
      parts.memory = tidepool::memory_on<device>(
          desk_.stream(), [this](std::size_t bytes) { return from_.take(bytes); },
          [this](void* data) { from_.give(data); });
    }
    off_.emplace(desk_.dev, opts, std::move(parts));
    off_->on_report([](std::string_view) {});
  }

  training_run run(int steps = 3, int depth = 2) {
    gradient_.assign(words, 1);
    for (int s = 0; s < steps; ++s) step(depth);
    training_run result;
    if (off_) result.joins = off_->counters().borrowed_joins;
    off_.reset();
    desk_.dev.synchronize();
    result.hash = 14695981039346656037U;
    for (const auto each : gradient_) result.hash = (result.hash ^ each) * 1099511628211U;
    result.left_over = from_.in_use();
    result.peak = from_.peak();
    return result;
  }

 private:
  static constexpr std::size_t words = size / sizeof(std::uint32_t);
  static constexpr int layers = 4;

  struct pass {
    offloader::chunk chunk;
    std::vector<rig::buffer> saved{layers};
    std::vector<std::uint32_t*> kept{layers};
  };

  void step(int depth) {
    std::vector<std::optional<pass>> passes(4);
    for (const auto& each : tidepool::test::one_f_one_b(4, depth)) {
      auto& at = passes[static_cast<std::size_t>(each.microbatch)];
      if (each.backward) {
        backward(*at);
        at.reset();
      } else {
        forward(at.emplace(), each.microbatch);
      }
    }
    if (off_) off_->end_step();
  }

  std::uint32_t* take() { return static_cast<std::uint32_t*>(from_.take(size)); }

  void forward(pass& at, int microbatch) {
    const auto on = desk_.stream();
    if (off_) at.chunk = off_->begin({.microbatch = microbatch});
    auto* x = take();
    const auto first = static_cast<std::uint32_t>(microbatch) + ++steps_;
    desk_.dev.launch(on, 800, [=] {
      for (std::size_t i = 0; i < words; ++i) x[i] = first * 31U + static_cast<std::uint32_t>(i);
    });
    for (int l = 0; l < layers; ++l) {
      auto* const y = take();
      desk_.dev.launch(on, 900, [=] {
        for (std::size_t i = 0; i < words; ++i)
          y[i] = x[i] * 2654435761U + static_cast<std::uint32_t>(l);
      });
      const auto index = static_cast<std::size_t>(l);
      if (off_) {
        at.saved[index] = off_->adopt<std::uint32_t>(x, words, on, [this, x] { from_.give(x); });
        at.chunk.commit<"core_attn">(l, on, at.saved[index]);
      } else {
        at.kept[index] = x;
      }
      x = y;
    }
    from_.give(x);
    if (off_) at.chunk.end_forward();
  }

  void backward(pass& at) {
    const auto on = desk_.stream();
    for (int l = layers; l-- > 0;) {
      const auto index = static_cast<std::size_t>(l);
      auto& back = at.saved[index];
      if (off_) at.chunk.restore<"core_attn">(l, on, back);
      const auto* const x = off_ ? back.as<std::uint32_t>() : at.kept[index];
      desk_.dev.launch(on, 900, [this, x] {
        for (std::size_t i = 0; i < words; ++i) gradient_[i] = gradient_[i] * 16777619U ^ x[i];
      });
      off_ ? back.reset(on) : from_.give(at.kept[index]);
    }
    if (off_) at.chunk.finish();
  }

  rig desk_;
  allocator from_;
  std::vector<std::uint32_t> gradient_;
  std::optional<offloader> off_;
  std::uint32_t steps_ = 0;
};

/// Of so many orders of the device, those in which the result is another than with nothing moved.
std::uint64_t wrong_orders(memory how, const options& opts, std::optional<join_site> without = {}) {
  static const auto expected = training(0, memory::trainers, {}).run().hash;
  std::uint64_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const auto result = training(seed, how, opts, without).run();
    wrong += result.hash != expected ? 1 : 0;
    if (!without) CHECK(result.left_over == 0);
  }
  return wrong;
}

options slack_options(std::optional<std::size_t> slack) {
  auto opts = small_options({"core_attn"});
  opts.borrowed_slack = slack;
  return opts;
}

// ---- single calls ----

struct bench {
  rig desk;
  allocator from{desk.dev, desk.stream()};
  int given = 0;  // times that an owner got memory back

  explicit bench(const machine& model = {}) : desk(model) {}

  [[nodiscard]] rig::buffer adopt(auto& off, std::size_t bytes = size) {
    auto* const data = from.take(bytes);
    return off.adopt(data, bytes, desk.stream(), [this, data] {
      ++given;
      from.give(data);
    });
  }
};

}  // namespace

TEST_CASE("adopt: the same bits as with nothing moved, in every order of the device") {
  for (const auto slack : {std::optional<std::size_t>{}, {0}, {size}, {3 * size}}) {
    CAPTURE(slack.value_or(999));
    CHECK(wrong_orders(memory::own, slack_options(slack)) == 0);
    CHECK(wrong_orders(memory::given, slack_options(slack)) == 0);
  }
}

TEST_CASE("adopt: the same bits with caps, arenas, budgets and pieces") {
  auto capped = slack_options(0);
  capped.max_inflight = 1;
  CHECK(wrong_orders(memory::given, capped) == 0);
  auto arena = arena_options(4 * size, {"core_attn"});
  arena.borrowed_slack = size;
  CHECK(wrong_orders(memory::own, arena) == 0);
  auto tight = slack_options(2 * size);
  tight.device_budget = 4 * size;
  tight.copy_piece = 700;
  tight.reload_ahead = 6;
  CHECK(wrong_orders(memory::given, tight) == 0);
}

TEST_CASE("adopt: memory that goes back before its owner's stream has joined shows in the bits") {
  CHECK(wrong_orders(memory::own, slack_options(0), join_site::give_back) > seeds / 2);
  CHECK(wrong_orders(memory::given, slack_options(0), join_site::give_back) > seeds / 2);
}

TEST_CASE("adopt: memory of a trainer's allocator that is not waited for shows in the bits") {
  CHECK(wrong_orders(memory::given, slack_options(0), join_site::borrow) > seeds / 2);
}

TEST_CASE(
    "adopt: the owner has its memory back once its stream waited for the copy, and once only") {
  bench on;
  offloader off(on.desk.dev, slack_options(2 * size));
  auto chunk = off.begin();
  std::array<rig::buffer, 4> saved;
  for (int l = 0; l < 4; ++l) {
    auto& x = saved[static_cast<std::size_t>(l)] = on.adopt(off);
    on.desk.write(x, static_cast<std::uint32_t>(l));
    chunk.commit<"core_attn">(l, on.desk.stream(), x);
    CHECK(off.counters().borrowed_waiting <= 2 * size);
  }
  CHECK(on.given == 2);
  CHECK(off.counters().borrowed_joins == 2);
  CHECK(off.counters().borrowed == 2 * size);
  CHECK(off.counters().borrowed_peak == 3 * size);
  chunk.end_forward();
  for (int l = 4; l-- > 0;) {
    auto& x = saved[static_cast<std::size_t>(l)];
    chunk.restore<"core_attn">(l, on.desk.stream(), x);
    on.desk.check(x, static_cast<std::uint32_t>(l));
    x.reset(on.desk.stream());
  }
  chunk.finish();
  off.end_step();
  CHECK(on.desk.wrong() == 0);
  off.release_borrowed();
  CHECK(on.given == 4);
  CHECK(on.from.in_use() == 0);
}

TEST_CASE("adopt: no call blocks the host, whatever has to go back") {
  bench on;
  offloader off(on.desk.dev, slack_options(0));
  auto chunk = off.begin();
  auto x = on.adopt(off);
  on.desk.write(x, 1);
  const auto before = on.desk.dev.now_ns();
  chunk.commit<"core_attn">(0, on.desk.stream(), x);
  auto y = on.adopt(off);
  y.reset(on.desk.stream());
  off.release_borrowed();
  CHECK(on.given == 2);
  CHECK(on.desk.dev.now_ns() == before);
  CHECK(on.from.in_use() == 0);
}

TEST_CASE("adopt: a stream that waits anyhow, by its cap, takes no other join") {
  bench on;
  auto opts = slack_options(0);
  opts.max_inflight = 0;
  offloader off(on.desk.dev, opts);
  auto chunk = off.begin();
  for (int l = 0; l < 6; ++l) {
    auto x = on.adopt(off);
    chunk.commit<"core_attn">(l, on.desk.stream(), x);
    CHECK(on.given == l + 1);
  }
  CHECK(off.counters().modules[0].cap_joins == 6);
  CHECK(off.counters().borrowed_joins == 0);
}

TEST_CASE("adopt: what is over already goes back without a join") {
  bench on;
  offloader off(on.desk.dev, slack_options({}));
  auto chunk = off.begin();
  auto x = on.adopt(off);
  chunk.commit<"core_attn">(0, on.desk.stream(), x);
  auto y = on.adopt(off);
  CHECK(on.given == 0);
  on.desk.dev.synchronize();
  y.reset(on.desk.stream());  // a call that looks
  CHECK(on.given == 2);
  CHECK(off.counters().borrowed_joins == 0);
}

TEST_CASE("adopt: what was never committed goes back with its last handle, at once") {
  bench on;
  offloader off(on.desk.dev, slack_options({}));
  auto x = on.adopt(off);
  auto other = x.share();
  auto part = x.view({.offset = 64, .width = 32});
  x.reset(on.desk.stream());
  other.reset(on.desk.stream());
  CHECK(on.given == 0);
  part.reset(on.desk.stream());
  CHECK(on.given == 1);
  { const auto dropped = on.adopt(off); }
  CHECK(on.given == 2);
}

TEST_CASE("adopt: a use on another stream is waited for as well") {
  for (const bool left_out : {false, true}) {
    std::size_t wrong = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      bench on(machine{.order_seed = seed});
      if (left_out) on.desk.dev.leave_out(join_site::give_back);
      const auto second = on.desk.dev.make_stream();
      offloader off(on.desk.dev, slack_options(0));
      auto x = on.adopt(off);
      on.desk.write(x, 3);
      auto written = on.desk.dev.make_event();
      on.desk.dev.record(written, on.desk.stream());
      on.desk.dev.wait(second.ref(), written);
      on.desk.check_rows(x.data(), {size, 1, size, 0}, 3, 0, second.ref());
      x.reset(second.ref());
      CHECK(on.given == 1);
      wrong += on.desk.wrong() > 0 ? 1 : 0;
    }
    CHECK((wrong > 0) == left_out);
  }
}

TEST_CASE("adopt: shared and viewed, it goes back when the last group has left") {
  bench on;
  offloader off(on.desk.dev, slack_options(0));
  auto chunk = off.begin();
  auto x = on.adopt(off);
  on.desk.write(x, 7);
  auto again = x.share();
  auto part = x.view({.offset = 256, .width = 64, .rows = 4, .pitch = 128});
  chunk.commit<"core_attn">(0, on.desk.stream(), x);
  CHECK(on.given == 0);
  chunk.commit<"moe_act">(0, on.desk.stream(), part);
  part.reset(on.desk.stream());
  CHECK(on.given == 0);
  chunk.commit<"core_attn">(1, on.desk.stream(), again);
  CHECK(on.given == 1);
  CHECK(on.desk.dev.bytes[0] == size);  // copied once
  chunk.end_forward();
  chunk.restore<"core_attn">(1, on.desk.stream(), again);
  on.desk.check(again, 7);
  chunk.restore<"core_attn">(0, on.desk.stream(), x);
  on.desk.check(x, 7);
  again.reset(on.desk.stream());
  x.reset(on.desk.stream());
  chunk.finish();
  CHECK(on.given == 1);
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("adopt: the same memory twice, while the first still waits: a reference for each") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    bench on(machine{.order_seed = seed});
    offloader off(on.desk.dev, slack_options({}));
    auto* const data = on.from.take(size);
    const std::shared_ptr<void> tensor(data, [&](void* gone) {
      ++on.given;
      on.from.give(gone);
    });
    on.desk.write_bytes(data, size, 5, on.desk.stream());
    auto chunk = off.begin();
    auto x = off.adopt(data, size, on.desk.stream(), tensor);
    chunk.commit<"core_attn">(0, on.desk.stream(), x);
    CHECK(off.counters().borrowed_waiting == size);
    auto y = off.adopt(data, size, on.desk.stream(), tensor);
    chunk.commit<"core_attn">(1, on.desk.stream(), y);
    CHECK(tensor.use_count() == 3);
    off.release_borrowed();
    CHECK(tensor.use_count() == 1);
    CHECK(off.counters().borrowed == 0);
    chunk.end_forward();
    chunk.restore<"core_attn">(1, on.desk.stream(), y);
    on.desk.check(y, 5);
    chunk.restore<"core_attn">(0, on.desk.stream(), x);
    on.desk.check(x, 5);
    y.reset(on.desk.stream());
    x.reset(on.desk.stream());
    chunk.finish();
    CHECK(on.desk.wrong() == 0);
  }
}

TEST_CASE("adopt: what stays, small, opted out or kept, keeps its memory") {
  bench on;
  auto opts = slack_options(0);
  opts.min_tensor_elements = size / 4 + 1;
  offloader off(on.desk.dev, opts);
  auto chunk = off.begin();
  auto* const data = on.from.take(size);
  auto x = off.adopt<float>(static_cast<float*>(data), size / sizeof(float), on.desk.stream(),
                            [&] { on.from.give(data); });
  auto kept = on.adopt(off);
  kept.keep_resident();
  chunk.commit<"core_attn">(0, on.desk.stream(), x, kept);
  CHECK(x.data() == data);
  CHECK(kept);
  CHECK(on.from.in_use() == 2 * size);
  chunk.end_forward();
  chunk.restore<"core_attn">(0, on.desk.stream(), x, kept);
  x.reset(on.desk.stream());
  kept.reset(on.desk.stream());
  chunk.finish();
  CHECK(on.from.in_use() == 0);
  CHECK(off.counters().live_peak_without == 2 * size);
  CHECK(off.counters().saved() == 0);  // its allocator held all of it
}

TEST_CASE("adopt: a group that is discarded, or computed again, goes back and gets other memory") {
  bench on;
  auto opts = slack_options(0);
  opts.recompute_modules = {"layernorm"};
  offloader off(on.desk.dev, opts);
  auto chunk = off.begin();
  auto x = on.adopt(off);
  chunk.commit_or_discard<"layernorm">(0, on.desk.stream(), x);
  CHECK(on.given == 1);
  chunk.end_forward();
  chunk.restore_or_recompute<"layernorm">(
      0, on.desk.stream(), [&] { on.desk.write(x, 2); }, x);
  on.desk.check(x, 2);
  x.reset(on.desk.stream());
  chunk.finish();
  CHECK(on.given == 1);
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("adopt: a commit that fails leaves handle, memory and owner as they were") {
  bench on;
  auto opts = slack_options(0);
  opts.host_budget = size;
  opts.host_step = size;
  offloader off(on.desk.dev, opts);
  auto chunk = off.begin();
  auto x = on.adopt(off);
  on.desk.write(x, 4);
  auto y = on.adopt(off);
  auto* const data = y.data();
  on.desk.write(y, 5);
  chunk.commit<"core_attn">(0, on.desk.stream(), x);
  CHECK_THROWS_AS(chunk.commit<"core_attn">(1, on.desk.stream(), y), tidepool::out_of_budget);
  CHECK(y.data() == data);
  CHECK(on.given == 1);
  chunk = {};  // the host has room again
  chunk = off.begin();
  on.desk.dev.before_copy = [] { throw tidepool::device_error("no copy", 1); };
  CHECK_THROWS_AS(chunk.commit<"core_attn">(1, on.desk.stream(), y), tidepool::device_error);
  on.desk.dev.before_copy = {};
  CHECK(y.data() == data);
  CHECK(on.given == 1);
  on.desk.check(y, 5);
  y.reset(on.desk.stream());
  CHECK(on.given == 2);
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("adopt: a join that the device refuses is made by the next call") {
  bench on;
  offloader off(on.desk.dev, slack_options(0));
  auto chunk = off.begin();
  auto x = on.adopt(off);
  chunk.commit<"core_attn">(0, on.desk.stream(), x);
  auto y = on.adopt(off);
  CHECK(on.given == 1);
  int waits = 0;
  on.desk.dev.before_wait = [&] {  // the producer's goes well
    if (++waits > 1) throw tidepool::device_error("no wait", 1);
  };
  chunk.commit<"core_attn">(1, on.desk.stream(), y);
  on.desk.dev.before_wait = {};
  CHECK(waits == 2);
  CHECK(on.given == 1);
  CHECK(off.counters().borrowed_waiting == size);
  off.release_borrowed();
  CHECK(on.given == 2);
}

TEST_CASE("adopt: what cannot be adopted is refused, and its owner has it") {
  bench on;
  offloader off(on.desk.dev, slack_options(0));
  int given = 0;
  const auto owner = [&] { ++given; };
  CHECK_THROWS_WITH_AS(static_cast<void>(off.adopt(nullptr, size, on.desk.stream(), owner)),
                       doctest::Contains("adopt: a null pointer; give the address"),
                       tidepool::misuse_error);
  CHECK_THROWS_AS(
      static_cast<void>(off.adopt<double>(nullptr, ~std::size_t{0}, on.desk.stream(), owner)),
      tidepool::misuse_error);
  CHECK(given == 2);
  CHECK(off.counters().borrowed == 0);
}

TEST_CASE("adopt: at the end owners get back what is left, with its copies over") {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    bench on(machine{.order_seed = seed});
    rig::buffer outlives;
    {
      offloader off(on.desk.dev, slack_options({}));
      auto chunk = off.begin();
      auto x = on.adopt(off);
      chunk.commit<"core_attn">(0, on.desk.stream(), x);
      outlives = on.adopt(off);
      CHECK(on.given == 0);
    }
    CHECK(on.given == 0);  // a handle holds the memory of both
    outlives = {};
    CHECK(on.given == 2);
    CHECK(on.from.in_use() == 0);
  }
}

TEST_CASE("adopt: an exception that destroys the offloader gives memory back") {
  bench on;
  try {
    offloader off(on.desk.dev, slack_options({}));
    auto chunk = off.begin();
    auto x = on.adopt(off);
    auto y = on.adopt(off);
    chunk.commit<"core_attn">(0, on.desk.stream(), x);
    throw 1;
  } catch (int) {
  }
  CHECK(on.given == 2);
}

TEST_CASE("adopt: a chunk that is given up gives back what it had reloaded") {
  bench on;
  {
    offloader off(on.desk.dev, slack_options(0),
                  {.memory = tidepool::memory_on<device>(
                       on.desk.stream(), [&](std::size_t n) { return on.from.take(n); },
                       [&](void* data) { on.from.give(data); })});
    auto chunk = off.begin();
    auto x = on.adopt(off);
    auto y = on.adopt(off);
    chunk.commit<"core_attn">(0, on.desk.stream(), x);
    chunk.commit<"core_attn">(1, on.desk.stream(), y);
    chunk.end_forward();  // both are reloaded ahead
    CHECK(on.from.in_use() == 2 * size);
    chunk = {};
    off.release_borrowed();
    CHECK(on.from.in_use() == 0);
  }
  CHECK(on.desk.wrong() == 0);
}

// ---- graphs ----

TEST_CASE("adopt: captures refuse memory that a graph would use after it has gone back") {
  bench on;
  offloader off(on.desk.dev, slack_options(0));
  const auto step = [&](bool adopts) {
    auto chunk = off.begin();
    auto x = adopts ? on.adopt(off) : off.allocate(size, on.desk.stream());
    on.desk.write(x, 1);
    chunk.commit<"core_attn">(0, on.desk.stream(), x);
    chunk.end_forward();
    chunk.restore<"core_attn">(0, on.desk.stream(), x);
    x.reset(on.desk.stream());
    chunk.finish();
  };
  step(false);
  off.end_step();
  step(true);
  off.end_step();
  CHECK_THROWS_WITH_AS(static_cast<void>(off.capture(on.desk.stream(), [&] { step(true); })),
                       doctest::Contains("adopt: a capture is under way"), tidepool::misuse_error);
  CHECK(on.given == 2);  // the owner has what was refused
  auto before = on.adopt(off);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(off.capture(on.desk.stream(),
                                    [&] {
                                      auto chunk = off.begin();
                                      chunk.commit<"core_attn">(0, on.desk.stream(), before);
                                    })),
      doctest::Contains("lies in memory that goes back to its owner"), tidepool::misuse_error);
  CHECK(before);
  const auto graph = off.capture(on.desk.stream(), [&] { before.reset(on.desk.stream()); });
  CHECK(on.given == 2);  // nothing goes back inside a capture
  off.release_borrowed();
  CHECK(on.given == 3);
  CHECK(on.from.in_use() == 0);
}

TEST_CASE("adopt: an offloader whose memory goes back captures nothing") {
  bench on;
  offloader off(on.desk.dev, slack_options(0),
                {.memory = tidepool::memory_on<device>(
                     on.desk.stream(), [&](std::size_t n) { return on.from.take(n); },
                     [&](void* data, std::size_t) { on.from.give(data); })});
  CHECK_THROWS_WITH_AS(static_cast<void>(off.capture(on.desk.stream(), [] {})),
                       doctest::Contains("capture: the memory of this offloader (parts::memory)"),
                       tidepool::misuse_error);
}

// ---- memory that is given ----

TEST_CASE("memory_on: an offloader with memory of the trainer's refuses another kind") {
  rig desk;
  allocator from(desk.dev, desk.stream());
  CHECK_THROWS_WITH_AS(offloader(desk.dev, arena_options(4 * size, {"core_attn"}),
                                 {.memory = tidepool::memory_on<device>(
                                      desk.stream(), [&](std::size_t n) { return from.take(n); },
                                      [&](void* data) { from.give(data); })}),
                       doctest::Contains("take --memory out"), tidepool::option_error);
}

TEST_CASE("memory_on: a source of another device is refused") {
  rig desk;
  tidepool::virtual_device other;
  const auto stream = other.make_stream();
  CHECK_THROWS_WITH_AS(
      offloader(desk.dev, slack_options(0),
                {.memory = tidepool::memory_on<tidepool::virtual_device>(
                     stream.ref(), [](std::size_t) { return nullptr; }, [](void*) {})}),
      doctest::Contains("works on streams of another device"), tidepool::misuse_error);
}

TEST_CASE(
    "memory_on: an allocator that has no more takes back what was reloaded ahead, or says so") {
  bench on;
  offloader off(on.desk.dev, slack_options(0),
                {.memory = tidepool::memory_on<device>(
                     on.desk.stream(), [&](std::size_t n) { return on.from.take(n); },
                     [&](void* data) { on.from.give(data); })});
  on.from.most = 2 * size;
  auto chunk = off.begin();
  auto x = on.adopt(off);
  chunk.commit<"core_attn">(0, on.desk.stream(), x);
  auto y = on.adopt(off);
  chunk.commit<"core_attn">(1, on.desk.stream(), y);
  chunk.end_forward();
  CHECK(on.from.in_use() == 2 * size);
  const auto z = off.allocate(size, on.desk.stream());
  CHECK(off.counters().evictions == 1);
  const auto w = off.allocate(size, on.desk.stream());
  CHECK_THROWS_WITH_AS(chunk.restore<"core_attn">(1, on.desk.stream(), y),
                       doctest::Contains("the memory given to this offloader (parts::memory) has no"
                                         " more"),
                       tidepool::out_of_budget);
  const auto seen = off.counters();
  CHECK(seen.device_peak > 0);
  CHECK(seen.saved() == seen.live_peak_without - seen.borrowed_peak);  // counted once
}

// ---- budgets and plans ----

TEST_CASE("adopt: a budget keeps reloads ahead back, and is passed by what is needed now alone") {
  bench on;
  auto opts = slack_options({});
  opts.device_budget = 2 * size;
  opts.reload_ahead = 8;
  offloader off(on.desk.dev, opts,
                {.memory = tidepool::memory_on<device>(
                     on.desk.stream(), [&](std::size_t n) { return on.from.take(n); },
                     [&](void* data) { on.from.give(data); })});
  auto chunk = off.begin();
  std::array<rig::buffer, 4> saved;
  for (int l = 0; l < 4; ++l) {
    auto& x = saved[static_cast<std::size_t>(l)] = on.adopt(off);
    chunk.commit<"core_attn">(l, on.desk.stream(), x);
    CHECK(on.from.in_use() <= 2 * size);  // what waits counts
  }
  chunk.end_forward();
  CHECK(on.from.in_use() == 2 * size);
  CHECK(off.counters().budget_exceeded == 0);
  const auto held = on.adopt(off);  // in the place of what came ahead of its use
  CHECK(off.counters().evictions == 1);
  CHECK(on.from.in_use() <= 3 * size);
  chunk.restore<"core_attn">(3, on.desk.stream(), saved[3]);
  chunk.restore<"core_attn">(2, on.desk.stream(), saved[2]);
  chunk.restore<"core_attn">(1, on.desk.stream(), saved[1]);
  CHECK(off.counters().budget_exceeded == 2);
  CHECK(on.from.in_use() == 4 * size);
  const auto needed = off.allocate(size, on.desk.stream());
  CHECK(off.counters().budget_exceeded == 3);
  const auto again = off.allocate(size, on.desk.stream());  // asks anew, whatever passed before
  CHECK(off.counters().budget_exceeded == 4);
  const auto more = on.adopt(off);
  CHECK(off.counters().budget_exceeded == 5);
  for (auto& each : saved) each.reset(on.desk.stream());
}

TEST_CASE("adopt: of a group for which memory is short nothing is taken") {
  bench on;
  auto opts = slack_options(0);
  opts.device_budget = 3 * size;
  offloader off(on.desk.dev, opts,
                {.memory = tidepool::memory_on<device>(
                     on.desk.stream(), [&](std::size_t n) { return on.from.take(n); },
                     [&](void* data) { on.from.give(data); })});
  auto chunk = off.begin();
  std::array<rig::buffer, 4> saved;
  for (int l = 0; l < 2; ++l) {
    auto& x = saved[static_cast<std::size_t>(2 * l)] = on.adopt(off);
    auto& y = saved[static_cast<std::size_t>(2 * l + 1)] = on.adopt(off);
    chunk.commit<"core_attn">(l, on.desk.stream(), x, y);
  }
  chunk.end_forward();
  CHECK(off.counters().device_allocations == 2);  // layer 1, and no half of layer 0
  chunk.restore<"core_attn">(1, on.desk.stream(), saved[2], saved[3]);
  CHECK(off.counters().device_allocations == 2);
  saved[2].reset(on.desk.stream());
  saved[3].reset(on.desk.stream());
  CHECK(off.counters().device_allocations == 4);
  chunk.restore<"core_attn">(0, on.desk.stream(), saved[0], saved[1]);
  CHECK(off.counters().budget_exceeded == 0);
  for (auto& each : saved) each.reset(on.desk.stream());
  chunk.finish();
}

TEST_CASE("adopt: a reload that waited for memory begins when that comes free, not at a restore") {
  // Three equal tensors of which memory holds two: the last stays in use for 8 us, and then other
  // work runs for 20 us before the next is asked for. A reload takes some 4 us.
  bench on(machine{.offload_rate = 1, .reload_rate = 1, .both_rate = 2, .poison = false});
  auto opts = slack_options(0);
  opts.device_budget = 2 * size;
  offloader off(on.desk.dev, opts,
                {.memory = tidepool::memory_on<device>(
                     on.desk.stream(), [&](std::size_t n) { return on.from.take(n); },
                     [&](void* data) { on.from.give(data); })});
  std::array<rig::buffer, 3> saved;
  auto chunk = off.begin();
  for (int l = 0; l < 3; ++l) {
    auto& x = saved[static_cast<std::size_t>(l)] = on.adopt(off);
    on.desk.write(x, static_cast<std::uint32_t>(l));
    chunk.commit<"core_attn">(l, on.desk.stream(), x);
  }
  chunk.end_forward();
  on.desk.dev.synchronize();
  const auto work = [&](double ns) {
    on.desk.dev.launch(
        on.desk.stream(), ns, [] {}, "other");
  };
  const auto begin = on.desk.dev.now_ns();
  chunk.restore<"core_attn">(2, on.desk.stream(), saved[2]);
  on.desk.check(saved[2], 2);
  chunk.restore<"core_attn">(1, on.desk.stream(), saved[1]);
  on.desk.check(saved[1], 1);
  work(8000);
  saved[2].reset(on.desk.stream());  // layer 0 has its memory from here on
  work(20000);
  chunk.restore<"core_attn">(0, on.desk.stream(), saved[0]);
  on.desk.check(saved[0], 0);
  saved[0].reset(on.desk.stream());
  saved[1].reset(on.desk.stream());
  chunk.finish();
  on.desk.dev.synchronize();
  const auto elapsed = on.desk.dev.now_ns() - begin;
  CHECK(elapsed < 28000 + 6000);  // work and three readers; the reload ran beside them
  CHECK(on.desk.wrong() == 0);
}

TEST_CASE("adopt: a plan over given memory keeps to the budget") {
  for (const auto budget : {std::size_t{6}, std::size_t{9}, std::size_t{12}}) {
    CAPTURE(budget);
    bench on;
    auto opts = slack_options(0);
    opts.policy = tidepool::policy_kind::automatic;
    opts.plan_effort = 60;
    opts.device_budget = budget * size;
    offloader off(on.desk.dev, opts,
                  {.planner = tidepool::planner(),
                   .memory = tidepool::memory_on<device>(
                       on.desk.stream(), [&](std::size_t n) { return on.from.take(n); },
                       [&](void* data) { on.from.give(data); })});
    off.on_report([](std::string_view) {});
    std::size_t before = 0;
    for (int s = 0; s < 5; ++s) {
      auto chunk = off.begin();
      std::array<rig::buffer, 10> saved;
      for (int l = 0; l < 10; ++l) {
        auto& x = saved[static_cast<std::size_t>(l)] = on.adopt(off);
        on.desk.write(x, static_cast<std::uint32_t>(l), 4000);
        chunk.commit<"core_attn">(l, on.desk.stream(), x);
      }
      chunk.end_forward();
      for (int l = 10; l-- > 0;) {
        auto& x = saved[static_cast<std::size_t>(l)];
        chunk.restore<"core_attn">(l, on.desk.stream(), x);
        on.desk.check(x, static_cast<std::uint32_t>(l));
        x.reset(on.desk.stream());
      }
      chunk.finish();
      off.end_step();
      if (s == 2) before = off.counters().budget_exceeded;
    }
    REQUIRE(off.current_plan());
    CHECK(off.current_plan()->expected.runs);
    CHECK(off.current_plan()->expected.peak <= budget * size);
    CHECK(off.counters().live_peak <= budget * size);
    CHECK(off.counters().borrowed_peak <= budget * size);
    CHECK(off.counters().budget_exceeded == before);
    CHECK(on.desk.wrong() == 0);
  }
}

// Layers as a transformer has them: a large tensor that its module reads for long, and a smaller
// one right before it; two microbatches in flight.
struct planned_run {
  double step_us = 0;
  double expected_us = 0;
  std::size_t peak = 0;  // of the last step and all before, in the unit of the budget
  std::uint64_t exceeded = 0;
};
planned_run planned(std::size_t budget) {
  constexpr int layers = 6;
  constexpr std::size_t unit = 64 * 1024;
  bench on(machine{.copy_latency_ns = 100, .poison = false});
  on.from.overwrites = false;  // that takes time
  auto opts = small_options({"core_attn", "moe_act"});
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 200;
  opts.device_budget = budget * unit;
  offloader off(on.desk.dev, opts,
                {.planner = tidepool::planner(),
                 .memory = tidepool::memory_on<device>(
                     on.desk.stream(), [&](std::size_t n) { return on.from.take(n); },
                     [&](void* data) { on.from.give(data); })});
  off.on_report([](std::string_view) {});
  struct pass {
    decltype(off.begin()) chunk;
    std::array<rig::buffer, layers> large, small;
  };
  const auto work = [&](double us) { on.desk.dev.launch(on.desk.stream(), us * 1e3, [] {}); };
  const auto forward = [&](pass& at) {
    for (int l = 0; l < layers; ++l) {
      const auto i = static_cast<std::size_t>(l);
      work(6);
      at.large[i] = on.adopt(off, 7 * unit);
      at.chunk.commit<"core_attn">(l, on.desk.stream(), at.large[i]);
      work(4);
      at.small[i] = on.adopt(off, 4 * unit);
      at.chunk.commit<"moe_act">(l, on.desk.stream(), at.small[i]);
      work(6);
    }
    at.chunk.end_forward();
  };
  const auto backward = [&](pass& at) {
    for (int l = layers; l-- > 0;) {
      const auto i = static_cast<std::size_t>(l);
      work(8);
      at.chunk.restore<"moe_act">(l, on.desk.stream(), at.small[i]);
      work(2);
      at.small[i].reset(on.desk.stream());
      at.chunk.restore<"core_attn">(l, on.desk.stream(), at.large[i]);
      work(12);
      at.large[i].reset(on.desk.stream());
      work(10);
    }
    at.chunk.finish();
  };
  planned_run result;
  for (int s = 0; s < 8; ++s) {
    on.desk.dev.synchronize();
    const auto begin = on.desk.dev.now_ns();
    const auto exceeded = off.counters().budget_exceeded;
    std::array<pass, 4> passes;
    for (std::size_t p = 0; p <= passes.size(); ++p) {
      if (p < passes.size()) {
        passes[p].chunk = off.begin();
        forward(passes[p]);
      }
      if (p > 0) backward(passes[p - 1]);
    }
    off.end_step();
    on.desk.dev.synchronize();
    result.step_us = (on.desk.dev.now_ns() - begin) / 1e3;
    result.exceeded = off.counters().budget_exceeded - exceeded;
  }
  REQUIRE(off.current_plan());
  result.expected_us = off.current_plan()->expected.step_us;
  result.peak = off.counters().live_peak / unit;
  return result;
}

TEST_CASE("adopt: a plan over given memory takes as long as it was expected to") {
  const auto alone = planned(2 * 6 * 11);  // all of it stays
  for (const auto budget : {120U, 80U, 60U, 50U, 40U, 30U, 25U}) {
    CAPTURE(budget);
    const auto seen = planned(budget);
    CHECK(seen.step_us == doctest::Approx(seen.expected_us).epsilon(0.01));
    CHECK(seen.step_us <= 1.005 * alone.step_us);
    CHECK(seen.exceeded == 0);
    CHECK(seen.peak <= budget);
  }
}

// ---- lists that are known at run time ----

TEST_CASE("lists: commit and restore take as many handles as there are") {
  bench on;
  offloader off(on.desk.dev, slack_options(0));
  auto chunk = off.begin();
  std::array<rig::buffer, 5> saved;
  std::vector<rig::handle*> list;
  for (auto& each : saved) {
    each = on.adopt(off);
    on.desk.write(each, static_cast<std::uint32_t>(list.size()));
    list.push_back(&each);
  }
  chunk.commit<"core_attn">(0, on.desk.stream(), std::span<rig::handle* const>(list));
  for (const auto& each : saved) CHECK_FALSE(each);
  CHECK(off.counters().modules[0].tensors_offloaded == 5);
  chunk.end_forward();
  const offloader::chunk::handle_list all(list);
  chunk.restore(off.module("core_attn"), 0, on.desk.stream(), all);
  for (std::uint32_t i = 0; i < 5; ++i) on.desk.check(saved[i], i);
  for (auto& each : saved) each.reset(on.desk.stream());
  chunk.restore(off.module("moe_act"), 0, on.desk.stream(), all);  // disabled: nothing
  chunk.finish();
  CHECK_THROWS_WITH_AS(chunk.restore(off.module("core_attn"), 0, on.desk.stream(), all),
                       doctest::Contains("its chunk is finished"), tidepool::misuse_error);
  CHECK(on.desk.wrong() == 0);
}

// ---- what it costs ----

TEST_CASE("adopt: a step allocates nothing on the heap and makes no event once it has run") {
  using null = tidepool::test::counting_device<tidepool::null_device>;
  using null_offloader = tidepool::offloader<null, tidepool::modules<"core_attn">>;
  null dev;
  const auto stream = dev.make_stream();
  std::array<std::array<std::byte, size>, 8> memory;
  std::vector<void*> free;
  for (auto& each : memory) free.push_back(each.data());
  const auto take = [&](std::size_t) {
    auto* const data = free.back();
    free.pop_back();
    return data;
  };
  const auto give = [&](void* data) { free.push_back(data); };
  {
    null_offloader off(dev, slack_options(size),
                       {.memory = tidepool::memory_on<null>(stream.ref(), take, give)});
    off.on_report([](std::string_view) {});
    for (int s = 0; s < 6; ++s) {
      const auto heap = tidepool::test::heap_allocations();
      const auto events = dev.events_made;
      std::array<null_offloader::buffer, 4> saved;
      auto chunk = off.begin();
      for (int l = 0; l < 4; ++l) {
        auto& x = saved[static_cast<std::size_t>(l)];
        auto* const data = take(size);
        x = off.adopt(data, size, stream.ref(), [&give, data] { give(data); });
        tidepool::handle<null>* const list[]{&x};
        chunk.commit<"core_attn">(l, stream.ref(), null_offloader::chunk::handle_list(list));
      }
      chunk.end_forward();
      for (int l = 4; l-- > 0;) {
        auto& x = saved[static_cast<std::size_t>(l)];
        if (l == 2) {
          chunk.forget<"core_attn">(l);
          continue;
        }
        chunk.restore<"core_attn">(l, stream.ref(), x);
        x.reset(stream.ref());
      }
      chunk.finish();
      off.end_step();
      if (s < 2) continue;
      CHECK(tidepool::test::heap_allocations() == heap);
      CHECK(dev.events_made == events);
    }
  }
  CHECK(free.size() == memory.size());
}
