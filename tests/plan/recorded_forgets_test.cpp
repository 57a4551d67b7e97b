// What a recorded step tells of groups that are forgotten, and of tensors that stay beside them.
#include <doctest/doctest.h>

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "planning.hpp"
#include "rig.hpp"
#include "tidepool/offloader.hpp"
#include "tidepool/plan/check.hpp"

namespace {

using namespace tidepool;
using tidepool::test::rig;
using offloader_type = tidepool::test::planning<rig::offloader<>>;
using enum plan::event_kind;

// A step of one chunk.
struct trainer {
  rig& desk;
  offloader_type& off;
  offloader_type::chunk& open;
  module_id attention = off.module("core_attn");
  module_id act = off.module("moe_act");

  [[nodiscard]] auto s() const { return desk.stream(); }
  [[nodiscard]] rig::buffer tensor() const { return off.allocate(std::size_t{4096}, s()); }
  void forget() const {
    open.end_forward();
    open.forget(attention, 0);
  }
};

// The calls of the first step, in which everything leaves.
template <class Body>
std::vector<plan::event_kind> recorded(const Body& body, std::vector<int> layers = {}) {
  auto opts = test::small_options({"core_attn", "moe_act"});
  opts.policy = policy_kind::automatic;
  opts.plan_effort = 20;
  opts.offload_layers = std::move(layers);
  rig desk;
  offloader_type off(desk.dev, opts);
  plan::profile step;
  off.on_report([](std::string_view) {});
  off.on_measure([&] { step = off.profile(); });
  auto open = off.begin();
  body(trainer{desk, off, open});
  open.finish();
  off.end_step();
  CHECK_NOTHROW(plan::check(step));
  std::vector<plan::event_kind> result;
  for (const auto& each : step.events) result.push_back(each.kind);
  return result;
}

}  // namespace

TEST_CASE("recorded forgets: what a forgotten group alone still has goes with it") {
  CHECK(recorded([](const trainer& run) {
          auto x = run.tensor();
          run.open.commit(run.attention, 0, run.s(), x);
          run.forget();
        }) == std::vector{allocate, commit, end_forward, release});
}

TEST_CASE("recorded forgets: what a handle still has goes with that, and nobody drops it") {
  CHECK(recorded([](const trainer& run) {
          auto x = run.tensor();
          auto held = x.share();
          run.open.commit(run.attention, 0, run.s(), x);
          run.forget();
          auto work = run.tensor();
          work.reset(run.s());
          held.reset(run.s());
        }) == std::vector{allocate, commit, end_forward, allocate, release, release});
}

TEST_CASE("recorded forgets: what another group still has goes once that has come back") {
  CHECK(recorded([](const trainer& run) {
          auto x = run.tensor();
          auto again = x.share();
          run.open.commit(run.attention, 0, run.s(), x);
          run.open.commit(run.act, 0, run.s(), again);
          run.forget();
          run.open.restore(run.act, 0, run.s(), again);
          again.reset(run.s());
        }) == std::vector{allocate, commit, commit, drop, end_forward, restore, release});
}

TEST_CASE("recorded forgets: a group that leaves has no part in what is opted out") {
  CHECK(recorded([](const trainer& run) {
          auto x = run.tensor();
          x.keep_resident();
          run.open.commit(run.act, 0, run.s(), x);
          run.open.start_offload(run.attention, 0, run.s(), x);
          x.reset(run.s());
          run.open.end_forward();
          run.open.restore(run.attention, 0, run.s(), x);
          x.reset(run.s());
          run.open.restore(run.act, 0, run.s(), x);
        }) == std::vector{allocate, commit, commit, drop, end_forward, restore, release, restore});
}

TEST_CASE("recorded forgets: a group that stayed is forgotten before another of its layer") {
  CHECK(recorded(
            [](const trainer& run) {
              auto kept = run.tensor();
              run.open.commit(run.attention, 0, run.s(), kept);
              run.open.forget(run.attention, 0);
              auto x = run.tensor();
              run.open.commit(run.attention, 0, run.s(), x);
              kept.reset(run.s());  // the record tells of the forgotten group only here
              run.open.restore(run.attention, 0, run.s(), x);
            },
            {1}) == std::vector{allocate, commit, allocate, commit, release, restore, release});
}
