// A context that is lost under a live offloader, with copies under way, before its destructors run:
//   lost_context trap    by a kernel that fails: every call throws device_error, for good
//   lost_context reset   by cudaDeviceReset; then a new offloader works
//   lost_context exit    by the end of the process, as with an offloader of static lifetime
// Exits with 77 where there is no GPU, unless TIDEPOOL_REQUIRE_GPU is set.
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "kernels.hpp"
#include "tidepool/tidepool.hpp"

namespace {

using namespace tidepool;
using gpu_offloader = offloader<cuda_device, modules<"core_attn">>;

constexpr std::size_t floats = std::size_t{4} << 20;
constexpr int layers = 4;

options options_of(memory_kind memory) {
  options opts;
  opts.offload_modules = {"core_attn"};
  opts.min_tensor_elements = 1;
  opts.margin = false;
  opts.memory = memory;
  if (memory == memory_kind::arena) opts.device_budget = (layers + 2) * floats * sizeof(float);
  return opts;
}

void forward(gpu_offloader& off, gpu_offloader::chunk& chunk,
             std::vector<gpu_offloader::buffer>& saved, test::writer_and_reader& work,
             cuda_device::stream_ref on) {
  chunk = off.begin();
  for (int l = 0; l < layers; ++l) {
    auto x = off.allocate<float>(floats, on);
    work.write(on.get(), x.as<float>(), floats, static_cast<float>(l), 100);
    chunk.commit<"core_attn">(l, on, x);
    saved.push_back(std::move(x));
  }
}

void backward(gpu_offloader::chunk& chunk, std::vector<gpu_offloader::buffer>& saved,
              test::writer_and_reader& work, cuda_device::stream_ref on) {
  for (int l = layers; l-- > 0;) {
    auto& x = saved[static_cast<std::size_t>(l)];
    chunk.restore<"core_attn">(l, on, x);
    work.check(on.get(), x.as<float>(), floats, static_cast<float>(l));
    x.reset(on);
  }
  chunk.finish();
}

// All that a trainer holds in the middle of a step.
struct trainer {
  explicit trainer(memory_kind memory) : off(dev, options_of(memory)) {
    forward(off, chunk, saved, work, stream.ref());
    full = off.allocate<float>(floats, stream.ref());
    state = off.state_on_host(4096, "state");
    auto fresh = state.create(stream.ref());
    state.write_back(fresh, stream.ref());
    visiting = state.fetch(stream.ref());
  }

  cuda_device dev;
  cuda_device::stream stream = dev.make_stream();
  test::writer_and_reader work;
  gpu_offloader off;
  gpu_offloader::chunk chunk;
  std::vector<gpu_offloader::buffer> saved;
  gpu_offloader::buffer full;  // never committed
  host_state<cuda_device> state;
  gpu_offloader::buffer visiting;
};

// True when a step on a broken context says so.
bool trapped() {
  trainer live(memory_kind::pool);
  test::trap(live.stream.get());
  static_cast<void>(cudaStreamSynchronize(live.stream.get()));
  try {
    backward(live.chunk, live.saved, live.work, live.stream.ref());
    live.dev.synchronize();
  } catch (const device_error& problem) {
    std::printf("reported: %s\n", problem.what());
    return true;
  }
  return false;
}

bool reset(memory_kind memory) {
  const trainer live(memory);
  return cudaDeviceReset() == cudaSuccess;
}

bool works(memory_kind memory) {
  cuda_device dev;
  const auto stream = dev.make_stream();
  test::writer_and_reader work;
  gpu_offloader off(dev, options_of(memory));
  for (int step = 0; step < 2; ++step) {
    gpu_offloader::chunk chunk;
    std::vector<gpu_offloader::buffer> saved;
    forward(off, chunk, saved, work, stream.ref());
    backward(chunk, saved, work, stream.ref());
    off.end_step();
  }
  dev.synchronize();
  return work.wrong() == 0;
}

int failed(const char* what) {
  std::printf("FAILED: %s\n", what);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (cuda_device::count() == 0) {
    std::puts("skipped: no GPU");
    return std::getenv("TIDEPOOL_REQUIRE_GPU") == nullptr ? 77 : 1;
  }
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "trap") {
    if (!trapped()) return failed("a broken context was not reported");
    std::puts("every destructor ran on a broken context");
    return 0;
  }
  if (mode == "exit") {
    static const trainer live(memory_kind::arena);
    std::puts("the process ends with an offloader alive");
    return 0;
  }
  if (mode != "reset") return failed("usage: lost_context trap|reset|exit");
  for (const auto memory : {memory_kind::pool, memory_kind::arena}) {
    if (!reset(memory)) return failed("cudaDeviceReset");
    static_cast<void>(cudaGetLastError());
    if (!works(memory)) return failed("a new offloader on the same device");
  }
  std::puts("every destructor ran after the context was torn down, and new offloaders worked");
  return 0;
}
