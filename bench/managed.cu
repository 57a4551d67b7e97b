/// Oversubscribed managed memory with prefetch against explicit offload: the same step three ways,
/// with saved tensors that do not fit into what is left of the device.
///
///     bench_managed              one row each; needs a GPU with 24 GiB free
///
/// - on the device: memory for all of them, the bound;
/// - managed: the driver evicts when forward needs room, and backward prefetches two layers ahead;
/// - managed, told: forward also sends each layer to the host when it has been written;
/// - tidepool: `commit` and `restore` under the same budget.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "../examples/tools/device_line.hpp"
#include "../examples/tools/voice.hpp"

namespace {

using offloader = tidepool::offloader<tidepool::cuda_device, tidepool::modules<"mlp">>;
constexpr int layers = 48, steps = 6, ahead = 2;
constexpr std::size_t floats = std::size_t{64} << 20, bytes = floats * sizeof(float);  // of a layer
constexpr std::size_t budget = 16 * bytes;                                             // of 48

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw tidepool::device_error(std::string(call) + ": " + cudaGetErrorString(code), code);
}

/// Computes for about as long as the link takes for the layer, then writes or reads it.
__device__ float work(float value) {
  for (int i = 0; i < 3000; ++i) value = value * 1.000001F + 1e-7F;
  return value;
}
__global__ void forward(float* saved, float seed) {
  const std::size_t at = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  saved[at] = work(seed + static_cast<float>(at % 1024) * 1e-3F);
}
__global__ void backward(double* sum, const float* saved) {
  const std::size_t at = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // Not a sum in a fixed order: only whether all numbers are right is asked.
  const float value = work(saved[at]);
  if (at % 65536 == 0) atomicAdd(sum, static_cast<double>(static_cast<int>(value * 64)));
}

struct row {
  double ms = 0;
  double sum = 0;
};

/// The middle of the steps after two that warm up; `step` waits for nothing.
template <class Step>
row measure(cudaStream_t stream, double* sum, Step step) {
  std::vector<double> times;
  row result;
  for (int i = 0; i < steps; ++i) {
    check(cudaMemsetAsync(sum, 0, sizeof *sum, stream), "cudaMemsetAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const auto start = std::chrono::steady_clock::now();
    step();
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (i >= 2) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  result.ms = times[times.size() / 2];
  check(cudaMemcpy(&result.sum, sum, sizeof *sum, cudaMemcpyDefault), "cudaMemcpy");
  return result;
}

void launch_forward(float* saved, int layer, cudaStream_t stream) {
  forward<<<floats / 256, 256, 0, stream>>>(saved, 1 + static_cast<float>(layer));
}
void launch_backward(double* sum, const float* saved, cudaStream_t stream) {
  backward<<<floats / 256, 256, 0, stream>>>(sum, saved);
}

void move(void* what, bool to_device, cudaStream_t stream) {
  int gpu = 0;
  check(cudaGetDevice(&gpu), "cudaGetDevice");
#if CUDART_VERSION >= 13000
  const cudaMemLocation place{to_device ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost,
                              to_device ? gpu : 0};
  check(cudaMemPrefetchAsync(what, bytes, place, 0, stream), "cudaMemPrefetchAsync");
#else
  check(cudaMemPrefetchAsync(what, bytes, to_device ? gpu : cudaCpuDeviceId, stream),
        "cudaMemPrefetchAsync");
#endif
}

/// `told`: forward sends layers away.
row managed(tidepool::cuda_device& dev, double* sum, bool told) {
  const auto compute = dev.make_stream(), copies = dev.make_stream(), out = dev.make_stream();
  std::vector<float*> saved(layers);
  for (float*& each : saved) check(cudaMallocManaged(&each, bytes), "cudaMallocManaged");
  // All but the budget is taken, so that the layers oversubscribe what is left.
  void* ballast = nullptr;
  const std::size_t free = dev.memory().free;
  if (free > budget) check(cudaMalloc(&ballast, free - budget), "cudaMalloc");
  auto done = dev.make_event();
  const row result = measure(compute.get(), sum, [&] {
    for (int l = 0; l < layers; ++l) {
      float* const layer = saved[static_cast<std::size_t>(l)];
      launch_forward(layer, l, compute.get());
      if (!told || l + static_cast<int>(budget / bytes) / 2 >= layers) continue;
      dev.record(done, compute.ref());
      dev.wait(out.ref(), done);
      move(layer, false, out.get());
    }
    for (int l = layers - 1; l >= 0; --l) {
      if (l >= ahead) {
        dev.record(done, compute.ref());
        dev.wait(copies.ref(), done);
        move(saved[static_cast<std::size_t>(l - ahead)], true, copies.get());
        dev.record(done, copies.ref());
      }
      launch_backward(sum, saved[static_cast<std::size_t>(l)], compute.get());
    }
  });
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaFree(ballast), "cudaFree");
  for (float* each : saved) check(cudaFree(each), "cudaFree");
  return result;
}

row explicit_offload(tidepool::cuda_device& dev, double* sum, bool offloads) {
  const auto compute = dev.make_stream();
  tidepool::options opts;
  if (offloads) {
    opts.offload_modules = {"mlp"};
    opts.memory = tidepool::memory_kind::arena;
    opts.device_budget = budget;
  }
  offloader off(dev, opts);
  std::vector<offloader::buffer> saved(layers);
  const auto stream = compute.ref();
  return measure(compute.get(), sum, [&] {
    auto chunk = off.begin();
    for (int l = 0; l < layers; ++l) {
      auto& layer = saved[static_cast<std::size_t>(l)];
      layer = off.allocate<float>(floats, stream);
      launch_forward(layer.as<float>(), l, compute.get());
      chunk.commit<"mlp">(l, stream, layer);
    }
    chunk.end_forward();
    for (int l = layers - 1; l >= 0; --l) {
      auto& layer = saved[static_cast<std::size_t>(l)];
      chunk.restore<"mlp">(l, stream, layer);
      launch_backward(sum, layer.as<float>(), compute.get());
      layer.reset(stream);
    }
    chunk.finish();
    off.end_step();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"bench_managed",
                        "Oversubscribed managed memory with prefetch against explicit offload."};
  return tools::run(me.name, [&] {
    tools::no_options(me, argc, argv);
    tools::print_device<tidepool::cuda_device>();
    tidepool::cuda_device dev;
    auto* const sum = static_cast<double*>(dev.allocate(sizeof(double)));
    std::printf("%d layers of %zu MiB, %zu MiB of device for them, medians of %d steps\n", layers,
                bytes >> 20, budget >> 20, steps - 2);
    const row base = explicit_offload(dev, sum, false);
    bool right = base.sum != 0;
    const auto line = [&](const char* name, const row& each) {
      const bool same = each.sum == base.sum;
      right = right && same;
      std::printf("%-24s %9.1f ms  x%.2f  %s\n", name, each.ms, each.ms / base.ms,
                  same ? "" : "WRONG NUMBERS");
    };
    line("on the device", base);
    line("managed, prefetch", managed(dev, sum, false));
    line("managed, prefetch, told", managed(dev, sum, true));
    line("tidepool", explicit_offload(dev, sum, true));
    dev.deallocate(sum);
    return right ? 0 : 1;
  });
}
