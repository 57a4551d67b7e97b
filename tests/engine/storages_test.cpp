// The storages of an offloader, driven directly: what they count, and what becomes of memory.

#include "tidepool/engine/storages.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "engines.hpp"
#include "heap_counter.hpp"
#include "rig.hpp"

namespace {

namespace detail = tidepool::detail;

using tidepool::block;
using tidepool::fence;
using tidepool::lane_id;
using tidepool::memory_owner;
using tidepool::options;
using tidepool::place_kind;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using device = rig::device_type;
using detail::storage;
using detail::storages;

constexpr std::size_t size = 2048;

/// Storages in the order of one compute stream.
struct bench {
  rig desk;
  detail::hardware_of<device> hardware{desk.dev};
  detail::observers heard;
  storages store;
  lane_id compute;
  detail::storage_owner owner;

  explicit bench(const options& opts, std::unique_ptr<tidepool::block_source> given = {})
      : store(hardware, heard, opts, std::move(given)),
        compute(tidepool::lane_of<device>(store.order(), desk.stream())) {}

  storage& make(std::size_t bytes) { return store.create(owner, bytes, bytes); }
  storage& placed(std::size_t bytes) {
    auto& fresh = make(bytes);
    REQUIRE(store.place(fresh, compute));
    return fresh;
  }
  storage& adopted(void* data, std::size_t bytes, memory_owner from) {
    auto& fresh = make(bytes);
    store.adopt(fresh, data, compute, from);
    return fresh;
  }
  void displace(storage& which) { store.displace(which, fence{}, compute); }
};

/// A source that has nothing, and notes what it is told.
class noting_source final : public tidepool::block_source {
 public:
  struct notes {
    std::size_t in_flight = 0;
    bool gone = false;
  };
  explicit noting_source(notes& into) : into_(&into) {}
  ~noting_source() override { into_->gone = true; }
  bool take(std::size_t /*bytes*/, lane_id /*waiter*/, block& /*into*/, fence& /*ready*/) override {
    return false;
  }
  void release(const block& /*done*/, const fence& /*after*/) noexcept override {}
  void allow_in_flight(std::size_t bytes) override { into_->in_flight = bytes; }
  [[nodiscard]] std::size_t reserved() const override { return 0; }
  [[nodiscard]] std::size_t peak() const override { return 0; }
  [[nodiscard]] std::size_t budget() const override { return 0; }
  [[nodiscard]] std::size_t largest_free() const override { return 0; }
  [[nodiscard]] std::uint64_t allocations() const override { return 0; }

 private:
  notes* into_;
};

// Bytes that it lets be in flight, after groups of so many.
std::size_t in_flight_after(const options& opts, const std::vector<std::size_t>& groups) {
  noting_source::notes seen;
  bench on(opts, std::make_unique<noting_source>(seen));
  for (const auto bytes : groups) on.store.note_group(bytes);
  return seen.in_flight;
}

}  // namespace

TEST_CASE("storages: one group more than the cap may be in flight, and never more than four") {
  auto opts = small_options();
  CHECK(in_flight_after(opts, {100}) == 400);
  CHECK(in_flight_after(opts, {1}) == 4);
  CHECK(in_flight_after(opts, {100, 300, 200, 300}) == 1200);
  for (const auto& [cap, groups] : {std::array<std::size_t, 2>{1, 2}, {2, 3}, {3, 4}, {4, 4}}) {
    opts.max_inflight = cap;
    CHECK(in_flight_after(opts, {100}) == 100 * groups);
  }
  opts.max_inflight_bytes = 1000;
  CHECK(in_flight_after(opts, {100}) == 1000);
  CHECK(in_flight_after(opts, {500}) == 2000);
}

TEST_CASE("storages: what is live and what is away are the sums over what there is") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    bench on(small_options());
    std::mt19937_64 random(seed);
    std::array<std::byte, 64> elsewhere{};
    std::vector<storage*> all;
    std::size_t live = 0;
    std::size_t peak = 0;
    std::size_t without = 0;
    std::size_t away_then = 0;
    CHECK(on.store.live_peak() == 0);
    CHECK(on.store.live_peak_without() == 0);
    CHECK(on.store.away_at_peak() == 0);
    std::size_t lost = 0;  // stays taken
    const auto compare = [&](bool taken) {
      live = lost;
      std::size_t away = 0;
      for (const auto* each : all) {
        (each->here.memory ? live : away) += each->bytes;
      }
      peak = std::max(peak, live);
      // The latest time of the most: others read both together.
      if (taken && live + away >= without) {
        without = live + away;
        away_then = away;
      }
      CHECK(on.store.live() == live);
      CHECK(on.store.live_without() == live + away);
      CHECK(on.store.live_peak() == peak);
      CHECK(on.store.live_peak_without() == without);
      CHECK(on.store.away_at_peak() == away_then);
    };
    const auto forget = [&](std::size_t which) {
      on.store.destroy(*all[which]);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(which));
    };
    for (int i = 0; i < 150; ++i) {
      const auto which = all.empty() ? 0 : random() % all.size();
      const auto bytes = 1 + random() % 1000;
      const auto what = all.empty() ? 0 : random() % 7;
      auto* const store = all.empty() ? nullptr : all[which];
      if (what < 2) {
        all.push_back(what == 0 ? &on.placed(bytes) : &on.adopted(elsewhere.data(), 64, {}));
        compare(true);
      } else if (what == 2 && !store->here.memory) {
        REQUIRE(on.store.place(*store, on.compute));
        compare(true);
      } else if (what == 3 && store->here.memory) {
        store->is.discarded = !store->there.memory;
        on.displace(*store);
        compare(false);
      } else if (what == 4 && store->here.memory && !store->there.memory && !store->is.discarded) {
        REQUIRE(on.store.place_copy(*store, place_kind::host));
        compare(false);
      } else if (what == 5) {
        if (store->there.memory) {
          on.store.displace_copy(*store, {});
          if (store->here.memory) on.displace(*store);
        } else if (store->here.memory) {
          if (std::exchange(store->is.discarded, false)) continue;
          on.displace(*store);
        }
        forget(which);
        compare(false);
      } else if (what == 6 && store->here.memory && !store->is.borrowed && !store->there.memory) {
        lost += store->bytes;
        on.store.lose(*store);
        if (store->is.discarded) {
          compare(false);  // as if it had been given back: backward may try again
        } else {
          forget(which);
          compare(false);
        }
      }
    }
    CHECK(on.desk.wrong() == 0);
  }
}

TEST_CASE("storages: memory that is somebody else's no more is none when it goes the next time") {
  for (const bool of_graph : {false, true}) {
    CAPTURE(of_graph);
    bench on(arena_options(4 * size));
    std::array<std::byte, size> elsewhere{};
    auto& store = on.adopted(elsewhere.data(), size, {});
    auto& other = on.adopted(elsewhere.data(), size, {});
    if (of_graph) {
      store.is.of_graph = true;
      on.displace(store);
    } else {
      on.store.lose(store);
    }
    CHECK(on.store.borrowed().held() == 2 * size);
    REQUIRE(on.store.place(store, on.compute));
    on.displace(store);
    CHECK(on.store.device_source().largest_free() == 4 * size);
    CHECK(on.store.borrowed().held() == 2 * size);  // its owner has it at the end
    on.displace(other);
    CHECK(on.store.borrowed().held() == size);
  }
}

TEST_CASE("storages: to forget them takes no memory, however many there are") {
  for (int count = 1; count <= 40; ++count) {
    CAPTURE(count);
    bench on(small_options());
    std::vector<storage*> all;
    for (int i = 0; i < count; ++i) all.push_back(&on.make(size));
    const auto before = tidepool::test::heap_allocations();
    for (auto* each : all) on.store.destroy(*each);
    CHECK(tidepool::test::heap_allocations() == before);
    CHECK(on.store.destroyed() == static_cast<std::uint64_t>(count));
  }
}

TEST_CASE("storages: those that a capture made are noted when they go, and that takes no memory") {
  for (std::size_t count = 1; count <= 40; ++count) {
    CAPTURE(count);
    bench on(small_options());
    auto& order = on.store.order();
    auto& eager = on.make(size);
    std::vector<storage*> all;
    on.desk.dev.begin_capture(on.desk.stream());
    order.begin_capture(on.compute, on.store.copy_lanes());
    for (std::size_t i = 0; i < count; ++i) all.push_back(&on.make(size));
    order.join_back(on.compute, on.store.copy_lanes());
    static_cast<void>(on.desk.dev.end_capture(on.desk.stream()));
    order.end_capture();
    std::vector<std::uint64_t> numbers;
    for (auto* each : all) numbers.push_back(each->number);
    const auto before = tidepool::test::heap_allocations();
    on.store.destroy(eager);
    for (auto* each : all) on.store.destroy(*each);
    CHECK(tidepool::test::heap_allocations() == before);
    CHECK(on.store.gone() == numbers);
    on.store.forget_gone();
    CHECK(on.store.gone().empty());
  }
}

TEST_CASE("storages: room to note what goes is for what is there, and not for all that ever was") {
  bench on(small_options());
  auto& order = on.store.order();
  const auto come_and_go = [&] {
    for (int i = 0; i < 1000; ++i) on.store.destroy(on.make(size));
  };
  come_and_go();
  on.desk.dev.begin_capture(on.desk.stream());
  order.begin_capture(on.compute, on.store.copy_lanes());
  come_and_go();
  CHECK(on.store.gone().capacity() < 100);
  order.join_back(on.compute, on.store.copy_lanes());
  static_cast<void>(on.desk.dev.end_capture(on.desk.stream()));
  order.end_capture();
}

TEST_CASE("storages: the budget of an own pool counts what is borrowed, and no source beside it") {
  auto opts = arena_options(4 * size);
  std::array<std::byte, size> elsewhere{};
  alignas(256) std::array<std::byte, size> memory{};
  SUBCASE("a source of the trainer's own") {
    bench on(opts);
    tidepool::fixed_block own(memory.data(), memory.size());
    auto& in_it = on.make(size);
    in_it.source = &own;
    REQUIRE(on.store.place(in_it, on.compute));
    static_cast<void>(on.placed(4 * size));
    CHECK_FALSE(on.store.budget().refused());
  }
  SUBCASE("what is borrowed, be it a byte") {
    for (const std::size_t bytes : {std::size_t{1}, size}) {
      CAPTURE(bytes);
      bench on(opts);
      static_cast<void>(on.adopted(elsewhere.data(), bytes, {}));
      CHECK_FALSE(on.store.place(on.make(4 * size), on.compute));
      CHECK(on.store.budget().refused());
    }
  }
  SUBCASE("nor does what is in such a source count with what is borrowed") {
    bench on(opts);
    static_cast<void>(on.adopted(elsewhere.data(), size, {}));
    static_cast<void>(on.placed(3 * size));
    tidepool::fixed_block own(memory.data(), memory.size());
    auto& in_it = on.make(size);
    in_it.source = &own;
    CHECK(on.store.place(in_it, on.compute));
  }
}

TEST_CASE("storages: a block that is not free where it was wanted lies elsewhere, and is counted") {
  bench on(arena_options(3 * size));
  auto& first = on.make(size);
  REQUIRE(on.store.place(first, on.compute, size));
  CHECK(on.store.elsewhere() == 0);
  auto& second = on.make(size);
  REQUIRE(on.store.place(second, on.compute, size));
  CHECK(on.store.elsewhere() == 1);
  CHECK(second.here.memory.data != first.here.memory.data);
  on.displace(first);
  on.displace(second);
}

TEST_CASE("storages: at the end owners get back what waits for work, behind a join, unblocked") {
  for (const std::size_t bytes : {std::size_t{1}, size}) {
    CAPTURE(bytes);
    bool ran = false;
    std::optional<bool> ran_when_it_went;
    std::array<std::byte, size> elsewhere{};
    rig desk;
    const auto other = desk.dev.make_stream();
    {
      detail::hardware_of<device> hardware(desk.dev);
      const detail::observers heard;
      storages store(hardware, heard, small_options());
      detail::storage_owner owner;
      auto& order = store.order();
      const auto compute = tidepool::lane_of<device>(order, desk.stream());
      memory_owner from([&ran, &ran_when_it_went] { ran_when_it_went = ran; });
      auto& fresh = store.create(owner, bytes, bytes);
      store.adopt(fresh, elsewhere.data(), compute, from);
      desk.dev.launch(other.ref(), 1000, [&ran] { ran = true; });
      const auto used = order.record(tidepool::lane_of<device>(order, other.ref()));
      store.displace(fresh, used, compute);
      CHECK_FALSE(ran_when_it_went);
    }
    CHECK(ran_when_it_went == false);
  }
}

TEST_CASE("storages: owners have their memory back before the source of other memory goes") {
  noting_source::notes seen;
  std::optional<bool> gone_before;
  std::array<std::byte, size> elsewhere{};
  {
    bench on(small_options(), std::make_unique<noting_source>(seen));
    static_cast<void>(on.adopted(elsewhere.data(), size,
                                 memory_owner([&seen, &gone_before] { gone_before = seen.gone; })));
  }
  CHECK(seen.gone);
  CHECK(gone_before == false);
}
