// Invariant 8: after the first full step no device or host allocation, no heap allocation, no
// event.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "counting_device.hpp"
#include "heap_counter.hpp"
#include "rig.hpp"
#include "schedule.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/layers.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/plan.hpp"

namespace {

using tidepool::memory_kind;
using tidepool::options;
using tidepool::test::counting_device;
using tidepool::test::heap_allocations;
using tidepool::test::one_f_one_b;
using tidepool::test::small_options;

struct null_with_neighbour : tidepool::null_device {
  [[nodiscard]] static std::string why_no_peer(int /*peer*/) { return {}; }
  [[nodiscard]] void* try_allocate_peer(int /*peer*/, std::size_t bytes) {
    return try_allocate(bytes);
  }
  void deallocate_peer(int /*peer*/, void* pointer) noexcept { deallocate(pointer); }
};

/// What a step asked for, beyond copies and joins.
struct cost {
  std::uint64_t heap = 0;
  std::uint64_t device = 0;
  std::uint64_t host = 0;
  std::uint64_t events = 0;
  std::uint64_t streams = 0;

  friend bool operator==(const cost&, const cost&) = default;
};

/// 1F1B over two modules, with a tensor in common, a view, and a forward-only pass in between.
template <class Base>
class steady {
 public:
  static constexpr int microbatches = 5;
  static constexpr std::size_t layers = 3;

  explicit steady(const options& opts) : stream_(dev_.make_stream()), off_(dev_, opts) {
    off_.on_report([](std::string_view) {});
  }

  cost step(std::size_t grown = 0) {
    const auto before = now();
    for (const auto& each : schedule_) {
      auto& mine = in_flight_[static_cast<std::size_t>(each.microbatch)];
      if (each.backward) {
        backward(mine);
      } else {
        forward(mine, each.microbatch, grown);
      }
    }
    off_.end_step();
    dev_.synchronize();
    const auto after = now();
    return {after.heap - before.heap, after.device - before.device, after.host - before.host,
            after.events - before.events, after.streams - before.streams};
  }

  [[nodiscard]] tidepool::trace::counters counters() const { return off_.counters(); }

 private:
  using device = counting_device<Base>;
  using offloader =
      tidepool::offloader<device, tidepool::modules<"core_attn", "expert_fc1", "moe_act">>;

  struct tensors {
    typename offloader::buffer a, shared, b;
    typename offloader::view part;
  };
  struct microbatch {
    typename offloader::chunk open;
    std::array<tensors, layers> saved;
  };

  [[nodiscard]] cost now() const {
    return {heap_allocations(), dev_.device_allocations,
            dev_.host_allocations + dev_.peer_allocations, dev_.events_made, dev_.streams_made};
  }

  void forward(microbatch& into, int number, std::size_t grown) {
    const auto on = stream_.ref();
    {
      auto evaluation = off_.begin({.microbatch = number, .forward_only = true});
      auto x = off_.template allocate<float>(256, on);
      evaluation.template commit<"core_attn">(0, on, x);
      evaluation.finish();
    }
    into.open = off_.begin({.microbatch = number});
    for (std::size_t l = 0; l < layers; ++l) {
      auto& x = into.saved[l];
      const auto bytes = 1024 * (l + 1) + grown;
      x.a = off_.allocate(bytes, on);
      x.shared = x.a.share();
      x.b = off_.allocate(bytes / 2, on);
      x.part = x.b.view({.offset = 0, .width = 64, .rows = 4, .pitch = 128});
      const auto layer = static_cast<int>(l);
      into.open.template commit<"core_attn">(layer, on, x.a);
      into.open.template commit<"expert_fc1">(layer, on, x.shared);
      into.open.template commit<"moe_act">(layer, on, x.part, x.b);
    }
    into.open.end_forward();
  }

  void backward(microbatch& from) {
    const auto on = stream_.ref();
    for (std::size_t l = layers; l-- > 0;) {
      auto& x = from.saved[l];
      const auto layer = static_cast<int>(l);
      from.open.template restore<"moe_act">(layer, on, x.part, x.b);
      from.open.template restore<"expert_fc1">(layer, on, x.shared);
      from.open.template restore<"core_attn">(layer, on, x.a);
      x.part.reset(on);
      x.b.reset(on);
      x.shared.reset(on);
      x.a.reset(on);
    }
    from.open.finish();
  }

  device dev_;
  typename device::stream stream_;
  offloader off_;
  std::array<microbatch, microbatches> in_flight_;
  std::vector<tidepool::test::pass> schedule_ = one_f_one_b(microbatches, 3);
};

options with(memory_kind kind) {
  auto opts = small_options();
  opts.memory = kind;
  opts.margin = true;
  opts.fraction = 0.8;
  opts.max_inflight = 2;
  if (kind == memory_kind::arena) opts.device_budget = 64 * 1024;
  if (kind == memory_kind::slots) opts.slots = {{1024, 24}, {4096, 24}};
  return opts;
}

constexpr memory_kind every_kind[]{memory_kind::pool, memory_kind::arena, memory_kind::slots};

}  // namespace

TEST_CASE("steady state: after the second step nothing is allocated and no event made") {
  for (const auto kind : every_kind) {
    CAPTURE(static_cast<int>(kind));
    steady<tidepool::null_device> run(with(kind));
    CHECK(run.step().heap > 0);  // the warm-up
    static_cast<void>(run.step());
    for (int i = 0; i < 50; ++i) CHECK(run.step() == cost{});
    CHECK(run.counters().modules[0].groups_offloaded > 0);
    CHECK(run.counters().modules[2].groups_resident > 0);
  }
}

TEST_CASE("steady state: nor with a neighbour's memory that is too small for all") {
  for (const auto kind : every_kind) {
    CAPTURE(static_cast<int>(kind));
    auto opts = with(kind);
    opts.places = {tidepool::place_kind::peer, tidepool::place_kind::host};
    opts.peer_budget = std::size_t{16} * 1024;
    opts.host_step = 4096;
    steady<null_with_neighbour> run(opts);
    for (int i = 0; i < 3; ++i) static_cast<void>(run.step());
    for (int i = 0; i < 50; ++i) CHECK(run.step() == cost{});
    for (const auto& each : run.counters().places) CHECK(each.bytes_offloaded > 0);
  }
}

TEST_CASE("steady state: the first step already makes every event, stream and allocation") {
  for (const auto kind : every_kind) {
    CAPTURE(static_cast<int>(kind));
    steady<tidepool::null_device> run(with(kind));
    static_cast<void>(run.step());
    auto second = run.step();
    second.heap = 0;
    CHECK(second == cost{});
  }
}

TEST_CASE("steady state: the virtual device sees no allocation and no event either") {
  for (const auto kind : every_kind) {
    CAPTURE(static_cast<int>(kind));
    steady<tidepool::virtual_device> run(with(kind));
    static_cast<void>(run.step());
    static_cast<void>(run.step());
    for (int i = 0; i < 5; ++i) {
      auto each = run.step();
      each.heap = 0;  // its queues are its own
      CHECK(each == cost{});
    }
  }
}

TEST_CASE("steady state: shapes that change a little fit the memory that is there") {
  steady<tidepool::null_device> run(with(memory_kind::pool));
  for (int i = 0; i < 3; ++i) static_cast<void>(run.step());
  const auto before = run.counters();
  for (std::size_t i = 1; i < 200; ++i) {
    const auto each = run.step(i * 37 % 64);
    CHECK(each.device == 0);
    CHECK(each.events == 0);
  }
  CHECK(run.counters().device_reserved == before.device_reserved);
}

TEST_CASE("steady state: thousands of steps take no more memory than the first ones") {
  for (const auto kind : every_kind) {
    steady<tidepool::null_device> run(with(kind));
    for (int i = 0; i < 3; ++i) static_cast<void>(run.step());
    const auto before = run.counters();
    for (int i = 0; i < 3000; ++i) static_cast<void>(run.step());
    const auto after = run.counters();
    CHECK(after.device_reserved == before.device_reserved);
    CHECK(after.host_reserved == before.host_reserved);
    CHECK(after.host_peak == before.host_peak);
    CHECK(after.live_peak == before.live_peak);
  }
}

TEST_CASE("steady state: what a plan has computed again asks for nothing either") {
  using null = counting_device<tidepool::null_device>;
  null dev;
  auto stream = dev.make_stream();
  auto opts = small_options();
  opts.memory = memory_kind::arena;
  opts.device_budget = 64 * 1024;
  tidepool::offloader<null, tidepool::modules<"core_attn", "moe_act">> off(
      dev, opts, {.planner = tidepool::planner()});
  off.on_report([](std::string_view) {});
  tidepool::plan::profile step;
  step.modules = {"core_attn", "moe_act"};
  step.passes = {{0, false}, {0, true}};
  tidepool::plan::step_plan made;
  auto& groups = step.chunks.emplace_back().groups;
  made.what.emplace_back();
  constexpr int layers = 4;
  for (int l = 0; l < layers; ++l) {
    groups.push_back({tidepool::module_id{0}, l, 1024});
    groups.push_back({tidepool::module_id{1}, l, 1024, 1.0});
    made.what[0].push_back(tidepool::plan::action::offload);
    made.what[0].push_back(tidepool::plan::action::recompute);
  }
  off.follow(made, step);
  std::array<tidepool::buffer<null>, layers> x;
  std::array<tidepool::buffer<null>, layers> y;
  std::uint64_t again = 0;
  const auto run = [&] {
    const auto before =
        heap_allocations() + dev.device_allocations + dev.host_allocations + dev.events_made;
    auto open = off.begin();
    for (std::size_t l = 0; l < layers; ++l) {
      x[l] = off.allocate(1024, stream.ref());
      y[l] = off.allocate(1024, stream.ref());
      open.commit<"core_attn">(static_cast<int>(l), stream.ref(), x[l]);
      open.commit_or_discard<"moe_act">(static_cast<int>(l), stream.ref(), y[l]);
    }
    open.end_forward();
    for (std::size_t l = layers; l-- > 0;) {
      open.restore<"core_attn">(static_cast<int>(l), stream.ref(), x[l]);
      open.restore_or_recompute<"moe_act">(
          static_cast<int>(l), stream.ref(), [&] { ++again; }, y[l]);
      x[l].reset(stream.ref());
      y[l].reset(stream.ref());
    }
    open.finish();
    off.end_step();
    return heap_allocations() + dev.device_allocations + dev.host_allocations + dev.events_made -
           before;
  };
  static_cast<void>(run());
  static_cast<void>(run());
  for (int i = 0; i < 50; ++i) CHECK(run() == 0);
  CHECK(again == 52 * layers);
}

TEST_CASE("steady state: arrays of layers ask for nothing, with evaluations and zeros") {
  for (const auto kind : every_kind) {
    for (const bool leaves : {true, false}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(leaves);
      using null = counting_device<tidepool::null_device>;
      using offloader = tidepool::offloader<null, tidepool::modules<"core_attn", "moe_act">>;
      null dev;
      auto stream = dev.make_stream();
      auto opts = with(kind);
      opts.offload_modules = {leaves ? "core_attn" : "moe_act"};
      offloader off(dev, opts);
      off.on_report([](std::string_view) {});
      offloader::chunk pass;
      tidepool::layer_group<offloader> block(off, pass, "core_attn");
      tidepool::saved_layers<float, offloader> x(block), y(block);
      const auto run = [&](bool trains) {
        pass = off.begin({.forward_only = !trains, .release = !trains});
        for (int l = 0; l < 4; ++l) {
          static_cast<void>(x.fresh(l, 256, stream.ref(), tidepool::fill::zero));
          static_cast<void>(y.fresh(l, 512, stream.ref()));
          block.done(l, stream.ref());
        }
        pass.end_forward();
        for (int l = 3; trains && l >= 0; --l) {
          static_cast<void>(y.back(l, stream.ref()));
          static_cast<void>(x.back(l, stream.ref()));
          block.release(l, stream.ref());
        }
        pass.finish();
        if (trains) off.end_step();
      };
      const auto step = [&] {
        const auto before =
            heap_allocations() + dev.device_allocations + dev.host_allocations + dev.events_made;
        run(false);
        run(true);
        return heap_allocations() + dev.device_allocations + dev.host_allocations +
               dev.events_made - before;
      };
      static_cast<void>(step());
      static_cast<void>(step());
      for (int i = 0; i < 20; ++i) CHECK(step() == 0);
    }
  }
}
