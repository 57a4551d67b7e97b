// What an offloader does with the decisions of a planner, step by step: the planner here is the
// test.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "faulty_device.hpp"
#include "rig.hpp"
#include "tidepool/core/plan_source.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/offloader.hpp"

namespace {

using namespace tidepool;
using plan::action;
using tidepool::test::rig;

constexpr std::size_t size = 4096;

options automatic(options opts, int timed_step) {
  opts.offload_modules = {"core_attn"};
  opts.policy = policy_kind::automatic;
  opts.timed_step = timed_step;
  return opts;
}
options automatic(int timed_step) { return automatic(test::small_options(), timed_step); }
options in_arena(std::size_t tensors, int timed_step) {
  return automatic(test::arena_options(tensors * size), timed_step);
}

// What is decided for the `call`-th step that is asked about, counted from 0.
using decide = std::function<void(std::size_t call, decision& what)>;

// What the offloader asked, with the step that it asked about.
struct asked {
  std::vector<recorded_step> steps;
};

// Decides as it is told; of a step of which it is told nothing, all leaves.
class told_source final : public plan_source {
 public:
  told_source(asked& notes, decide how) : notes_(notes), how_(std::move(how)) {}

  decision make(const recorded_step& recorded, const options&) override {
    decision what;
    for (const auto& chunk : recorded.step.chunks) {
      what.made.what.emplace_back(chunk.groups.size(), action::offload);
    }
    if (how_) how_(notes_.steps.size(), what);
    notes_.steps.push_back(recorded);
    return what;
  }
  followed_plan follow(const plan::step_plan& made, const plan::profile& recorded,
                       std::span<const std::string>, std::uint64_t, const options&) override {
    followed_plan result;
    result.step = recorded;
    result.what.made = made;
    return result;
  }

 private:
  asked& notes_;
  decide how_;
};

struct trainer {
  explicit trainer(const options& opts, decide how = {}, const machine& model = {})
      : desk(model),
        off(desk.dev, opts, {.planner = std::make_unique<told_source>(notes, std::move(how))}) {
    off.on_report([](std::string_view) {});
    off.on_measure([this] { ++met; });
  }

  asked notes;
  rig desk;
  rig::offloader<> off;
  int met = 0;                  // other ranks
  std::vector<void*> placed{};  // the tensors of the latest step
  int stayed = 0;               // of them
  std::uint64_t ahead = 0;      // that were on their way back before anybody asked for them

  // A tensor of `bytes` for each layer, in a group of its own.
  void step(const std::vector<std::size_t>& bytes) {
    step(bytes, [] {});
  }
  template <class Between>
  void step(const std::vector<std::size_t>& bytes, const Between& between) {
    const auto s = desk.stream();
    const auto module = off.module("core_attn");
    placed.clear();
    stayed = 0;
    auto open = off.begin();
    std::vector<rig::buffer> x;
    for (std::size_t l = 0; l < bytes.size(); ++l) {
      auto& each = x.emplace_back(off.allocate(bytes[l], s));
      placed.push_back(each.data());
      desk.write(each, static_cast<std::uint32_t>(l));
      open.commit(module, static_cast<int>(l), s, each);
      stayed += each ? 1 : 0;
    }
    between();
    const auto before = desk.dev.reloads();
    open.end_forward();
    ahead = desk.dev.reloads() - before;
    for (auto l = bytes.size(); l-- > 0;) {
      open.restore(module, static_cast<int>(l), s, x[l]);
      desk.check(x[l], static_cast<std::uint32_t>(l));
      x[l].reset(s);
    }
    open.finish();
    off.end_step();
  }
  // One tensor that leaves; while it does, a small one comes, and a large one takes all but that.
  void tight_step(std::size_t large) {
    step({size}, [&] {
      const auto s = desk.stream();
      auto small = off.allocate(size, s);
      auto rest = off.allocate(large, s);
      desk.write(rest, 7);
      rest.reset(s);
      small.reset(s);
    });
  }
};

options with_peer(options opts, std::size_t budget) {
  opts.places = {place_kind::peer, place_kind::host};
  opts.peer_budget = budget;
  return opts;
}

}  // namespace

TEST_CASE("plan maker: links are measured once in a warm-up, and are the device's") {
  machine model;
  model.peer_shares_link = true;
  const plan::link_rates of_host{model.offload_rate, model.reload_rate, model.both_rate,
                                 model.copy_latency_ns / 1e3};
  auto of_peer = of_host;  // over the same link
  of_peer.latency_us = model.peer_latency_ns / 1e3;
  for (const bool neighbour : {true, false}) {
    CAPTURE(neighbour);
    const auto opts = neighbour ? with_peer(automatic(3), 8 * size) : automatic(3);
    trainer run(opts, {}, model);
    for (int i = 0; i < 3; ++i) run.step({size, size});
    CHECK(run.met == 3);  // out, in and both
    REQUIRE(run.notes.steps.size() == 3);
    for (const auto& [step, first] : run.notes.steps) {
      CHECK(step.link == of_host);
      CHECK(step.peer_link.has_value() == neighbour);
      if (neighbour) CHECK(*step.peer_link == of_peer);
      CHECK(step.peer_shares_link == neighbour);
    }
    CHECK(run.desk.wrong() == 0);
  }
}

TEST_CASE("plan maker: once a plan from elsewhere is outgrown, its links are still believed") {
  plan::profile elsewhere;
  {
    trainer run(with_peer(automatic(2), 8 * size));
    for (int i = 0; i < 2; ++i) run.step({size, size});
    elsewhere = run.notes.steps.back().step;
  }
  elsewhere.link = {1, 2, 3, 4};
  elsewhere.peer_link = plan::link_rates{5, 6, 7, 8};
  elsewhere.peer_shares_link = true;
  trainer run(with_peer(automatic(2), 8 * size));
  plan::step_plan made;
  made.what = {{action::offload, action::offload_to_peer}};
  run.off.follow(made, elsewhere);
  run.step({size, size});
  CHECK(run.notes.steps.empty());
  run.step({size, size, size});  // outgrown
  run.step({size, size, size});
  REQUIRE(run.notes.steps.size() == 1);
  const auto& step = run.notes.steps.front().step;
  CHECK(step.link == elsewhere.link);
  CHECK(step.peer_link == elsewhere.peer_link);
  CHECK(step.peer_shares_link);
  CHECK(run.met == 0);
  CHECK(run.desk.wrong() == 0);
}

TEST_CASE("plan maker: bytes reloaded ahead are limited as the latest decision says") {
  trainer run(automatic(3), [](std::size_t call, decision& what) {
    what.made.reload_ahead = 3;
    what.made.reload_ahead_bytes = call == 0 ? 1 : 0;
  });
  const std::vector<std::size_t> bytes(4, size);
  run.step(bytes);
  run.step(bytes);
  CHECK(run.ahead == 1);  // a byte has room, so that a group may come
  run.step(bytes);
  CHECK(run.ahead == 3);
  CHECK(run.desk.wrong() == 0);
}

TEST_CASE("plan maker: what stays is limited to the byte, and in an arena by pieces as well") {
  const std::size_t piece = std::size_t{16} << 10;  // what a pool grows by
  const auto stayed = [&](const options& opts, std::size_t most, std::size_t free_piece) {
    trainer run(opts, [=](std::size_t, decision& what) {
      for (auto& each : what.made.what.front()) each = action::keep;
      what.keep_at_most = most;
      what.free_piece = free_piece;
    });
    const std::vector<std::size_t> bytes(3, piece);
    for (int i = 0; i < 3; ++i) run.step(bytes);
    CHECK(run.desk.wrong() == 0);
    return run.stayed;
  };
  CHECK(stayed(automatic(2), 3 * piece, 0) == 3);
  CHECK(stayed(automatic(2), 3 * piece - 1, 0) == 2);
  CHECK(stayed(automatic(2), 3 * piece, 100 * piece) == 3);
  const auto limited = automatic(test::arena_options(4 * piece), 2);
  CHECK(stayed(limited, 3 * piece, 0) == 3);
  CHECK(stayed(limited, 3 * piece, 2 * piece) == 2);
}

TEST_CASE("plan maker: places of a plan that was outgrown are nobody's") {
  trainer run(in_arena(8, 2), [](std::size_t, decision& what) {
    what.placement.storages.push_back({size, 4 * size, 4 * size});
  });
  run.step({size});
  const auto* const anywhere = run.placed.front();
  run.step({size});
  const auto* const by_plan = run.placed.front();
  CHECK(by_plan != anywhere);
  run.step({size, size});  // outgrown
  CHECK(run.placed.front() == by_plan);
  run.step({size, size});
  CHECK(run.placed.front() == anywhere);
  CHECK(run.desk.wrong() == 0);
}

TEST_CASE("plan maker: memory does not go to pieces in a warm-up, be it of shapes that vary") {
  SUBCASE("once a plan was outgrown") {
    trainer run(in_arena(6, 2));
    run.step({size});
    run.step({size});
    run.step({size, size});  // outgrown
    run.tight_step(5 * size);
    CHECK(run.desk.wrong() == 0);
  }
  SUBCASE("in a step in which a plan is tried out") {
    trainer run(in_arena(6, 4));
    run.tight_step(5 * size);
    run.tight_step(5 * size - 512);
    run.tight_step(5 * size);
    CHECK(run.desk.wrong() == 0);
  }
}

TEST_CASE("plan maker: each step finds a neighbour's memory whole") {
  trainer run(with_peer(automatic(2), 4 * size), [](std::size_t, decision& what) {
    for (auto& each : what.made.what.front()) each = action::offload_to_peer;
  });
  run.step({size, 2 * size, size});
  run.step({2 * size, 2 * size});
  const auto totals = run.off.counters();
  REQUIRE(totals.places.size() == 2);
  CHECK(totals.places[0].bytes_offloaded == 8 * size);
  CHECK(totals.places[1].bytes_offloaded == 0);
  CHECK(run.desk.wrong() == 0);
}

TEST_CASE("plan maker: what was not recorded of a step is told, be it one nobody would plan for") {
  using device = test::faulty_device<virtual_device>;
  device dev{machine{}};
  const auto stream = dev.make_stream();
  const auto s = stream.ref();
  asked notes;
  offloader<device, all_modules> off(dev, automatic(6),
                                     {.planner = std::make_unique<told_source>(notes, decide{})});
  off.on_report([](std::string_view) {});
  const auto step = [&](bool broken) {
    auto open = off.begin();
    if (broken) dev.arm({test::call_kind::record, 1, test::manner::once});
    auto x = off.allocate(size, s);
    dev.disarm();
    open.commit(off.module("core_attn"), 0, s, x);
    open.end_forward();
    open.restore(off.module("core_attn"), 0, s, x);
    x.reset(s);
    open.finish();
    off.end_step();
  };
  step(false);
  step(false);
  CHECK(notes.steps.size() == 2);
  CHECK_THROWS_AS(step(true), device_error);  // the third of a warm-up
  step(false);
  REQUIRE(notes.steps.size() == 3);
  CHECK(notes.steps.back().first);
}
