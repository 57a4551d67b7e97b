// What an offloader counts.
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include "messages.hpp"
#include "rig.hpp"

namespace {

using tidepool::test::arena_options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t size = 4096;
constexpr std::size_t layers = 5;

// One microbatch, a buffer in each layer.
void step(rig& desk, offloader& off) {
  auto open = off.begin();
  std::vector<rig::buffer> x(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    x[l] = off.allocate(size, desk.stream());
    desk.write(x[l], static_cast<std::uint32_t>(l));
    open.commit<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
  }
  open.end_forward();
  for (std::size_t l = layers; l-- > 0;) {
    open.restore<"core_attn">(static_cast<int>(l), desk.stream(), x[l]);
    desk.check(x[l], static_cast<std::uint32_t>(l));
    x[l].reset(desk.stream());
  }
  open.finish();
  off.end_step();
}

}  // namespace

TEST_CASE("counters: what was live at most, and what would have been") {
  rig desk;
  auto opts = arena_options(3 * size, {"core_attn"});
  opts.reload_ahead = 1;
  offloader off(desk.dev, opts);
  step(desk, off);
  const auto seen = off.counters();
  CHECK(seen.live_peak == 2 * size);  // one in use, one ahead
  CHECK(seen.live_peak_without == layers * size);
  CHECK(seen.device_reserved == 3 * size);
  CHECK(seen.device_peak == 3 * size);
  CHECK(seen.saved() == (layers - 3) * size);
  CHECK(seen.host_peak == layers * size);
  CHECK(seen.device_allocations == desk.dev.device_allocations);
  CHECK(seen.host_allocations == desk.dev.host_allocations);
  CHECK(seen.host_reserved >= layers * size);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("counters: without offloading both are the same, and nothing is saved") {
  rig desk;
  offloader off(desk.dev, small_options({}));
  step(desk, off);
  const auto seen = off.counters();
  CHECK(seen.live_peak == layers * size);
  CHECK(seen.live_peak_without == layers * size);
  CHECK(seen.saved() == 0);
  CHECK(seen.host_peak == 0);
}

TEST_CASE("counters: bytes in all and of the last step") {
  rig desk;
  auto opts = small_options({"core_attn"});
  opts.margin = true;
  offloader off(desk.dev, opts);
  CHECK(off.counters().modules[0].enabled);
  CHECK_FALSE(off.counters().modules[1].enabled);
  step(desk, off);
  CHECK(off.counters().modules[0].step_bytes == layers * size);
  step(desk, off);
  const auto seen = off.counters().modules[0];
  CHECK(off.counters().steps == 2);
  CHECK(seen.step_bytes == (layers - 1) * size);
  CHECK(seen.bytes_offloaded == (2 * layers - 1) * size);
  CHECK(seen.bytes_reloaded == (2 * layers - 1) * size);
  CHECK(seen.groups == 2 * layers);
  CHECK(seen.groups_offloaded == 2 * layers - 1);
  CHECK(seen.groups_resident == 1);
  CHECK(seen.tensors_offloaded == 2 * layers - 1);
}

TEST_CASE("counters: a block that is handed out with a join is a wait") {
  rig desk;
  offloader off(desk.dev, arena_options(size, {"core_attn"}));
  auto open = off.begin();
  std::vector<rig::buffer> x(3);
  for (int l = 0; l < 3; ++l) {
    auto& each = x[static_cast<std::size_t>(l)];
    each = off.allocate(size, desk.stream());
    CHECK(off.counters().arena_waits == static_cast<std::uint64_t>(l));
    open.commit<"core_attn">(l, desk.stream(), each);
  }
}

TEST_CASE("counters: host memory of abandoned chunks is in use no more") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn"}));
  for (int i = 0; i < 3; ++i) {
    auto open = off.begin();
    auto x = off.allocate(size, desk.stream());
    open.commit<"core_attn">(0, desk.stream(), x);
  }
  CHECK(off.counters().host_peak == size);
}

TEST_CASE("counters: who shares the host is told, and again where its budget is short") {
  rig desk(tidepool::machine{.host_bytes = std::size_t{1} << 20});
  auto opts = small_options();
  CHECK(offloader(desk.dev, small_options()).counters().host_budget.empty());  // it was given
  opts.host_budget.reset();
  opts.local_ranks = 8;
  const auto shared = offloader(desk.dev, opts).counters().host_budget;
  CHECK(tidepool::test::says(shared, ", shared by 8 local ranks (--local-ranks)"));
  opts.local_ranks = 2147483647;  // each has next to nothing
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(4096, desk.stream());
  CHECK_THROWS_WITH_AS(
      open.commit<"core_attn">(0, desk.stream(), x),
      doctest::Contains("shared by 2147483647 local ranks (--local-ranks)). Raise --host-budget to "
                        "4096 bytes or more, offload fewer"),
      tidepool::out_of_budget);
}

TEST_CASE("counters: a commit that was refused counts for nothing") {
  rig desk;
  auto opts = small_options();
  opts.min_tensor_elements = 512;
  opts.host_step = opts.host_budget.emplace(4096);
  rig::offloader<tidepool::modules<"core_attn">> off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(2048, desk.stream());
  auto small = off.allocate(256, desk.stream());
  auto large = off.allocate(4096, desk.stream());
  CHECK_THROWS_AS(open.commit<"core_attn">(0, desk.stream(), x, small, large),
                  tidepool::out_of_budget);
  const auto refused = off.counters().modules[0];
  CHECK(refused.tensors_offloaded == 0);
  CHECK(refused.tensors_small == 0);
  open.commit<"core_attn">(0, desk.stream(), x, small);
  const auto taken = off.counters().modules[0];
  CHECK(taken.tensors_offloaded == 1);
  CHECK(taken.tensors_small == 1);
}

TEST_CASE("counters: tensors on another device are counted with their module") {
  rig desk;
  offloader off(desk.dev, small_options());
  off.note_elsewhere(off.module("expert_fc1"));
  off.note_elsewhere(off.module("expert_fc1"));
  const auto seen = off.counters();
  CHECK(seen.modules[0].tensors_elsewhere == 0);
  CHECK(seen.modules[1].tensors_elsewhere == 2);
}
