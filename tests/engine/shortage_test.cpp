// Device memory that does not suffice: the message says for want of what, and what helps.

#include "tidepool/engine/shortage.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "messages.hpp"
#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"
#include "tidepool/parse.hpp"

namespace {

using tidepool::memory_kind;
using tidepool::options;
using tidepool::out_of_budget;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader =
    tidepool::test::planning<rig::offloader<tidepool::modules<"core_attn", "moe_act">>>;

constexpr std::size_t size = 2048;

template <class Call>
std::string shortage_of(const Call& call) {
  try {
    call();
  } catch (const out_of_budget& problem) {
    return problem.what();
  }
  FAIL_CHECK("nothing was short");
  return {};
}

std::string refused(offloader& off, rig& desk, std::size_t bytes) {
  return shortage_of([&] { static_cast<void>(off.allocate(bytes, desk.stream())); });
}

options rings(std::vector<tidepool::slot_ring> shapes) {
  auto opts = small_options();
  opts.memory = memory_kind::slots;
  opts.slots = std::move(shapes);
  return opts;
}

}  // namespace

TEST_CASE("shortage: no ring has slots as large as that") {
  rig desk;
  offloader off(desk.dev, rings({{1024, 4}, {512, 8}}));
  const auto text = refused(off, desk, 4096);
  CAPTURE(text);
  CHECK(says(text,
             "allocate: 4096 bytes of device memory do not fit: no ring has slots so large,"
             " the largest have 1024 bytes"));
  CHECK(says(text, "Add a ring: --slots=1KiBx4,512Bx8,4KiBx1"));
  CHECK_FALSE(says(text, "device-budget"));
}

TEST_CASE("shortage: all slots of that size are taken") {
  rig desk;
  offloader off(desk.dev, rings({{4096, 1}, {2048, 2}}));
  std::vector<rig::buffer> held;
  for (int i = 0; i < 3; ++i) held.push_back(off.allocate(size, desk.stream()));
  const auto text = refused(off, desk, size);
  CAPTURE(text);
  CHECK(says(text, "every slot of at least 2048 bytes is taken and nothing is in flight"));
  CHECK(says(text, "Live: not committed 6144 bytes. "));
  CHECK(says(text, "Add slots: --slots=4KiBx1,2KiBx4; or run fewer microbatches"));
  CHECK_FALSE(says(text, "device-budget"));
}

TEST_CASE("shortage: a group that comes back to rings whose slots are taken") {
  rig desk;
  offloader off(desk.dev, rings({{size, 2}}));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(size, desk.stream());
  open.commit<"core_attn">(0, desk.stream(), x, y);
  const auto other = off.allocate(size, desk.stream());
  const auto text = shortage_of([&] { open.restore<"core_attn">(0, desk.stream(), x, y); });
  CAPTURE(text);
  CHECK(says(text,
             "reload of core_attn of layer 0, microbatch 0: 4096 bytes of device memory do"
             " not fit: its slots are taken"));
  CHECK(says(text, "Add slots: --slots=2KiBx3; or run fewer"));
}

TEST_CASE("shortage: a tensor larger than the budget is none of the microbatches' fault") {
  for (const bool arena : {false, true}) {
    CAPTURE(arena);
    rig desk;
    auto opts = arena_options(4 * size);
    if (!arena) opts.memory = memory_kind::pool;
    offloader off(desk.dev, opts);
    const auto text = refused(off, desk, 4 * size + 1);
    CAPTURE(text);
    CHECK(says(text,
               "8193 bytes of device memory do not fit: this one tensor is larger than"
               " --device-budget, which is 8192 bytes. Raise --device-budget, or save it in"
               " smaller tensors"));
    CHECK_FALSE(says(text, "microbatches"));
    CHECK(off.allocate(4 * size, desk.stream()));  // as much as the budget is no more than it
  }
}

TEST_CASE("shortage: a tensor that only rounded up is larger than the budget") {
  rig desk;
  auto opts = small_options();
  opts.device_budget = 8300;
  offloader off(desk.dev, opts);
  const auto text = refused(off, desk, 8250);
  CAPTURE(text);
  CHECK(says(text, "which is 8300 bytes, once rounded up to 8704 bytes. Raise --device-budget"));
}

TEST_CASE("shortage: the device itself has no more, with a budget and without one") {
  for (const std::size_t budget : {std::size_t{0}, std::size_t{1} << 20}) {
    CAPTURE(budget);
    rig desk(tidepool::machine{.device_bytes = 64 * 1024});
    auto opts = small_options();
    if (budget > 0) opts.device_budget = budget;
    offloader off(desk.dev, opts);
    const auto held = off.allocate(48 * 1024, desk.stream());
    const auto text = refused(off, desk, 32 * 1024);
    CAPTURE(text);
    CHECK(says(text, "the device has no more: 16384 bytes of 65536 bytes are free; 49152 bytes "));
    CHECK(says(text, "Leave it more of the device, or run fewer microbatches"));
    CHECK_FALSE(says(text, "Raise --device-budget"));
    CHECK(says(text, "--device-budget is 1 MiB") == (budget > 0));
  }
}

TEST_CASE("shortage: a pool is short of its budget once that is spent, and of the device before") {
  using tidepool::detail::lack;
  tidepool::detail::shortage of;
  of.bytes = size;
  of.budget = 4 * size;
  of.reserved = of.budget;
  CHECK(lack_of(of) == lack::budget);
  of.reserved -= size - 1;
  CHECK(lack_of(of) == lack::budget);
  of.reserved = of.budget - size;
  CHECK(lack_of(of) == lack::device);
  of.budget = 0;
  CHECK(lack_of(of) == lack::device);
}

TEST_CASE("shortage: nothing live is said in so many words") {
  rig desk(tidepool::machine{.device_bytes = 1024});
  offloader off(desk.dev, small_options());
  const auto text = refused(off, desk, 32 * 1024);
  CAPTURE(text);
  CHECK(says(text, "Live: nothing. "));
}

TEST_CASE("shortage: what was restored and never reset stands apart, and so does its remedy") {
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  auto y = off.allocate(size, desk.stream());
  y.keep_resident();
  open.commit<"core_attn">(0, desk.stream(), x, y);
  open.restore<"core_attn">(0, desk.stream(), x, y);
  auto text = refused(off, desk, 2 * size);
  CAPTURE(text);
  CHECK(says(text, "Live: core_attn 2048 bytes, core_attn (restored and not reset) 2048 bytes. "));
  CHECK(says(text, "Raise --device-budget, reset handles once backward has used them, or run"));
  x.reset(desk.stream());
  const auto loose = off.allocate(size, desk.stream());
  text = refused(off, desk, 2 * size);
  CHECK(says(text, "Live: core_attn 2048 bytes, not committed 2048 bytes. "));
  CHECK_FALSE(says(text, "reset"));
}

TEST_CASE("shortage: a source of the trainer's own is named, and is no part of the budget") {
  alignas(256) std::array<std::byte, size> memory{};  // outlives what is queued for it
  rig desk;
  offloader off(desk.dev, arena_options(3 * size));
  tidepool::fixed_block own(memory.data(), memory.size());
  auto x = off.allocate_from(own, size, desk.stream());
  const auto taken =
      shortage_of([&] { static_cast<void>(off.allocate_from(own, size, desk.stream())); });
  CAPTURE(taken);
  CHECK(says(taken,
             "2048 bytes do not fit the source given to allocate_from, which has 2048 bytes and a"
             " largest free block of 0 bytes. Reset what is in it first"));
  const auto held = off.allocate(2 * size, desk.stream());
  const auto text = refused(off, desk, 2 * size);
  CAPTURE(text);
  CHECK(says(text, "Live: not committed 4096 bytes. "));
  CHECK_FALSE(says(text, "in pieces"));
}

namespace {

/// A source that has the second half of its block to give, whatever it is asked for.
class half_a_block final : public tidepool::block_source {
 public:
  half_a_block(std::byte* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
  bool take(std::size_t /*bytes*/, tidepool::lane_id /*waiter*/, tidepool::block& into,
            tidepool::fence& /*ready*/) override {
    into = {memory_ + bytes_ / 2, bytes_ / 2, 7};
    ++taken;
    return true;
  }
  void release(const tidepool::block& done, const tidepool::fence& /*after*/) noexcept override {
    if (done.data == memory_ + bytes_ / 2 && done.index == 7) --taken;
  }
  [[nodiscard]] std::size_t reserved() const override { return bytes_; }
  [[nodiscard]] std::size_t peak() const override { return bytes_; }
  [[nodiscard]] std::size_t budget() const override { return bytes_; }
  [[nodiscard]] std::size_t largest_free() const override { return 0; }
  [[nodiscard]] std::uint64_t allocations() const override { return 0; }

  int taken = 0;

 private:
  std::byte* memory_;
  std::size_t bytes_;
};

}  // namespace

TEST_CASE("shortage: a source of the trainer's own that gives too little gets its block back") {
  alignas(256) std::array<std::byte, size> memory{};
  rig desk;
  offloader off(desk.dev, small_options());
  half_a_block own(memory.data(), memory.size());
  CHECK_THROWS_WITH_AS(
      static_cast<void>(off.allocate_from(own, size, desk.stream())),
      doctest::Contains("gave a block of 1024 bytes where 2048 were asked for; let take return"
                        " false"),
      tidepool::misuse_error);
  CHECK(own.taken == 0);
  auto x = off.allocate_from(own, size / 2, desk.stream());
  desk.write(x, 1);
  desk.check(x, 1);
  x.reset(desk.stream());
  CHECK(own.taken == 0);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("shortage: what comes back to a source of the trainer's own that is taken says so") {
  alignas(256) std::array<std::byte, size> memory{};
  rig desk;
  offloader off(desk.dev, small_options());
  tidepool::fixed_block own(memory.data(), memory.size());
  auto open = off.begin();
  auto x = off.allocate_from(own, size, desk.stream());
  open.commit<"core_attn">(0, desk.stream(), x);
  auto in_its_place = off.allocate_from(own, size, desk.stream());
  const auto text = shortage_of([&] { open.restore<"core_attn">(0, desk.stream(), x); });
  CAPTURE(text);
  CHECK(says(text,
             "reload of core_attn of layer 0, microbatch 0: 2048 bytes do not fit the source"
             " given to allocate_from"));
  in_its_place.reset(desk.stream());
  open.restore<"core_attn">(0, desk.stream(), x);
  x.reset(desk.stream());
  open.finish();
}

TEST_CASE("shortage: with more in flight than the plan was made of, the plan is named") {
  rig desk;
  auto opts = arena_options(20480, {"core_attn", "moe_act"});
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 200;
  offloader off(desk.dev, opts);
  off.on_report([](std::string_view) {});
  constexpr int layers = 6;
  const auto forward = [&](offloader::chunk& open, std::vector<rig::buffer>& saved) {
    for (int i = 0; i < layers; ++i) {
      auto& x = saved.emplace_back(off.allocate(4096, desk.stream()));
      desk.write(x, 1, 100'000);
      open.commit<"core_attn">(i, desk.stream(), x);
    }
    open.end_forward();
  };
  for (int step = 0; step < 4; ++step) {
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      auto open = off.begin({.microbatch = microbatch});
      std::vector<rig::buffer> saved;
      forward(open, saved);
      for (int i = layers; i-- > 0;) {
        auto& x = saved[static_cast<std::size_t>(i)];
        open.restore<"core_attn">(i, desk.stream(), x);
        x.reset(desk.stream());
      }
      open.finish();
    }
    off.end_step();
  }
  REQUIRE(off.current_plan());
  auto text = refused(off, desk, 20481);  // as many as were planned
  CHECK_FALSE(says(text, "The plan"));
  auto first = off.begin({.microbatch = 0});
  auto second = off.begin({.microbatch = 1});
  std::vector<rig::buffer> saved;
  text = shortage_of([&] {
    forward(first, saved);
    forward(second, saved);
    const auto more = off.allocate(20480, desk.stream());
  });
  CAPTURE(text);
  CHECK(says(text,
             "The plan keeps 20480 bytes at once and was made of a step with at most 1 chunks in"
             " flight; now 2 are, and 20480 bytes stay: "));
  CHECK(says(text, "keep the order and the number of chunks. The step may be larger"));
}

namespace {

// Follows the message until the step fits; how many times it had to.
int tries_of(std::vector<tidepool::slot_ring> shapes) {
  constexpr int layers = 8;
  for (int tries = 0; tries < 100; ++tries) {
    rig desk;
    offloader off(desk.dev, rings(shapes));
    std::vector<rig::buffer> small;
    std::string text;
    try {
      for (int l = 0; l < layers; ++l) {
        small.push_back(off.allocate(512, desk.stream()));
        auto middle = off.allocate(2048, desk.stream());
        auto large = off.allocate(16384, desk.stream());  // one at a time
        small.push_back(off.allocate(512, desk.stream()));
        middle.reset(desk.stream());
      }
      return tries;
    } catch (const out_of_budget& problem) {
      text = problem.what();
    }
    const auto begin = text.find("--slots=");
    REQUIRE(begin != std::string::npos);
    const auto option = text.substr(begin, text.find(';', begin) - begin);
    shapes = tidepool::parse_options("--offload-modules=all --memory=slots " + option).slots;
    CHECK(shapes.back().count == 1);  // the largest was never what lacked
  }
  return 100;
}

}  // namespace

TEST_CASE("shortage: the ring that was short is named, not a larger one that served in its place") {
  CHECK(tries_of({{512, 16}, {2048, 1}, {16384, 1}}) == 0);
  CHECK(tries_of({{512, 2}, {2048, 1}, {16384, 1}}) <= 14);
}

TEST_CASE("shortage: only what helps is named: no more modules where all leave") {
  const auto text_of = [](const options& opts) {
    rig desk;
    offloader off(desk.dev, opts);
    const auto held = off.allocate(4 * size, desk.stream());
    return refused(off, desk, size);
  };
  auto text = text_of(arena_options(4 * size, {"core_attn"}));
  CHECK(says(text, "Raise --device-budget, offload more modules, or run fewer microbatches"));
  text = text_of(arena_options(4 * size, {"core_attn", "moe_act"}));
  CHECK(says(text, "Raise --device-budget, or run fewer microbatches"));
  text = text_of(arena_options(4 * size));
  CHECK(says(text, "Raise --device-budget, or run fewer microbatches"));
}

namespace {

// Layers that work with more than lies free beside what stays, in one piece.
std::string train_in_pieces(const options& opts) {
  rig desk;
  offloader off(desk.dev, opts);
  off.on_report(nullptr);
  try {
    for (int step = 0; step < 4; ++step) {
      auto open = off.begin();
      std::array<rig::buffer, 4> x;
      const auto layer = [&](int l) -> rig::buffer& { return x[static_cast<std::size_t>(l)]; };
      for (int l = 0; l < 4; ++l) {
        layer(l) = off.allocate(size, desk.stream());
        desk.write(layer(l), 1, 100);
        l < 2 ? open.commit<"core_attn">(l, desk.stream(), layer(l))
              : open.commit<"moe_act">(l, desk.stream(), layer(l));
        auto work = off.allocate(l % 2 == 0 ? size * 5 / 2 : 2 * size, desk.stream());
        work.reset(desk.stream());
      }
      open.end_forward();
      for (int l = 4; l-- > 0;) {
        l < 2 ? open.restore<"core_attn">(l, desk.stream(), layer(l))
              : open.restore<"moe_act">(l, desk.stream(), layer(l));
        layer(l).reset(desk.stream());
      }
      open.finish();
      off.end_step();
    }
  } catch (const out_of_budget& problem) {
    return problem.what();
  }
  return {};
}

}  // namespace

TEST_CASE("shortage: where the rule keeps something, ways to keep less are named, and work") {
  auto opts = arena_options(4 * size);
  opts.margin = true;
  const auto text = train_in_pieces(opts);
  CAPTURE(text);
  CHECK(says(text, "there is room, but in pieces"));
  CHECK(says(text, "Raise --device-budget, take --no-margin, take --policy=automatic, or run"));
  opts.fraction = 0.9;  // goes with the rule alone
  const auto by_rule = train_in_pieces(opts);
  CAPTURE(by_rule);
  CHECK(says(by_rule, "Raise --device-budget, take --no-margin, or run"));
  opts.fraction = 1;
  opts.margin = false;
  CHECK(train_in_pieces(opts).empty());
  opts.margin = true;
  opts.policy = tidepool::policy_kind::automatic;
  opts.plan_effort = 200;
  CHECK(train_in_pieces(opts).empty());
}

TEST_CASE("shortage: a pool that grew in small steps makes room for one large tensor") {
  const std::size_t small = 4096;  // a region each
  for (const bool graphs : {false, true}) {
    CAPTURE(graphs);
    rig desk;
    auto opts = small_options();
    opts.memory = memory_kind::pool;
    opts.device_step = small;
    opts.device_budget = 8 * small;
    offloader off(desk.dev, opts);
    off.on_report(nullptr);
    for (int i = 0; i < 4; ++i) {
      CAPTURE(i);
      auto open = off.begin();
      std::vector<rig::buffer> x(8);
      for (std::uint32_t l = 0; l < 8; ++l) {
        x[l] = off.allocate(small, desk.stream());
        desk.write(x[l], l);
        open.commit<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
      }
      if (graphs && i == 0) open.end_forward();
      if (!graphs) {  // of a budget of eight, nothing is in use
        auto large = off.allocate(6 * small, desk.stream());
        desk.write(large, 99);
        desk.check(large, 99);
        large.reset(desk.stream());
      }
      for (std::uint32_t l = 8; l-- > 0;) {
        open.restore<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
        desk.check(x[l], l);
        x[l].reset(desk.stream());
      }
      open.finish();
      off.end_step();
    }
    CHECK(desk.wrong() == 0);
    CHECK(off.counters().device_peak <= 8 * small);
    const auto taken = off.counters().device_allocations;
    if (!graphs) {  // from the second step on it finds what it needs
      CHECK(taken <= 8 + 3);
      continue;
    }
    // A graph knows the addresses of its memory.
    auto graph = off.capture(desk.stream(), [&] {
      auto inside = off.allocate(small, desk.stream());
      desk.write(inside, 5);
      inside.reset(desk.stream());
    });
    const auto text = refused(off, desk, 6 * small);
    CHECK(says(text, "in pieces"));
    graph.launch(desk.stream());
    desk.dev.synchronize();
    CHECK(off.counters().device_allocations == taken);
  }
}

TEST_CASE("shortage: a group that finds room for a part of it alone is refused all the same") {
  const std::size_t small = 4096;
  rig desk;
  auto opts = small_options();
  opts.device_step = small;
  opts.device_budget = 4 * small;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  std::array<rig::buffer, 3> x;
  for (auto& each : x) each = off.allocate(small, desk.stream());
  for (std::uint32_t i = 0; i < 3; ++i) desk.write(x[i], i);
  open.commit<"core_attn">(0, desk.stream(), x[0], x[1], x[2]);
  std::vector<rig::buffer> held;
  for (int i = 0; i < 2; ++i) held.push_back(off.allocate(small, desk.stream()));
  open.end_forward();
  const auto text =
      shortage_of([&] { open.restore<"core_attn">(0, desk.stream(), x[0], x[1], x[2]); });
  CHECK(says(text, "reload of core_attn of layer 0"));
  held.pop_back();
  open.restore<"core_attn">(0, desk.stream(), x[0], x[1], x[2]);
  for (std::uint32_t i = 0; i < 3; ++i) desk.check(x[i], i);
  open.finish();
  CHECK(desk.wrong() == 0);
}
