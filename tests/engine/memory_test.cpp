// The memory of single tensors: what is counted of it, where a plan puts it, and what a refusal
// leaves.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "engines.hpp"
#include "faulty_device.hpp"
#include "heap_fault.hpp"
#include "rig.hpp"
#include "tidepool/error.hpp"

namespace {

namespace detail = tidepool::detail;

using tidepool::block;
using tidepool::fence;
using tidepool::lane_id;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn">>;

constexpr std::size_t size = 2048;

/// A source that has nothing, and counts how often its pieces were to be put together.
class pieces_source final : public tidepool::block_source {
 public:
  explicit pieces_source(int& coalesced) : coalesced_(&coalesced) {}
  bool take(std::size_t /*bytes*/, lane_id /*waiter*/, block& /*into*/, fence& /*ready*/) override {
    return false;
  }
  void release(const block& /*done*/, const fence& /*after*/) noexcept override {}
  void coalesce() noexcept override { ++*coalesced_; }
  [[nodiscard]] std::size_t reserved() const override { return 0; }
  [[nodiscard]] std::size_t peak() const override { return 0; }
  [[nodiscard]] std::size_t budget() const override { return 0; }
  [[nodiscard]] std::size_t largest_free() const override { return 0; }
  [[nodiscard]] std::uint64_t allocations() const override { return 0; }

 private:
  int* coalesced_;
};

/// An engine that follows the places of a plan.
struct placed_engine {
  using engine = detail::engine;

  rig desk;
  engine* on;

  placed_engine(std::size_t budget, tidepool::plan::placement where)
      : on(new engine(std::make_unique<detail::hardware_of<rig::device_type>>(desk.dev),
                      arena_options(budget), {"core_attn"}, 1)) {
    on->adopt({}, {}, std::move(where));
  }
  placed_engine(const placed_engine&) = delete;
  placed_engine& operator=(const placed_engine&) = delete;
  ~placed_engine() { engine::release(on); }

  [[nodiscard]] rig::buffer allocate() {
    const auto lane = detail::lane_of<rig::device_type>(*on, desk.stream());
    return detail::buffer_of<rig::device_type>(on->allocate(size, size, lane));
  }
};

}  // namespace

TEST_CASE("memory: of a handle that went where no event could be had, no tensor has the memory") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  {
    const auto x = off.allocate(size, desk.stream());
    desk.dev.before_record = [] { throw tidepool::device_error("no event", 1); };
  }
  desk.dev.before_record = nullptr;
  CHECK_THROWS_WITH_AS(static_cast<void>(off.allocate(2 * size, desk.stream())),
                       doctest::Contains("Live: nothing. "), tidepool::out_of_budget);
  const auto one = off.allocate(size, desk.stream());
  CHECK_THROWS_AS(static_cast<void>(off.allocate(size, desk.stream())), tidepool::out_of_budget);
}

TEST_CASE("memory: nor is that tensor left among those that there are") {
  placed_engine of(2 * size, {});
  const auto there = [&] {
    int count = 0;
    of.on->memory().for_each([&count](const detail::storage& /*each*/) { ++count; });
    return count;
  };
  auto x = of.allocate();
  CHECK(there() == 1);
  of.desk.dev.before_record = [] { throw tidepool::device_error("no event", 1); };
  x = {};
  of.desk.dev.before_record = nullptr;
  CHECK(there() == 0);
}

TEST_CASE("memory: what is adopted beyond the budget lets nothing wait that could go back") {
  std::array<std::byte, size> first{};
  std::array<std::byte, 3 * size> second{};
  bool back = false;
  rig desk;
  const auto other = desk.dev.make_stream();
  auto opts = small_options();
  opts.device_budget = 2 * size;
  offloader off(desk.dev, opts);
  auto x = off.adopt(first.data(), size, desk.stream(), [&back] { back = true; });
  desk.dev.launch(other.ref(), 1000, [] {});
  x.reset(other.ref());
  CHECK_FALSE(back);
  CHECK(off.counters().borrowed_waiting == size);
  const auto y = off.adopt(second.data(), 3 * size, desk.stream(), [] {});
  CHECK(back);
  CHECK(off.counters().borrowed_waiting == 0);
  CHECK(off.counters().budget_exceeded == 1);
}

TEST_CASE("memory: what is adopted behind an evaluation finds the memory of any other step") {
  std::array<std::byte, size> memory{};
  int coalesced = 0;
  rig desk;
  offloader off(desk.dev, small_options(), {.memory = std::make_unique<pieces_source>(coalesced)});
  auto evaluated = off.begin({.forward_only = true});
  evaluated.finish();
  coalesced = 0;
  const auto x = off.adopt(memory.data(), size, desk.stream(), [] {});
  CHECK(coalesced == 1);
  const auto open = off.begin();
  coalesced = 0;
  const auto y = off.adopt(memory.data(), size, desk.stream(), [] {});
  CHECK(coalesced == 0);  // in the middle of a step it would cost without need
}

TEST_CASE("memory: what is adopted is one of the allocations that a plan has numbered") {
  std::array<std::byte, size> memory{};
  placed_engine of(4 * size, {{{size, 0, 0}, {size, 3 * size, 0}, {size, size, 0}}});
  const auto lane = detail::lane_of<rig::device_type>(*of.on, of.desk.stream());
  const auto adopted =
      detail::buffer_of<rig::device_type>(of.on->adopt_memory(memory.data(), size, size, lane, {}));
  const auto second = of.allocate();
  const auto third = of.allocate();
  CHECK(static_cast<std::byte*>(second.data()) - static_cast<std::byte*>(third.data()) == 2 * size);
  CHECK(of.on->counters().placed_elsewhere == 0);
}

TEST_CASE("memory: a block that is taken where the plan had it is counted, and serves elsewhere") {
  placed_engine of(4 * size, {{{size, size, 0}, {size, size, 0}}});
  const auto first = of.allocate();
  CHECK(of.on->counters().placed_elsewhere == 0);
  const auto second = of.allocate();
  CHECK(second.data() != first.data());
  CHECK(of.on->counters().placed_elsewhere == 1);
}

TEST_CASE("memory: of the most that would have been live, what was away then is told apart") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  CHECK(off.counters().away_at_peak == 0);
  auto open = off.begin();
  std::array<rig::buffer, 3> x;
  for (int l = 0; l < 3; ++l) {
    auto& each = x[static_cast<std::size_t>(l)];
    each = off.allocate(size, desk.stream());
    CHECK(off.counters().away_at_peak == static_cast<std::size_t>(l) * size);
    open.commit<"core_attn">(l, desk.stream(), each);
  }
  CHECK(off.counters().live_peak_without == 3 * size);
}

TEST_CASE("memory: an adoption for which the heap has no room leaves nothing behind") {
  using tidepool::test::heap_now;
  using tidepool::test::heap_watch;
  using device = tidepool::test::faulty_device<tidepool::virtual_device>;
  std::array<std::byte, size> memory{};
  device dev;
  const auto stream = dev.make_stream();
  tidepool::offloader<device, tidepool::modules<"core_attn">> off(dev, small_options());
  const auto taken = [&] {  // from the heap, by a tensor that comes and goes
    heap_now = {};
    const heap_watch on(true);
    off.allocate(size, stream.ref()).reset(stream.ref());
    return heap_now.seen;
  };
  for (int i = 0; i < 3; ++i) static_cast<void>(taken());
  REQUIRE(taken() == 0);
  int back = 0;
  const auto adopt = [&] {
    return off.adopt(memory.data(), size, stream.ref(), [&back] { ++back; });
  };
  for (int i = 1; i <= 3; ++i) {
    bool refused = false;
    heap_now = {.fails = 1};
    try {
      const heap_watch on(true);
      static_cast<void>(adopt());
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    CHECK(refused);
    CHECK(back == i);
  }
  CHECK(taken() == 0);  // it finds all that the one before it had
  heap_now = {};
  adopt().reset(stream.ref());
  CHECK(back == 4);
}
