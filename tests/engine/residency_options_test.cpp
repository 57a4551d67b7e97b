// What leaves and what stays: every option that decides it.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "rig.hpp"

namespace {

using tidepool::options;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t size = 1024;

/// Runs one step of one microbatch and shows, group by group, what left: "..#." where the third
/// stayed. The layers run core_attn, then expert_fc1.
std::string step(rig& desk, offloader& off, int layers, int microbatch = 0) {
  auto open = off.begin({.microbatch = microbatch});
  std::vector<rig::buffer> x(static_cast<std::size_t>(2 * layers));
  std::string text;
  const auto tag = [&](std::size_t i) { return static_cast<std::uint32_t>(100 + i); };
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = off.allocate(size, desk.stream());
    desk.write(x[i], tag(i));
    const auto layer = static_cast<int>(i / 2);
    if (i % 2 == 0) open.commit<"core_attn">(layer, desk.stream(), x[i]);
    if (i % 2 == 1) open.commit<"expert_fc1">(layer, desk.stream(), x[i]);
    text += x[i] ? '#' : '.';
  }
  open.end_forward();
  for (auto i = x.size(); i-- > 0;) {
    const auto layer = static_cast<int>(i / 2);
    if (i % 2 == 0) open.restore<"core_attn">(layer, desk.stream(), x[i]);
    if (i % 2 == 1) open.restore<"expert_fc1">(layer, desk.stream(), x[i]);
    desk.check(x[i], tag(i));
    x[i].reset(desk.stream());
  }
  open.finish();
  CHECK(desk.wrong() == 0);
  return text;
}

}  // namespace

TEST_CASE("options: nothing is offloaded by default") {
  rig desk;
  offloader off(desk.dev);
  CHECK_FALSE(off.enabled<"core_attn">());
  CHECK(step(desk, off, 2) == "####");
  off.end_step();
  CHECK(off.counters().modules[0].groups == 0);
  CHECK(desk.dev.offloads() == 0);
}

TEST_CASE("options: one module alone") {
  rig desk;
  offloader off(desk.dev, small_options({"expert_fc1"}));
  CHECK(step(desk, off, 2) == "#.#.");
  CHECK(off.counters().modules[0].groups == 0);
  CHECK(off.counters().modules[1].groups == 2);
}

TEST_CASE("options: the warm-up step offloads everything eligible, then margin keeps the last") {
  rig desk;
  auto opts = small_options();
  opts.margin = true;
  offloader off(desk.dev, opts);
  CHECK(step(desk, off, 3) == "......");
  off.end_step();
  for (int i = 0; i < 3; ++i) {
    CHECK(step(desk, off, 3) == "....##");
    off.end_step();
  }
  CHECK(off.counters().modules[0].groups_resident == 3);
  CHECK(off.counters().modules[0].groups_offloaded == 3 + 3 * 2);
  CHECK(off.counters().modules[0].groups == 12);
}

TEST_CASE("options: fraction and delta, as the policy has them") {
  rig desk;
  auto opts = small_options();
  opts.fraction = 0.5;
  opts.pipeline_rank = 2;
  opts.delta_bytes_per_rank = size;
  offloader off(desk.dev, opts);
  CHECK(step(desk, off, 4) == "........");
  off.end_step();
  CHECK(step(desk, off, 4) == "##...###");  // two by delta, int(6 * 0.5) of the rest
}

TEST_CASE("options: residency is settled once, and again where the step has grown") {
  rig desk;
  auto opts = small_options();
  opts.fraction = 0.5;
  offloader off(desk.dev, opts);
  step(desk, off, 2);
  off.end_step();
  for (int i = 0; i < 2; ++i) {
    CHECK(step(desk, off, 2) == "..##");
    off.end_step();
  }
  CHECK(step(desk, off, 4) == "..##....");  // later groups than the warm-up step had leave
  off.end_step();
  CHECK(step(desk, off, 4) == "........");
  off.end_step();
  CHECK(step(desk, off, 4) == "....####");
}

TEST_CASE("options: the minimum is in elements, strictly smaller stays") {
  rig desk;
  auto opts = small_options();
  opts.min_tensor_elements = 256;
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto equal = off.allocate<float>(256, desk.stream());
  auto below = off.allocate<float>(255, desk.stream());
  auto bytes = off.allocate(256, desk.stream());  // counted as elements
  auto wide = off.allocate<double>(255, desk.stream());
  open.commit<"core_attn">(0, desk.stream(), equal, below, bytes, wide);
  CHECK_FALSE(equal);
  CHECK(below);
  CHECK_FALSE(bytes);
  CHECK(wide);
  CHECK(off.counters().modules[0].tensors_small == 2);
  CHECK(off.counters().modules[0].tensors_offloaded == 2);
  open.restore<"core_attn">(0, desk.stream(), equal, below, bytes, wide);
  CHECK(equal);
  CHECK(bytes);
}

TEST_CASE("options: the default minimum is Megatron's") {
  CHECK(options{}.min_tensor_elements == 1048576);
}

TEST_CASE("options: a single tensor may be kept") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto kept = off.allocate(size, desk.stream());
  auto other = off.allocate(size, desk.stream());
  desk.write(kept, 1);
  desk.write(other, 2);
  const auto share = kept.share();
  share.keep_resident();  // of the storage, through any of its handles
  auto* const data = kept.data();
  open.commit<"core_attn">(0, desk.stream(), kept, other);
  CHECK(kept.data() == data);
  CHECK_FALSE(other);
  CHECK(off.counters().modules[0].bytes_offloaded == size);
  open.restore<"core_attn">(0, desk.stream(), kept, other);
  desk.check(kept, 1);
  desk.check(other, 2);
  CHECK(desk.wrong() == 0);
  const rig::buffer empty;
  empty.keep_resident();
}

TEST_CASE("options: keeping a buffer keeps its views") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  x.keep_resident();
  auto part = x.view({.width = 64, .rows = 4, .pitch = 128});
  open.commit<"core_attn">(0, desk.stream(), part);
  CHECK(part);
  CHECK(part.pitch() == 128);
}

TEST_CASE("options: a kept tensor of an earlier buffer does not keep the next one") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  {
    auto x = off.allocate(size, desk.stream());
    x.keep_resident();
  }
  auto y = off.allocate(size, desk.stream());
  open.commit<"core_attn">(0, desk.stream(), y);
  CHECK_FALSE(y);
}

TEST_CASE("options: single layers") {
  rig desk;
  auto opts = small_options();
  opts.offload_layers = {0, 2};
  offloader off(desk.dev, opts);
  CHECK(step(desk, off, 4) == "..##..##");
  CHECK(off.counters().modules[0].groups == 4);
  CHECK(off.counters().modules[0].groups_resident == 2);
}

TEST_CASE("options: a group of a negative layer is in no list of layers") {
  rig desk;
  auto opts = small_options();
  opts.offload_layers = {0};
  offloader off(desk.dev, opts);
  auto open = off.begin();
  auto x = off.allocate(size, desk.stream());
  open.commit<"core_attn">(-1, desk.stream(), x);
  CHECK(x);
}

TEST_CASE("options: margin with two microbatches in flight keeps the first chunk's last groups") {
  rig desk;
  auto opts = small_options({"core_attn"});
  opts.margin = true;
  offloader off(desk.dev, opts);
  const auto run = [&] {
    std::string text;
    std::vector<offloader::chunk> open;
    std::array<std::array<rig::buffer, 2>, 3> x;
    const auto forward = [&](std::size_t mb) {
      open.push_back(off.begin({.microbatch = static_cast<int>(mb)}));
      for (std::size_t l = 0; l < 2; ++l) {
        x[mb][l] = off.allocate(size, desk.stream());
        desk.write(x[mb][l], static_cast<std::uint32_t>(mb * 10 + l));
        open[mb].commit<"core_attn">(static_cast<int>(l), desk.stream(), x[mb][l]);
        text += x[mb][l] ? '#' : '.';
      }
      open[mb].end_forward();
    };
    const auto backward = [&](std::size_t mb) {
      for (std::size_t l = 2; l-- > 0;) {
        open[mb].restore<"core_attn">(static_cast<int>(l), desk.stream(), x[mb][l]);
        desk.check(x[mb][l], static_cast<std::uint32_t>(mb * 10 + l));
        x[mb][l].reset(desk.stream());
      }
      open[mb].finish();
    };
    forward(0);
    forward(1);
    backward(0);
    forward(2);
    backward(1);
    backward(2);
    off.end_step();
    return text;
  };
  CHECK(run() == "......");
  CHECK(run() == ".#....");
  CHECK(run() == ".#....");
  CHECK(desk.wrong() == 0);
}
