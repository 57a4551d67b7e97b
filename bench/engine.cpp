/// The engine's own cost, on the device that does nothing: time and heap allocations of a commit
/// and its restore, by tensors per group and by groups per step.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <tidepool/tidepool.hpp>
#include <vector>

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

template <std::size_t Tensors>
void commit_and_restore(benchmark::State& state) {
  tp::null_device dev;
  tp::options opts;
  opts.offload_modules = {"expert_fc1"};
  opts.min_tensor_elements = 1;
  opts.margin = false;
  offloader off(dev, opts);
  const auto count = static_cast<std::size_t>(state.range(0));
  step<Tensors> work(off, count);
  work.run();  // the first step makes everything that later steps use
  work.run();

  const auto before = heap_allocations;
  for (auto _ : state) work.run();
  const auto pairs = static_cast<double>(state.iterations()) * static_cast<double>(count);
  state.counters["ns_per_group"] =
      benchmark::Counter(pairs / 1e9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["heap_per_group"] =
      benchmark::Counter(static_cast<double>(heap_allocations - before) / pairs);
}

BENCHMARK(commit_and_restore<1>)->RangeMultiplier(10)->Range(10, 100'000);
BENCHMARK(commit_and_restore<4>)->Arg(1'000);
BENCHMARK(commit_and_restore<16>)->Arg(1'000);
BENCHMARK(commit_and_restore<64>)->Arg(1'000);

}  // namespace

BENCHMARK_MAIN();
