// Chunks: microbatches in flight, interleaved model chunks, any order of restores.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "program.hpp"
#include "rig.hpp"

namespace {

using tidepool::chunk_info;
using tidepool::test::arena_options;
using tidepool::test::program;
using tidepool::test::rig;
using tidepool::test::run;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;

constexpr std::size_t size = 2048;

/// One buffer per layer of a chunk, saved by core_attn.
struct one_chunk {
  offloader::chunk open;
  std::vector<rig::buffer> saved;
  std::uint32_t tag = 0;

  void forward(rig& desk, offloader& off, const chunk_info& info, std::size_t layers,
               std::uint32_t first_tag) {
    open = off.begin(info);
    tag = first_tag;
    saved.clear();
    for (std::size_t l = 0; l < layers; ++l) {
      saved.push_back(off.allocate(size, desk.stream()));
      desk.write(saved[l], tag + static_cast<std::uint32_t>(l));
      open.commit<"core_attn">(static_cast<int>(l), desk.stream(), saved[l]);
    }
    open.end_forward();
  }
  void restore(rig& desk, std::size_t layer) {
    open.restore<"core_attn">(static_cast<int>(layer), desk.stream(), saved[layer]);
    desk.check(saved[layer], tag + static_cast<std::uint32_t>(layer));
    saved[layer].reset(desk.stream());
  }
  void backward(rig& desk) { backward(desk, saved.size()); }
  // What is left of it below a layer.
  void backward(rig& desk, std::size_t from) {
    for (auto l = from; l-- > 0;) restore(desk, l);
    open.finish();
  }
};

// Three chunks go forward, then backward in the given order, twice. The microbatches of the reloads
// of the second step, in the order of the copies.
std::string second_step_reloads(const std::vector<std::size_t>& backward) {
  rig desk;
  auto opts = small_options({"core_attn"});
  opts.reload_ahead = 1;
  offloader off(desk.dev, opts);
  for (int step = 0; step < 2; ++step) {
    off.start_trace("step", desk.stream());
    std::vector<one_chunk> chunks(3);
    for (int mb = 0; mb < 3; ++mb) {
      chunks[static_cast<std::size_t>(mb)].forward(desk, off, {.microbatch = mb}, 2, 0);
    }
    for (const auto mb : backward) chunks[mb].backward(desk);
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
  std::string order;
  for (const auto& each : off.finish_trace().spans) {
    if (each.kind != tidepool::trace::span_kind::reload) continue;
    order += static_cast<char>('0' + each.microbatch);
  }
  return order;
}

}  // namespace

TEST_CASE("schedule: 1F1B and interleaved chunks, as pipelines run them") {
  const auto text = [](const std::vector<tidepool::test::pass>& order) {
    std::string result;
    for (const auto& each : order) {
      result += each.backward ? 'B' : 'F';
      result += static_cast<char>('0' + each.microbatch);
      if (each.model_chunk > 0) result += '\'';
    }
    return result;
  };
  using tidepool::test::one_f_one_b;
  CHECK(text(one_f_one_b(3, 1)) == "F0B0F1B1F2B2");
  CHECK(text(one_f_one_b(3, 2)) == "F0F1B0F2B1B2");
  CHECK(text(one_f_one_b(4, 3)) == "F0F1F2B0F3B1B2B3");
  CHECK(text(one_f_one_b(2, 2, 2)) == "F0F1F0'F1'B0'B1'B0B1");
}

TEST_CASE("chunks: model chunks in flight, in random orders") {
  for (int seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    program plan;
    plan.seed = plan.model.order_seed = static_cast<std::uint64_t>(seed);
    plan.model_chunks = 2 + seed % 3;
    plan.depth = 1 + seed % 3;
    plan.layers = 1 + seed % 2;
    plan.microbatches = 6;
    plan.opts = arena_options(24 * 1024);
    plan.opts.reload_ahead = static_cast<std::size_t>(seed % 4);
    CHECK(run(plan).wrong == 0);
  }
}

TEST_CASE("chunks: one layer and one group per chunk") {
  for (int depth = 1; depth <= 4; ++depth) {
    program plan;
    plan.layers = 1;
    plan.modules = {"core_attn"};
    plan.tensors = 1;
    plan.depth = depth;
    plan.microbatches = 8;
    plan.opts = small_options({"core_attn"});
    plan.model.order_seed = 9;
    const auto seen = run(plan);
    CHECK(seen.wrong == 0);
    std::uint64_t groups = 0;
    for (const auto& each : seen.counters.modules) groups += each.groups_offloaded;
    CHECK(groups == 2 * 8);
  }
}

TEST_CASE("chunks: each microbatch gets its own data back, whichever comes first") {
  rig desk;
  offloader off(desk.dev, small_options());
  std::vector<one_chunk> chunks(4);
  for (int mb = 0; mb < 4; ++mb) {
    chunks[static_cast<std::size_t>(mb)].forward(desk, off, {.microbatch = mb}, 2,
                                                 static_cast<std::uint32_t>(mb * 10));
  }
  for (const std::size_t mb : {2U, 0U, 3U, 1U}) chunks[mb].backward(desk);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("chunks: layers may be restored in any order, two chunks in turns") {
  for (const std::size_t ahead : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{9}}) {
    CAPTURE(ahead);
    rig desk;
    auto opts = small_options();
    opts.reload_ahead = ahead;
    offloader off(desk.dev, opts);
    one_chunk first;
    one_chunk second;
    first.forward(desk, off, {.microbatch = 0}, 5, 0);
    second.forward(desk, off, {.microbatch = 1}, 5, 10);
    for (const std::size_t layer : {0U, 3U, 4U, 1U, 2U}) {
      first.restore(desk, layer);
      second.restore(desk, 4 - layer);
    }
    first.open.finish();
    second.open.finish();
    CHECK(desk.wrong() == 0);
    CHECK(desk.dev.reloads() == 10);  // none twice
  }
}

TEST_CASE("chunks: a module that runs twice in a layer is restored last in, first out") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  std::vector<rig::buffer> x;
  for (std::uint32_t i = 0; i < 4; ++i) {
    x.push_back(off.allocate(size, desk.stream()));
    desk.write(x[i], i);
    open.commit<"core_attn">(i < 3 ? 7 : 8, desk.stream(), x[i]);
  }
  open.restore<"core_attn">(7, desk.stream(), x[2]);
  open.restore<"core_attn">(8, desk.stream(), x[3]);
  open.restore<"core_attn">(7, desk.stream(), x[1]);
  open.restore<"core_attn">(7, desk.stream(), x[0]);
  for (std::uint32_t i = 0; i < 4; ++i) desk.check(x[i], i);
  open.finish();
  CHECK(desk.wrong() == 0);
}

TEST_CASE("chunks: a chunk without groups is begun and finished all the same") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn"}));
  off.on_report([](std::string_view) {});
  for (int step = 0; step < 3; ++step) {
    auto first = off.begin({.microbatch = 0});
    auto second = off.begin({.microbatch = 1});
    first.end_forward();
    second.end_forward();
    first.finish();
    second.finish();
    off.end_step();
  }
  CHECK(off.counters().steps == 3);
}

TEST_CASE("chunks: a group without tensors is a group") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto open = off.begin();
  open.commit<"core_attn">(0, desk.stream());
  open.restore<"core_attn">(0, desk.stream());
  open.finish();
  CHECK(off.counters().modules[0].groups == 1);
  CHECK(off.counters().modules[0].groups_offloaded == 0);
}

TEST_CASE("chunks: the first step and later ones may differ in everything") {
  rig desk;
  auto opts = small_options({"core_attn"});
  opts.margin = true;
  opts.fraction = 0.5;
  offloader off(desk.dev, opts);
  std::uint32_t tag = 0;
  for (const std::size_t layers : {3U, 6U, 1U, 4U}) {
    const int count = layers == 6 ? 5 : 2;
    std::vector<one_chunk> chunks(static_cast<std::size_t>(count));
    for (int mb = 0; mb < count; ++mb) {
      chunks[static_cast<std::size_t>(mb)].forward(desk, off, {.microbatch = mb}, layers,
                                                   ++tag * 10);
    }
    for (auto& each : chunks) each.backward(desk);
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
}

TEST_CASE("chunks: abandoned, it gives all back, and others go on") {
  rig desk;
  offloader off(desk.dev, arena_options(8 * size));
  one_chunk kept;
  kept.forward(desk, off, {.microbatch = 0}, 2, 0);
  {
    one_chunk lost;
    lost.forward(desk, off, {.microbatch = 1}, 3, 10);
    lost.open.restore<"core_attn">(2, desk.stream(), lost.saved[2]);  // in the middle of backward
  }
  kept.backward(desk);
  CHECK(desk.wrong() == 0);
  const auto all = off.allocate(8 * size, desk.stream());
  CHECK(all);
  CHECK(off.counters().evictions == 0);
}

TEST_CASE("chunks: abandoned ones do not fill the host") {
  rig desk;
  auto opts = small_options({"core_attn"});
  opts.host_budget = 4 * size;
  opts.host_step = 4 * size;
  offloader off(desk.dev, opts);
  for (int i = 0; i < 10; ++i) {
    one_chunk lost;
    lost.forward(desk, off, {.microbatch = i}, 4, 0);
  }
  off.end_step();
  CHECK(off.counters().host_peak == 4 * size);
}

TEST_CASE("chunks: assigning over an open one abandons it") {
  rig desk;
  offloader off(desk.dev, arena_options(2 * size));
  one_chunk open;
  open.forward(desk, off, {.microbatch = 0}, 2, 0);
  open.open = off.begin({.microbatch = 1});
  const auto all = off.allocate(2 * size, desk.stream());
  CHECK(all);
  open.open.finish();
  off.on_report([](std::string_view) {});
  off.end_step();
}

TEST_CASE("chunks: moved, it is the same chunk, and what it was moved from is none") {
  rig desk;
  offloader off(desk.dev, small_options({"core_attn"}));
  one_chunk open;
  open.forward(desk, off, {.microbatch = 0}, 2, 0);
  auto moved = std::move(open.open);
  auto x = off.allocate(size, desk.stream());
  desk.write(x, 50);
  CHECK_THROWS_AS(open.open.commit<"core_attn">(9, desk.stream(), x), tidepool::misuse_error);
  CHECK(x);
  open.open.finish();  // it is no chunk any more
  open.open = std::move(moved);
  open.backward(desk);
  off.end_step();
  CHECK(off.counters().modules[0].groups == 2);
  desk.check(x, 50);
  CHECK(desk.wrong() == 0);
}

TEST_CASE("chunks: reloads ahead follow the order of backward passes") {
  CHECK(second_step_reloads({0, 1, 2}) == "001122");
}

TEST_CASE("chunks: reloads ahead follow the order of backward passes that the warm-up step had") {
  CHECK(second_step_reloads({2, 1, 0}) == "221100");
  CHECK(second_step_reloads({1, 2, 0}) == "112200");
}

// As a pipeline stage has them of which one model chunk holds no offloaded module.
TEST_CASE("chunks: those that save nothing do not hold up the reloads of the others") {
  rig desk;
  auto opts = small_options({"core_attn"});
  opts.reload_ahead = 2;
  offloader off(desk.dev, opts);
  for (int step = 0; step < 3; ++step) {
    CAPTURE(step);
    for (int mb = 0; mb < 3; ++mb) {
      CAPTURE(mb);
      one_chunk full;
      one_chunk bare;
      full.forward(desk, off, {.microbatch = mb}, 3, 0);
      bare.forward(desk, off, {.microbatch = mb, .model_chunk = 1}, 0, 0);
      bare.backward(desk);
      const auto before = desk.dev.reloads();
      full.restore(desk, 2);
      // Two had come ahead, so that the restore itself starts the third; or, in the first step, the
      // order is not known yet.
      if (step > 0) CHECK(desk.dev.reloads() == before + 1);
      full.backward(desk, 2);
    }
    off.end_step();
  }
  CHECK(desk.wrong() == 0);
}
