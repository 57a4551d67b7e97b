// Decoding on a GPU with 8 GiB of key-value cache: all of it on the device, then with all but the
// groups in use on the host. Sequences take turns, as a server has them: a group decodes some
// tokens while the next group's cache comes and the last one's leaves.
//
// A token reads the cache of its sequence, so a turn of few tokens cannot hide the copies. The rows
// say from which length on they hide.
#include <cuda_fp16.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "tools/device_line.hpp"
#include "tools/voice.hpp"

namespace {

using device = tidepool::cuda_device;
using offloader = tidepool::offloader<device>;

constexpr int width = 128;     // of a head
constexpr int heads = 32;      // of a sequence
constexpr int sequences = 16;  // of a group
constexpr int context = 2048;  // tokens of a sequence, at most
constexpr int groups = 16;
constexpr int warps = 8;  // of a block
constexpr int lines = sequences * heads;
constexpr int turns = 2;  // of each group, after one that warms up
constexpr std::size_t line = std::size_t{2} * context * width;  // keys, then values
constexpr std::size_t group_bytes = lines * line * sizeof(__half);

__global__ void fill(__half* cache, unsigned seed) {
  const std::size_t at = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const unsigned hash = (static_cast<unsigned>(at) ^ seed) * 2654435761U;
  cache[at] = __float2half(static_cast<float>(hash >> 8) * 0x1p-24F - 0.5F);
}

/// One token of one head a block: its key and value join the cache, and it attends to all so far.
/// Each warp takes every eighth token, each lane four numbers of it. The output is the next input.
__global__ void attend(__half* cache, float* x, int token) {
  __shared__ float top_of[warps], weight_of[warps], sum_of[warps][width];
  __half* const keys = cache + blockIdx.x * line;
  __half* const values = keys + std::size_t{context} * width;
  float* const mine = x + blockIdx.x * width;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x < width) {
    keys[token * width + threadIdx.x] = __float2half(mine[width - 1 - threadIdx.x]);
    values[token * width + threadIdx.x] = __float2half(0.5F * mine[threadIdx.x]);
  }
  __syncthreads();
  float q[4], sum[4] = {}, top = -1e30F, weight = 0;
  for (int i = 0; i < 4; ++i) q[i] = mine[4 * lane + i] * 0.0883883F;
  for (int t = warp; t <= token; t += warps) {
    __half k[4], v[4];
    *reinterpret_cast<uint2*>(k) = *reinterpret_cast<const uint2*>(keys + t * width + 4 * lane);
    *reinterpret_cast<uint2*>(v) = *reinterpret_cast<const uint2*>(values + t * width + 4 * lane);
    float score = 0;
    for (int i = 0; i < 4; ++i) score += q[i] * __half2float(k[i]);
    for (int d = 16; d > 0; d /= 2) score += __shfl_xor_sync(~0U, score, d);
    const float now = fmaxf(top, score), old = __expf(top - now), fresh = __expf(score - now);
    weight = weight * old + fresh;
    for (int i = 0; i < 4; ++i) sum[i] = sum[i] * old + fresh * __half2float(v[i]);
    top = now;
  }
  if (lane == 0) top_of[warp] = top, weight_of[warp] = weight;
  for (int i = 0; i < 4; ++i) sum_of[warp][4 * lane + i] = sum[i];
  __syncthreads();
  if (threadIdx.x >= width) return;
  float most = -1e30F, all = 0, result = 0;
  for (int w = 0; w < warps; ++w) most = fmaxf(most, top_of[w]);
  for (int w = 0; w < warps; ++w) {
    const float part = __expf(top_of[w] - most);
    all += part * weight_of[w];
    result += part * sum_of[w][threadIdx.x];
  }
  mine[threadIdx.x] = __sinf(result / all + static_cast<float>(token + threadIdx.x));
}

struct outcome {
  std::vector<float> x;  // the last token of each sequence
  double tokens_a_second = 0;
  std::size_t bytes = 0;  // of cache on the device
};

/// `length` tokens a turn. The first turn starts so that the last one fills the context.
outcome decode(int length, bool on_host) {
  device dev;
  const auto compute = dev.make_stream();
  const auto stream = compute.ref();
  tidepool::options options;
  options.memory = tidepool::memory_kind::arena;
  options.device_budget = 3 * group_bytes;  // the group that decodes, the next, the last
  options.host_step = group_bytes;
  offloader off(dev, options);
  std::vector<tidepool::host_state<device>> away;
  std::vector<__half*> here(groups);
  auto* const x = static_cast<float*>(dev.allocate(groups * lines * width * sizeof(float)));
  cudaMemset(x, 0, groups * lines * width * sizeof(float));
  const auto fill_group = [&](__half* cache, int g) {
    fill<<<lines * line / 256, 256, 0, compute.get()>>>(cache, static_cast<unsigned>(g));
  };
  for (int g = 0; g < groups; ++g) {
    if (on_host) {
      away.push_back(off.state_on_host(group_bytes, "cache of group " + std::to_string(g)));
      auto fresh = away.back().create(stream);
      fill_group(fresh.template as<__half>(), g);
      away.back().write_back(fresh, stream);
    } else {
      here[static_cast<std::size_t>(g)] = static_cast<__half*>(dev.allocate(group_bytes));
      fill_group(here[static_cast<std::size_t>(g)], g);
    }
  }
  const auto turn = [&](int number, int g) {
    const auto at = static_cast<std::size_t>(g);
    tidepool::buffer<device> visiting;
    if (on_host) {
      visiting = away[at].fetch(stream);
      away[(at + 1) % groups].prefetch();
    }
    __half* const cache = on_host ? visiting.template as<__half>() : here[at];
    const int first = context - (turns + 1 - number) * length;
    for (int t = first; t < first + length; ++t) {
      attend<<<lines, 32 * warps, 0, compute.get()>>>(cache, x + g * lines * width, t);
    }
    if (on_host) away[at].write_back(visiting, stream);
  };
  for (int g = 0; g < groups; ++g) turn(0, g);
  dev.synchronize();
  const auto start = std::chrono::steady_clock::now();
  for (int number = 1; number <= turns; ++number) {
    for (int g = 0; g < groups; ++g) turn(number, g);
  }
  dev.synchronize();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  outcome result;
  result.x.resize(groups * lines * width);
  cudaMemcpy(result.x.data(), x, result.x.size() * sizeof(float), cudaMemcpyDefault);
  result.tokens_a_second = turns * groups * sequences * length / took.count();
  result.bytes = on_host ? off.counters().device_peak : groups * group_bytes;
  dev.deallocate(x);
  for (__half* each : here) {
    if (each != nullptr) dev.deallocate(each);
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"decode_cuda",
                        "Decodes with 8 GiB of key-value cache, on the device and on the host."};
  return tools::run(me.name, [&] {
    tools::no_options(me, argc, argv);
    tools::print_device<device>();
    std::printf("%zu MiB of cache: %d groups of %d sequences of up to %d tokens, %d heads of %d\n",
                groups * group_bytes >> 20, groups, sequences, context, heads, width);
    std::printf("%14s %22s %22s %8s\n", "tokens a turn", "on the device, tok/s",
                "on the host, tok/s", "");
    bool equal = true;
    for (const int length : {1, 8, 32, 128, 256}) {
      const outcome all = decode(length, false), few = decode(length, true);
      const bool same = all.x == few.x && few.x[0] != 0;
      equal = equal && same;
      std::printf("%14d %12.0f (%5.1f GiB) %11.0f (%5.1f GiB) %+6.1f %%  %s\n", length,
                  all.tokens_a_second, static_cast<double>(all.bytes) * 0x1p-30,
                  few.tokens_a_second, static_cast<double>(few.bytes) * 0x1p-30,
                  100 * (few.tokens_a_second / all.tokens_a_second - 1),
                  same ? "bits equal" : "BITS DIFFER");
    }
    return equal ? 0 : 1;
  });
}
