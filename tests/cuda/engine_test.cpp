// The engine on a GPU: every kind of memory, every depth, views, streams of all kinds.
#include <cuda/stream_ref>
#include <deque>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpu.hpp"
#include "kernels.hpp"
#include "tidepool/plan.hpp"
#include "tidepool/tidepool.hpp"

namespace {

using namespace tidepool;
using test::writer_and_reader;
using gpu_offloader = offloader<cuda_device, modules<"core_attn", "expert_fc1", "moe_act">>;

constexpr std::size_t floats = std::size_t{1} << 20;
constexpr std::size_t bytes = floats * sizeof(float);
constexpr int layers = 6;

options both_modules() {
  options opts;
  opts.offload_modules = {"core_attn", "expert_fc1"};
  opts.min_tensor_elements = 1;
  return opts;
}

struct microbatch {
  int number = 0;
  gpu_offloader::chunk chunk;
  std::vector<gpu_offloader::buffer> attn{layers};
  std::vector<gpu_offloader::buffer> fc1{layers};
};

float value_of(int step, int number, int layer) {
  return static_cast<float>(step * 1000 + number * 100 + layer * 10);
}

// Steps of 1F1B.
void run_steps(gpu_offloader& off, writer_and_reader& work, cudaStream_t stream, int depth,
               int steps) {
  constexpr int microbatches = 4;
  for (int step = 0; step < steps; ++step) {
    std::deque<microbatch> live;
    int begun = 0;
    const auto forward = [&] {
      microbatch mb;
      mb.number = begun++;
      mb.chunk = off.begin({.microbatch = mb.number});
      for (int l = 0; l < layers; ++l) {
        const auto i = static_cast<std::size_t>(l);
        mb.attn[i] = off.allocate<float>(floats, stream);
        mb.fc1[i] = off.allocate<float>(floats / 2, stream);
        const auto base = value_of(step, mb.number, l);
        work.write(stream, mb.attn[i].as<float>(), floats, base, 20);
        work.write(stream, mb.fc1[i].as<float>(), floats / 2, base + 1);
        mb.chunk.commit<"core_attn">(l, stream, mb.attn[i]);
        mb.chunk.commit<"expert_fc1">(l, stream, mb.fc1[i]);
      }
      mb.chunk.end_forward();
      live.push_back(std::move(mb));
    };
    const auto backward = [&] {
      auto mb = std::move(live.front());
      live.pop_front();
      for (int l = layers; l-- > 0;) {
        const auto i = static_cast<std::size_t>(l);
        const auto base = value_of(step, mb.number, l);
        mb.chunk.restore<"expert_fc1">(l, stream, mb.fc1[i]);
        work.check(stream, mb.fc1[i].as<float>(), floats / 2, base + 1, 20);
        mb.fc1[i].reset(stream);
        mb.chunk.restore<"core_attn">(l, stream, mb.attn[i]);
        work.check(stream, mb.attn[i].as<float>(), floats, base);
        mb.attn[i].reset(stream);
      }
      mb.chunk.finish();
    };
    for (int i = 0; i < depth; ++i) forward();
    while (!live.empty()) {
      backward();
      if (begun < microbatches) forward();
    }
    off.end_step();
  }
}

// What is wrong after them.
unsigned train(gpu_offloader& off, cudaStream_t stream, int depth, int steps) {
  writer_and_reader work;
  run_steps(off, work, stream, depth, steps);
  return work.wrong();
}

options arena_of(std::size_t size) {
  auto opts = both_modules();
  opts.memory = memory_kind::arena;
  opts.device_budget = size;
  return opts;
}

// Apart by depth, since the tools that watch every access are slow.
void whole_steps_as_graphs(int depth) {
  cuda_device dev;
  const auto stream = dev.make_stream();
  for (const bool arena : {false, true}) {
    CAPTURE(arena);
    writer_and_reader work;
    gpu_offloader off(
        dev, arena ? arena_of(static_cast<std::size_t>(6 + 6 * depth) * bytes) : both_modules());
    run_steps(off, work, stream.get(), depth, 2);
    auto graph = off.capture(stream.get(), [&] { run_steps(off, work, stream.get(), depth, 1); });
    for (int i = 0; i < 5; ++i) graph.launch(stream.get());
    run_steps(off, work, stream.get(), depth, 2);
    graph.launch(stream.get());
    CHECK(work.wrong() == 0);
    const auto before = off.counters();
    CHECK(before.modules[0].bytes_reloaded > 0);
  }
}

TIDEPOOL_GPU_TEST(
    "a whole step as a graph gives back what left, between eager steps too: depth 1") {
  whole_steps_as_graphs(1);
}

TIDEPOOL_GPU_TEST(
    "a whole step as a graph gives back what left, between eager steps too: depth 2") {
  whole_steps_as_graphs(2);
}

TIDEPOOL_GPU_TEST(
    "a whole step as a graph gives back what left, between eager steps too: depth 3") {
  whole_steps_as_graphs(3);
}

TIDEPOOL_GPU_TEST("a whole step under an automatic plan is captured, however many came before") {
  for (const int before : {3, 5, 20}) {
    CAPTURE(before);
    cuda_device dev;
    const auto stream = dev.make_stream();
    writer_and_reader work;
    auto opts = arena_of(18 * bytes);
    opts.policy = policy_kind::automatic;
    opts.timed_step = 2;
    opts.adopt_after = 0;
    gpu_offloader off(dev, opts, {.planner = planner()});
    off.on_report([](std::string_view) {});
    run_steps(off, work, stream.get(), 2, before);
    REQUIRE(off.current_plan());
    auto graph = off.capture(stream.get(), [&] { run_steps(off, work, stream.get(), 2, 1); });
    for (int i = 0; i < 5; ++i) graph.launch(stream.get());
    run_steps(off, work, stream.get(), 2, 1);
    CHECK(work.wrong() == 0);
  }
}

TIDEPOOL_GPU_TEST("a capture of somebody else's is refused, and is still theirs to end") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  writer_and_reader work;
  gpu_offloader off(dev, both_modules());
  run_steps(off, work, stream.get(), 1, 2);
  auto x = off.allocate<float>(floats, stream.get());
  auto chunk = off.begin();
  dev.begin_capture(stream.ref());
  CHECK_THROWS_AS(chunk.commit<"core_attn">(0, stream.get(), x), misuse_error);
  auto theirs = dev.end_capture(stream.ref());
  dev.replay(theirs, stream.ref());
  x.reset(stream.get());
  chunk = {};
  CHECK_THROWS_AS(
      static_cast<void>(off.capture(
          stream.get(),
          [&] { static_cast<void>(off.allocate(std::size_t{1} << 30, stream.get())); })),
      misuse_error);
  run_steps(off, work, stream.get(), 1, 2);
  CHECK(work.wrong() == 0);
}

TIDEPOOL_GPU_TEST("a stream that is first met inside a capture takes part in it") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  const auto late = dev.make_stream();
  writer_and_reader work;
  auto opts = both_modules();
  opts.margin = false;
  gpu_offloader off(dev, opts);
  const auto step = [&](cuda_device::stream_ref back) {
    work.next_round(stream.get());
    auto chunk = off.begin();
    auto x = off.allocate<float>(floats, stream.ref());
    work.write(stream.get(), x.as<float>(), floats, 7, 20);
    chunk.commit<"core_attn">(0, stream.ref(), x);
    auto forked = dev.make_event();
    dev.record(forked, stream.ref());
    dev.wait(back, forked);
    chunk.restore<"core_attn">(0, back, x);
    work.check(back.get(), x.as<float>(), floats, 7, 20);
    x.reset(back);
    auto joined = dev.make_event();
    dev.record(joined, back);
    dev.wait(stream.ref(), joined);
    chunk.finish();
    off.end_step();
  };
  for (int i = 0; i < 2; ++i) step(stream.ref());
  auto graph = off.capture(stream.get(), [&] { step(late.ref()); });
  for (int i = 0; i < 3; ++i) graph.launch(stream.get());
  step(late.ref());
  CHECK(work.wrong() == 0);
}

TIDEPOOL_GPU_TEST("graphs of layers know one address, and offloads stay outside") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  writer_and_reader work;
  auto opts = both_modules();
  opts.margin = false;  // what stays would keep the address
  gpu_offloader off(dev, opts);
  auto* const address = static_cast<float*>(dev.allocate(bytes));
  {
    fixed_block place(address, bytes);
    std::deque<cuda_device::graph> forward;
    std::deque<cuda_device::graph> backward;
    for (int l = 0; l < layers; ++l) {
      dev.begin_capture(stream.ref());
      work.write(stream.get(), address, floats, static_cast<float>(l), 20);
      forward.push_back(dev.end_capture(stream.ref()));
      dev.begin_capture(stream.ref());
      work.check(stream.get(), address, floats, static_cast<float>(l), 20);
      backward.push_back(dev.end_capture(stream.ref()));
    }
    for (int step = 0; step < 4; ++step) {
      auto chunk = off.begin();
      std::vector<gpu_offloader::buffer> saved(layers);
      for (int l = 0; l < layers; ++l) {
        const auto i = static_cast<std::size_t>(l);
        saved[i] = off.allocate_from(place, bytes, stream.get());
        dev.replay(forward[i], stream.ref());
        chunk.commit<"core_attn">(l, stream.get(), saved[i]);
      }
      for (int l = layers; l-- > 0;) {
        const auto i = static_cast<std::size_t>(l);
        chunk.restore<"core_attn">(l, stream.get(), saved[i]);
        dev.replay(backward[i], stream.ref());
        saved[i].reset(stream.get());
      }
      chunk.finish();
      off.end_step();
    }
    CHECK(work.wrong() == 0);
  }
  dev.deallocate(address);
}

TIDEPOOL_GPU_TEST("every kind of memory and cap gives back what left, at 1F1B depth 1 to 3") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  for (int depth = 1; depth <= 3; ++depth) {
    std::vector<options> all(6, both_modules());
    all[1].max_inflight = 0;
    all[2].max_inflight = 1;
    all[3].max_inflight_bytes = 2 * bytes;
    all[4].memory = memory_kind::arena;
    all[4].device_budget = static_cast<std::size_t>(6 + 6 * depth) * bytes;
    all[5].memory = memory_kind::slots;
    all[5].slots = {{bytes, 12}, {bytes / 2, 12}};
    for (const auto& opts : all) {
      CAPTURE(depth);
      CAPTURE(to_text(opts));
      gpu_offloader off(dev, opts);
      CHECK(train(off, stream.get(), depth, 4) == 0);
      const auto seen = off.counters();
      CHECK(seen.modules[0].bytes_offloaded > 0);
      CHECK(seen.modules[0].bytes_reloaded > 0);
    }
  }
}

TIDEPOOL_GPU_TEST(
    "all kinds of streams: legacy and per-thread default, blocking, cuda::stream_ref") {
  cuda_device dev;
  gpu_offloader off(dev, both_modules());
  CHECK(train(off, cudaStream_t{nullptr}, 1, 3) == 0);
  CHECK(train(off, cudaStreamPerThread, 2, 3) == 0);
  cudaStream_t blocking = nullptr;
  REQUIRE(cudaStreamCreate(&blocking) == cudaSuccess);
  CHECK(train(off, blocking, 2, 3) == 0);

  writer_and_reader work;
  const ::cuda::stream_ref ref(blocking);
  auto x = off.allocate<float>(floats, ref);
  work.write(blocking, x.as<float>(), floats, 5);
  auto chunk = off.begin();
  chunk.commit<"core_attn">(0, ref, x);
  chunk.restore<"core_attn">(0, ref, x);
  work.check(blocking, x.as<float>(), floats, 5);
  x.reset(ref);
  chunk.finish();
  CHECK(work.wrong() == 0);
  cudaStreamDestroy(blocking);
}

TIDEPOOL_GPU_TEST("after the first steps nothing is allocated any more") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  gpu_offloader off(dev, both_modules());
  CHECK(train(off, stream.get(), 2, 2) == 0);
  const auto before = off.counters();
  const auto free_before = dev.memory().free;
  CHECK(train(off, stream.get(), 2, 6) == 0);
  const auto after = off.counters();
  CHECK(after.device_allocations == before.device_allocations);
  CHECK(after.host_allocations == before.host_allocations);
  CHECK(after.device_reserved == before.device_reserved);
  CHECK(dev.memory().free == free_before);
}

TIDEPOOL_GPU_TEST("an arena takes its budget from the driver, and gives it back") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  constexpr std::size_t budget = std::size_t{256} << 20;
  auto opts = both_modules();
  opts.memory = memory_kind::arena;
  opts.device_budget = budget;
  { gpu_offloader warm(dev, opts); }  // what the context takes for itself
  const auto free_before = dev.memory().free;
  {
    gpu_offloader off(dev, opts);
    CHECK(train(off, stream.get(), 2, 3) == 0);
    const auto taken = free_before - dev.memory().free;
    CHECK(taken >= budget);
    CHECK(taken <= budget + budget / 50);
  }
  CHECK(dev.memory().free >= free_before);
}

TIDEPOOL_GPU_TEST("a pitched view leaves as a dense copy of its rows") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  gpu_offloader off(dev, both_modules());
  constexpr std::size_t rows = 64;
  constexpr std::size_t columns = 4096;
  writer_and_reader work;
  auto whole = off.allocate<float>(rows * columns, stream.get());
  work.write(stream.get(), whole.as<float>(), rows * columns, 3, 50);
  auto part =
      whole.view({.offset = 256, .width = 1024, .rows = rows, .pitch = columns * sizeof(float)});
  whole.reset(stream.get());
  auto chunk = off.begin();
  chunk.commit<"core_attn">(0, stream.ref(), part);
  CHECK_FALSE(part);
  chunk.restore<"core_attn">(0, stream.ref(), part);
  REQUIRE(part);
  CHECK(part.pitch() == 1024);
  std::vector<float> seen(rows * 256);
  cudaMemcpyAsync(seen.data(), part.data(), rows * 1024, cudaMemcpyDeviceToHost, stream.get());
  dev.synchronize(stream.ref());
  unsigned wrong = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < 256; ++i) {
      const auto from = row * columns + 64 + i;
      wrong += seen[row * 256 + i] != 3 + static_cast<float>(from % 61) ? 1U : 0U;
    }
  }
  CHECK(wrong == 0);
  part.reset(stream.ref());
  chunk.finish();
}

TIDEPOOL_GPU_TEST("two offloaders in two threads do not know of each other") {
  const int devices = cuda_device::count();
  std::vector<unsigned> wrong(2, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&wrong, t, devices] {
      const auto ordinal = t % devices;
      cudaSetDevice(ordinal);
      cuda_device dev(ordinal);
      const auto stream = dev.make_stream();
      gpu_offloader off(dev, both_modules());
      wrong[static_cast<std::size_t>(t)] = train(off, stream.get(), 2, 4);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong[0] == 0);
  CHECK(wrong[1] == 0);
}

TIDEPOOL_GPU_TEST("a trace has the spans of every copy, and no copy of one lane over another") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  gpu_offloader off(dev, both_modules());
  CHECK(train(off, stream.get(), 1, 2) == 0);
  off.start_trace("step", stream.ref());
  CHECK(train(off, stream.get(), 1, 1) == 0);
  const auto record = off.finish_trace();
  double end_of_lane[2]{};
  std::size_t copies = 0;
  for (const auto& span : record.spans) {
    if (span.kind != trace::span_kind::offload && span.kind != trace::span_kind::reload) continue;
    ++copies;
    CHECK(span.start >= end_of_lane[span.lane]);
    CHECK(span.end > span.start);
    end_of_lane[span.lane] = span.end;
  }
  CHECK(copies > 0);
  CHECK_FALSE(record.device_bytes.empty());
}

}  // namespace
