/// The engine's own cost, on the device that does nothing: time and heap allocations of a commit
/// and its restore, by tensors per group and by groups per step; `alive/…`, what a call costs
/// beside 10 others and beside 10,000; and `steps/…`, what a step costs behind 10 others and behind
/// 10,000 (tests/scaling.sh holds each two together).
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <random>
#include <string_view>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "google.hpp"

namespace {

std::size_t heap_allocations = 0;

}  // namespace

// NOLINTBEGIN(misc-definitions-in-headers): counting is the point of replacing these
void* operator new(std::size_t bytes) {
  ++heap_allocations;
  if (void* pointer = std::malloc(bytes)) return pointer;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++heap_allocations;
  const auto to = static_cast<std::size_t>(alignment);
  if (void* pointer = std::aligned_alloc(to, (bytes + to - 1) / to * to)) return pointer;
  throw std::bad_alloc();
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept { std::free(pointer); }
// NOLINTEND

namespace {

namespace tp = tidepool;
using offloader = tp::offloader<tp::null_device, tp::modules<"expert_fc1">>;

template <std::size_t Tensors>
struct step {
  offloader& off;
  tp::null_device::stream_ref stream;
  std::vector<std::array<offloader::buffer, Tensors>> groups;

  step(offloader& owner, std::size_t count) : off(owner), stream(7), groups(count) {
    for (auto& group : groups) {
      for (auto& each : group) each = off.allocate(256, stream);
    }
  }

  void run() {
    auto chunk = off.begin();
    const auto count = static_cast<int>(groups.size());
    for (int i = 0; i < count; ++i) {
      std::apply([&](auto&... each) { chunk.template commit<"expert_fc1">(i, stream, each...); },
                 groups[static_cast<std::size_t>(i)]);
    }
    chunk.end_forward();
    for (int i = count; i-- > 0;) {
      std::apply([&](auto&... each) { chunk.template restore<"expert_fc1">(i, stream, each...); },
                 groups[static_cast<std::size_t>(i)]);
    }
    chunk.finish();
    off.end_step();
  }
};

tp::options everything_leaves() {
  tp::options opts;
  opts.offload_modules = {"expert_fc1"};
  opts.min_tensor_elements = 1;
  opts.margin = false;
  return opts;
}

/// Steps of a program over `state.range(0)` groups.
template <class Program>
void measure(benchmark::State& state, const tp::options& opts) {
  tp::null_device dev;
  offloader off(dev, opts);
  off.on_report([](std::string_view) {});
  const auto count = static_cast<std::size_t>(state.range(0));
  Program work(off, count);
  work.run();  // the first step makes everything that later steps use
  work.run();

  const auto before = heap_allocations;
  for (auto _ : state) work.run();
  const auto groups = static_cast<double>(state.iterations()) * static_cast<double>(count);
  state.counters["ns_per_group"] =
      benchmark::Counter(groups / 1e9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["heap_per_group"] =
      benchmark::Counter(static_cast<double>(heap_allocations - before) / groups);
}

template <std::size_t Tensors>
void commit_and_restore(benchmark::State& state) {
  measure<step<Tensors>>(state, everything_leaves());
}

BENCHMARK(commit_and_restore<1>)->RangeMultiplier(10)->Range(10, 100'000);
BENCHMARK(commit_and_restore<4>)->Arg(1'000);
BENCHMARK(commit_and_restore<16>)->Arg(1'000);
BENCHMARK(commit_and_restore<64>)->Arg(1'000);

struct program {
  offloader& off;
  tp::null_device::stream_ref stream;
  std::vector<offloader::buffer> saved;

  program(offloader& owner, std::size_t count) : off(owner), stream(7), saved(count) {}

  void allocate() {
    for (auto& each : saved) each = off.allocate(256, stream);
  }
  void commit(offloader::chunk& to, std::size_t layer, auto& handle) {
    to.commit<"expert_fc1">(static_cast<int>(layer), stream, handle);
  }
  void restore(offloader::chunk& from, std::size_t layer, auto& handle) {
    from.restore<"expert_fc1">(static_cast<int>(layer), stream, handle);
  }
};

/// All forward passes come before the first backward pass, and what they saved stays.
struct chunks : program {
  std::vector<offloader::chunk> open;

  chunks(offloader& owner, std::size_t count) : program(owner, count), open(count) { allocate(); }

  void run() {
    for (std::size_t i = 0; i < saved.size(); ++i) {
      open[i] = off.begin();
      commit(open[i], 0, saved[i]);
      open[i].end_forward();
    }
    for (std::size_t i = 0; i < saved.size(); ++i) {
      restore(open[i], 0, saved[i]);
      open[i].finish();
    }
    off.end_step();
  }
};

/// What was committed first comes back first.
struct commit_order : program {
  commit_order(offloader& owner, std::size_t count) : program(owner, count) { allocate(); }

  void run() {
    auto chunk = off.begin();
    for (std::size_t i = 0; i < saved.size(); ++i) commit(chunk, i, saved[i]);
    chunk.end_forward();
    for (std::size_t i = 0; i < saved.size(); ++i) restore(chunk, i, saved[i]);
    chunk.finish();
    off.end_step();
  }
};

/// Two groups save each tensor: after the one's restore it is on the device for the other alone.
struct idle_storages : program {
  std::vector<offloader::buffer> again;

  idle_storages(offloader& owner, std::size_t count) : program(owner, count), again(count) {}

  void run() {
    const auto count = saved.size();
    allocate();
    auto chunk = off.begin();
    for (std::size_t i = 0; i < count; ++i) commit(chunk, i, again[i] = saved[i].share());
    for (std::size_t i = 0; i < count; ++i) commit(chunk, count + i, saved[i]);
    chunk.end_forward();
    for (auto i = count; i-- > 0;) restore(chunk, count + i, saved[i]), saved[i].reset(stream);
    for (auto i = count; i-- > 0;) restore(chunk, i, again[i]), again[i].reset(stream);
    chunk.finish();
    off.end_step();
  }
};

/// All in one group.
struct one_group : program {
  std::vector<tp::handle<tp::null_device>*> list;

  one_group(offloader& owner, std::size_t count) : program(owner, count) {
    allocate();
    for (auto& each : saved) list.push_back(&each);
  }

  void run() {
    using handles = offloader::chunk::handle_list;
    auto chunk = off.begin();
    chunk.commit<"expert_fc1">(0, stream, handles(list));
    chunk.end_forward();
    chunk.restore<"expert_fc1">(0, stream, handles(list));
    chunk.finish();
    off.end_step();
  }
};

/// Each group saves another part of one buffer.
struct views : program {
  offloader::buffer whole;
  std::vector<offloader::view> parts;

  views(offloader& owner, std::size_t count)
      : program(owner, 0), whole(off.allocate(256 * count, stream)), parts(count) {}

  void run() {
    auto chunk = off.begin();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      commit(chunk, i, parts[i] = whole.view({.offset = 256 * i, .width = 128}));
    }
    chunk.end_forward();
    for (auto i = parts.size(); i-- > 0;) restore(chunk, i, parts[i]);
    for (auto& each : parts) each.reset(stream);
    chunk.finish();
    off.end_step();
  }
};

template <class Program>
void alive(benchmark::State& state) {
  measure<Program>(state, everything_leaves());
}
void alive_chunks(benchmark::State& state) {
  auto opts = everything_leaves();
  opts.offload_layers = {1};
  measure<chunks>(state, opts);
}
void alive_reload_ahead(benchmark::State& state) {
  auto opts = everything_leaves();
  opts.reload_ahead = 1'000'000;
  measure<step<1>>(state, opts);
}

void few_and_many(benchmark::internal::Benchmark* row) { row->Arg(10)->Arg(10'000); }

BENCHMARK(alive_chunks)->Name("alive/chunks")->Apply(few_and_many);
BENCHMARK(alive<commit_order>)->Name("alive/restores_in_commit_order")->Apply(few_and_many);
BENCHMARK(alive_reload_ahead)->Name("alive/reload_ahead_unlimited")->Apply(few_and_many);
BENCHMARK(alive<idle_storages>)->Name("alive/idle_storages")->Apply(few_and_many);
BENCHMARK(alive<one_group>)->Name("alive/tensors_of_one_group")->Apply(few_and_many);
BENCHMARK(alive<views>)->Name("alive/views")->Apply(few_and_many);

/// Steps of about 16 tensors, each of another size, half of them small. `beside` is a tensor that
/// stays, so that the memory is never unused.
void mixed_sizes(benchmark::State& state, tp::memory_kind memory, bool beside) {
  constexpr std::size_t largest = 1'000'000;
  auto opts = everything_leaves();
  opts.memory = memory;
  if (memory == tp::memory_kind::arena) opts.device_budget = 48 * largest;
  tp::null_device dev;
  offloader off(dev, opts);
  off.on_report([](std::string_view) {});
  const tp::null_device::stream_ref stream(7);
  offloader::buffer stays;
  if (beside) stays = off.allocate(4096, stream);
  std::array<offloader::buffer, 24> saved;
  std::mt19937_64 random(7);
  const auto step = [&] {
    auto chunk = off.begin();
    const auto count = static_cast<int>(8 + random() % 16);
    for (int i = 0; i < count; ++i) {
      auto& each = saved[static_cast<std::size_t>(i)];
      each = off.allocate(1 + random() % (random() % 2 == 0 ? largest : largest / 200), stream);
      chunk.commit<"expert_fc1">(i, stream, each);
    }
    chunk.end_forward();
    for (int i = count; i-- > 0;) {
      auto& each = saved[static_cast<std::size_t>(i)];
      chunk.restore<"expert_fc1">(i, stream, each);
      each.reset(stream);
    }
    chunk.finish();
    off.end_step();
  };
  for (auto before = state.range(0); before > 0; --before) step();
  for (auto _ : state) step();
}
void few_and_many_steps(benchmark::internal::Benchmark* row) {
  few_and_many(row);
  row->Iterations(300);
}

BENCHMARK_CAPTURE(mixed_sizes, arena, tp::memory_kind::arena, false)
    ->Name("steps/arena")
    ->Apply(few_and_many_steps);
BENCHMARK_CAPTURE(mixed_sizes, beside, tp::memory_kind::arena, true)
    ->Name("steps/arena_in_use")
    ->Apply(few_and_many_steps);
BENCHMARK_CAPTURE(mixed_sizes, pool, tp::memory_kind::pool, false)
    ->Name("steps/pool")
    ->Apply(few_and_many_steps);

}  // namespace

int main(int argc, char** argv) {
  return bench::run_google(
      {"bench_engine", "Nanoseconds of the host for the calls of an offloader."}, argc, argv, "",
      [] {});
}
