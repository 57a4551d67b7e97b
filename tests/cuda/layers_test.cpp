// On a GPU: memory that is zeroed or poisoned, and arrays of layers on the legacy default stream.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu.hpp"
#include "kernels.hpp"
#include "tidepool/tidepool.hpp"

namespace {

using tidepool::cuda_device;
using tidepool::options;
using tidepool::test::writer_and_reader;
using offloader = tidepool::offloader<cuda_device, tidepool::modules<"block">>;

constexpr std::size_t floats = std::size_t{1} << 20;

options all_leave() {
  options opts;
  opts.offload_modules = {"block"};
  opts.min_tensor_elements = 1;
  opts.margin = false;
  return opts;
}

// How many floats are not as `byte` fills them. Blocks the host.
std::size_t count_other(const float* from, int byte, cudaStream_t stream) {
  std::vector<float> seen(floats);
  cudaMemcpyAsync(seen.data(), from, floats * sizeof(float), cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  float wanted = 0;
  std::memset(&wanted, byte, sizeof wanted);
  return static_cast<std::size_t>(std::count_if(seen.begin(), seen.end(), [&](const float& each) {
    return std::memcmp(&each, &wanted, sizeof wanted) != 0;
  }));
}

TIDEPOOL_GPU_TEST("memory is zeroed and poisoned on its stream, and filled when it goes back") {
  cuda_device dev;
  writer_and_reader work;
  const auto owned = dev.make_stream();
  const auto stream = owned.get();
  auto opts = all_leave();
  opts.poison = true;
  opts.memory = tidepool::memory_kind::arena;
  opts.device_budget = floats * sizeof(float);
  offloader off(dev, opts);
  auto x = off.allocate<float>(floats, stream);
  const auto* const place = x.as<float>();
  CHECK(count_other(place, 0xFF, stream) == 0);
  work.write(stream, x.as<float>(), floats, 3, 200);
  x.reset(stream);
  CHECK(count_other(place, 0xFF, stream) == 0);
  x = off.allocate<float>(floats, stream, tidepool::fill::zero);
  CHECK(x.as<float>() == place);
  CHECK(count_other(place, 0, stream) == 0);
  work.write(stream, x.as<float>(), floats, 3);
  auto chunk = off.begin();
  chunk.commit<"block">(0, stream, x);
  dev.synchronize();
  CHECK(count_other(place, 0xFF, stream) == 0);  // it has left
  chunk.end_forward();
  chunk.restore<"block">(0, stream, x);
  work.check(stream, x.as<float>(), floats, 3);
  x.reset(stream);
  chunk.finish();
  CHECK(work.wrong() == 0);
}

TIDEPOOL_GPU_TEST("arrays of layers, on the legacy stream and others, poisoned and not") {
  cuda_device dev;
  const auto owned = dev.make_stream();
  for (const cudaStream_t stream : {cudaStream_t{}, cudaStreamPerThread, owned.get()}) {
    for (const bool poison : {false, true}) {
      for (const bool leaves : {true, false}) {
        writer_and_reader work;
        auto opts = all_leave();
        opts.poison = poison;
        if (!leaves) opts.offload_modules = {};
        offloader off(dev, opts);
        offloader::chunk pass;
        tidepool::layer_group<offloader> block(off, pass, "block");
        tidepool::saved_layers<float, offloader> x(block), zeroed(block);
        constexpr int layers = 8;
        for (int step = 0; step < 6; ++step) {
          const bool trains = step % 3 != 0;
          pass = off.begin({.forward_only = !trains, .release = !trains});
          for (int l = 0; l < layers; ++l) {
            auto* const to = x.fresh(l, floats, stream);
            auto* const half = zeroed.fresh(l, floats, stream, tidepool::fill::zero);
            work.write(stream, to, floats, static_cast<float>(10 * step + l), 20);
            work.write(stream, half, floats / 2, static_cast<float>(l));
            block.done(l, stream);
          }
          pass.end_forward();
          for (int l = layers - 1; trains && l >= 0; --l) {
            work.check(stream, x.back(l, stream), floats, static_cast<float>(10 * step + l), 20);
            const auto* const half = zeroed.back(l, stream);
            work.check(stream, half, floats / 2, static_cast<float>(l));
            if (l == 3) {
              std::vector<float> seen(floats / 2);
              cudaMemcpyAsync(seen.data(), half + floats / 2, seen.size() * sizeof(float),
                              cudaMemcpyDeviceToHost, stream);
              cudaStreamSynchronize(stream);
              CHECK(std::count(seen.begin(), seen.end(), 0.0F) ==
                    static_cast<std::ptrdiff_t>(seen.size()));
            }
            block.release(l, stream);
          }
          pass.finish();
          if (trains) off.end_step();
        }
        dev.synchronize();
        CHECK(work.wrong() == 0);
        const auto seen = off.counters();
        CHECK(seen.modules[0].groups_offloaded == (leaves ? 4U * layers : 0U));
      }
    }
  }
}

}  // namespace
