// Invariant 15: an empty tensor is a tensor: no rows, no bytes, no error. As of an expert that no
// token chose.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/device/checked.hpp"
#include "tidepool/error.hpp"
#include "tidepool/keyed.hpp"
#include "tidepool/layers.hpp"
#include "tidepool/places/file.hpp"

namespace {

using tidepool::memory_kind;
using tidepool::misuse_error;
using tidepool::options;
using tidepool::place_kind;
using tidepool::policy_kind;
using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using modules = tidepool::modules<"expert_fc1", "moe_act">;
using offloader = tidepool::test::planning<rig::offloader<modules>>;

constexpr std::size_t size = 2048;
constexpr int layers = 5;

/// Each layer saves an input, which some step has no rows of, and what is computed from it.
struct trainer {
  rig& desk;
  offloader& off;
  std::uint32_t round = 0;

  [[nodiscard]] std::uint32_t tag(int layer) const {
    return 100 * round + static_cast<std::uint32_t>(layer);
  }
  // In the first step, and every third, all have rows; then one layer, or all but one, has none.
  [[nodiscard]] std::size_t rows(int layer) const {
    const bool one = layer == static_cast<int>(round % layers);
    return round % 3 == 0 || one == (round % 3 == 1) ? 0 : size / 4;
  }
  void step(bool mixed) {
    ++round;
    const auto stream = desk.stream();
    std::vector<rig::buffer> x(layers), y(layers), beside(layers);
    auto chunk = off.begin();
    for (int layer = 0; layer < layers; ++layer) {
      const auto l = static_cast<std::size_t>(layer);
      x[l] = off.allocate<std::uint32_t>(rows(layer), stream);
      CHECK(x[l]);
      CHECK((x[l].data() == nullptr) == (rows(layer) == 0));
      desk.write(x[l], tag(layer));
      y[l] = off.allocate<std::uint32_t>(rows(layer), stream, tidepool::fill::zero);
      desk.write(y[l], tag(layer) + 50);
      beside[l] = off.allocate(mixed ? size : 0, stream);
      desk.write(beside[l], tag(layer) + 80);
      chunk.commit<"expert_fc1">(layer, stream, x[l], beside[l]);
      chunk.commit_or_discard<"moe_act">(layer, stream, y[l]);
    }
    chunk.end_forward();
    for (int layer = layers; layer-- > 0;) {
      const auto l = static_cast<std::size_t>(layer);
      chunk.restore<"expert_fc1">(layer, stream, x[l], beside[l]);
      chunk.restore_or_recompute<"moe_act">(
          layer, stream, [&] { desk.write(y[l], tag(layer) + 50); }, y[l]);
      check(x[l], layer, tag(layer));
      check(y[l], layer, tag(layer) + 50);
      if (mixed) desk.check(beside[l], tag(layer) + 80);
      for (auto* each : {&x[l], &y[l], &beside[l]}) each->reset(stream);
    }
    chunk.finish();
    off.end_step();
  }
  void check(const rig::buffer& at, int layer, std::uint32_t wanted) {
    CHECK(at);
    CHECK(at.size() == 4 * rows(layer));
    if (at.size() > 0) desk.check(at, wanted);
  }
};

struct setting {
  const char* name;
  std::function<void(options&)> change;
};

}  // namespace

TEST_CASE("empty: layers without rows train, whatever the memory, the places and the policy") {
  const std::vector<setting> settings{
      {"pool", [](options&) {}},
      {"arena", [](options& o) { o = arena_options(6 * size); }},
      {"slots",
       [](options& o) {
         o.memory = memory_kind::slots, o.slots = {{size, 20}};
       }},
      {"margin", [](options& o) { o.margin = true; }},
      {"cap", [](options& o) { o.max_inflight = 0; }},
      {"ahead", [](options& o) { o.reload_ahead = 100; }},
      {"poison", [](options& o) { o.poison = true; }},
      {"peer", [](options& o) { o.places = {place_kind::peer}, o.peer_budget = 64 * size; }},
      {"file",
       [](options& o) {
         o.places = {place_kind::file};
         o.file_path = std::filesystem::temp_directory_path();
         o.file_budget = std::size_t{1} << 20;
         o.file_ring = 8192;
       }},
      {"plan",
       [](options& o) {
         o.policy = policy_kind::automatic;
         o.device_budget = 12 * size;
         o.plan_effort = 50;
         o.recompute_by_plan = true;
       }},
  };
  for (const auto& each : settings) {
    for (const std::size_t least : {0, 1}) {  // below the least nothing leaves
      for (const bool mixed : {false, true}) {
        for (std::uint64_t seed = 0; seed < 4; ++seed) {
          CAPTURE(each.name);
          CAPTURE(least);
          CAPTURE(mixed);
          rig desk(tidepool::machine{.order_seed = seed, .peer_bytes = std::size_t{1} << 20});
          auto opts = small_options();
          each.change(opts);
          opts.min_tensor_elements = least;
          {
            offloader off(desk.dev, opts, tidepool::file_place());
            off.on_report([](std::string_view) {});
            trainer work{desk, off};
            for (int step = 0; step < 9; ++step) work.step(mixed);
          }
          CHECK(desk.wrong() == 0);
        }
      }
    }
  }
}

TEST_CASE("empty: a group of nothing else counts as one, copies nothing and needs no room") {
  for (const std::size_t least : {0, 1}) {
    rig desk;
    auto opts = arena_options(size);
    opts.min_tensor_elements = least;
    opts.host_budget = 1;
    offloader off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    const auto full = off.allocate(size, desk.stream());
    auto x = off.allocate(0, desk.stream());
    auto y = x.share();
    auto open = off.begin();
    open.commit<"expert_fc1">(0, desk.stream(), x, y);
    open.start_offload<"moe_act">(0, desk.stream(), y = off.allocate<double>(0, desk.stream()));
    y.reset(desk.stream());
    open.end_forward();
    open.start_reload<"moe_act">(0);
    open.restore<"moe_act">(0, desk.stream(), y);
    open.forget<"expert_fc1">(0);
    off.wait_for(y, desk.stream());
    open.finish();
    off.end_step();
    const auto seen = off.counters();
    CHECK(desk.dev.offloads() + desk.dev.reloads() == 0);
    CHECK(seen.modules.at(0).groups == 1);
    CHECK(seen.modules.at(0).groups_offloaded == 0);
    CHECK(seen.host_peak == 0);
    CHECK(seen.live_peak == size);
  }
}

TEST_CASE("empty: views of no rows, and of buffers that have none") {
  rig desk;
  auto opts = small_options();
  opts.min_tensor_elements = 0;
  offloader off(desk.dev, opts);
  const auto x = off.allocate(size, desk.stream());
  const auto none = off.allocate(0, desk.stream());
  desk.write(x, 3);
  std::vector<rig::view> all;
  for (const bool whole : {false, true}) {
    for (const std::size_t offset : {std::size_t{0}, size}) {
      all.push_back(x.view({.offset = offset, .whole_storage = whole}));
      all.push_back(
          x.view({.offset = offset, .width = 16, .rows = 0, .pitch = 64, .whole_storage = whole}));
      all.push_back(x.view({.offset = offset, .rows = 5, .pitch = 64, .whole_storage = whole}));
    }
    all.push_back(none.view({.width = 16, .rows = 0, .pitch = 64, .whole_storage = whole}));
    all.push_back(none.view({.whole_storage = whole}));
  }
  CHECK(all[1].rows() == 0);
  CHECK(all[1].width() == 16);
  auto open = off.begin();
  for (std::size_t i = 0; i < all.size(); ++i) {
    open.commit<"expert_fc1">(static_cast<int>(i), desk.stream(), all[i]);
    CHECK_FALSE(all[i]);
  }
  open.end_forward();
  for (auto i = all.size(); i-- > 0;) {
    open.restore<"expert_fc1">(static_cast<int>(i), desk.stream(), all[i]);
    CHECK(all[i]);
    CHECK(all[i].width() * all[i].rows() == 0);
  }
  open.finish();
  desk.check(x, 3);
  CHECK(desk.wrong() == 0);
  CHECK(desk.dev.offloads() == 1);  // of what whole views are of
  CHECK_THROWS_AS(static_cast<void>(x.view({.offset = size + 1})), misuse_error);
  CHECK_THROWS_AS(static_cast<void>(rig::buffer().view({})), misuse_error);
}

TEST_CASE("empty: what is adopted has no address, and its owner has it back at once") {
  rig desk;
  offloader off(desk.dev, small_options());
  int given = 0;
  auto x = off.adopt(nullptr, 0, desk.stream(), [&] { ++given; });
  int here = 0;
  auto y = off.adopt<int>(&here, 0, desk.stream(), [&] { ++given; });
  CHECK(given == 2);
  CHECK((x && y));
  CHECK(x.size() + y.size() == 0);
  auto open = off.begin();
  open.commit<"expert_fc1">(0, desk.stream(), x, y);
  open.restore<"expert_fc1">(0, desk.stream(), x, y);
  open.finish();
  CHECK(off.counters().borrowed_peak == 0);
  CHECK_THROWS_AS(static_cast<void>(
                      off.allocate<double>(std::numeric_limits<std::size_t>::max(), desk.stream())),
                  misuse_error);
}

TEST_CASE("empty: a source of the trainer's own keeps its block") {
  rig desk;
  std::byte memory[size];
  tidepool::fixed_block mine(memory, size);
  offloader off(desk.dev, small_options());
  auto x = off.allocate_from(mine, 0, desk.stream());
  CHECK_FALSE(mine.taken());
  x.reset(desk.stream());
  auto y = off.allocate_from(mine, size, desk.stream());
  CHECK(mine.taken());
}

TEST_CASE("empty: by key, also where it has the address of a neighbour") {
  for (const bool empty_first : {false, true}) {
    for (const bool one_scope : {false, true}) {
      rig desk;
      offloader off(desk.dev, small_options());
      off.on_report([](std::string_view) {});
      tidepool::keyed keys(static_cast<rig::offloader<modules>&>(off));
      const auto stream = desk.stream();
      std::vector<std::byte> memory(size);
      desk.write_bytes(memory.data(), size, 7, stream);
      auto pass = keys.begin();
      const auto save = [&](std::uint64_t key, std::size_t bytes) {
        pass.save(key, memory.data(), bytes, stream, [] {});
      };
      pass.enter(off.module("expert_fc1"), 0);
      save(1, empty_first ? 0 : size);
      save(2, 0);
      if (!one_scope) {
        pass.leave(stream);
        pass.enter(off.module("moe_act"), 0);
      }
      save(1, empty_first ? size : 0);
      pass.leave(stream);
      pass.end_forward();
      for (int i = 0; i < 2; ++i) {
        desk.check_rows(pass.load(1, stream), {size, 1, size, 0}, 7, 0, stream);
        pass.drop(1, stream);
      }
      CHECK(pass.load(2, stream) == nullptr);
      pass.drop(2, stream);
      CHECK(pass.size() == 0);
      pass.finish();
      off.end_step();
      CHECK(desk.wrong() == 0);
    }
  }
}

TEST_CASE("empty: arrays of layers, and state of the host") {
  rig desk;
  using plain = rig::offloader<modules>;
  plain off(desk.dev, small_options());
  const auto stream = desk.stream();
  auto state = off.state_on_host(0, "an optimizer's");
  plain::chunk pass;
  tidepool::layer_group<plain> group(off, pass, "expert_fc1");
  tidepool::saved_layers<float, plain> a(group), b(group);
  for (int step = 0; step < 4; ++step) {
    const std::size_t count = step % 2 == 0 ? 0 : size / sizeof(float);
    pass = off.begin();
    CHECK((a.fresh(0, count, stream) == nullptr) == (count == 0));
    CHECK(b.fresh(0, 0, stream, tidepool::fill::zero) == nullptr);
    group.done(0, stream);
    pass.end_forward();
    CHECK((a.back(0, stream) == nullptr) == (count == 0));
    CHECK(b.back(0, stream) == nullptr);
    group.release(0, stream);
    pass.finish();
    off.end_step();

    auto visit = step == 0 ? state.create(stream) : state.fetch(stream);
    CHECK(visit);
    state.write_back(visit, stream);
    CHECK(state.prefetch());
    CHECK_FALSE(state.prefetch());
  }
  CHECK(off.counters().state_written == 0);
}

TEST_CASE("empty: memory that is computed again has none again") {
  rig desk;
  auto opts = small_options();
  opts.recompute_modules = {"layernorm"};
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(0, desk.stream());
  open.commit_or_discard<"layernorm">(0, desk.stream(), x);
  open.end_forward();
  int called = 0;
  open.restore_or_recompute<"layernorm">(
      0, desk.stream(), [&] { ++called; }, x);
  CHECK(called == 1);
  CHECK(x);
  open.finish();
}

TEST_CASE("empty: graphs repeat steps with layers that have no rows") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    rig desk(tidepool::machine{.order_seed = seed});
    auto opts = arena_options(6 * size);
    opts.min_tensor_elements = 0;
    opts.reload_ahead = 100;
    offloader off(desk.dev, opts);
    off.on_report([](std::string_view) {});
    trainer work{desk, off};
    for (int step = 0; step < 6; ++step) work.step(false);
    const auto before = work.round;
    for (const bool halves : {false, true}) {
      CAPTURE(halves);
      rig::buffer x, none;
      rig::offloader<modules>::chunk chunk;
      const auto forward = [&] {
        chunk = off.begin();
        none = off.allocate(0, desk.stream());
        x = off.allocate(size, desk.stream());
        desk.write(x, 9);
        chunk.commit<"expert_fc1">(0, desk.stream(), none);
        chunk.commit<"moe_act">(0, desk.stream(), x);
        chunk.end_forward();
      };
      const auto backward = [&] {
        chunk.restore<"moe_act">(0, desk.stream(), x);
        desk.check(x, 9);
        chunk.restore<"expert_fc1">(0, desk.stream(), none);
        x.reset(desk.stream());
        none.reset(desk.stream());
        chunk.finish();
        off.end_step();
      };
      auto first = off.capture(desk.stream(), [&] {
        forward();
        if (!halves) backward();
      });
      if (!halves) {
        for (int i = 0; i < 3; ++i) first.launch(desk.stream());
      } else {
        auto second = off.capture(desk.stream(), backward);
        for (int i = 0; i < 3; ++i) {
          first.launch(desk.stream());
          second.launch(desk.stream());
        }
      }
      CHECK(desk.wrong() == 0);
    }
    work.round = before;
    work.step(false);  // eagerly again
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("empty: a device that checks finds no mistake") {
  using checked = tidepool::checked_device<tidepool::virtual_device>;
  checked dev;
  const auto compute = dev.make_stream();
  const auto stream = compute.ref();
  auto opts = small_options();
  opts.min_tensor_elements = 0;
  {
    tidepool::offloader<checked, modules> off(dev, opts);
    off.on_report([](std::string_view) {});
    for (int step = 0; step < 3; ++step) {
      auto open = off.begin();
      auto x = off.allocate(0, stream);
      dev.writes(x, stream, "fc1");
      auto y = off.adopt(nullptr, 0, stream, [] {});
      open.commit<"expert_fc1">(0, stream, x, y);
      open.restore<"expert_fc1">(0, stream, x, y);
      dev.reads(x, stream, "fc1'");
      open.finish();
      off.end_step();
    }
  }
  CHECK(dev.report() == "order: 0 mistakes found\n");
}
