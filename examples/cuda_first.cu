/// The first program to read with CUDA: layers y = x + gelu(x W), forward and backward by hand,
/// trained without offload and with it. The numbered lines are what offloading takes.
#include <cstdio>
#include <cstring>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "tools/device_line.hpp"
#include "tools/voice.hpp"

using offloader = tidepool::offloader<tidepool::cuda_device, tidepool::modules<"mlp">>;
constexpr int layers = 12, rows = 4096, width = 256, steps = 3;
constexpr std::size_t tokens = std::size_t{rows} * width, weights = std::size_t{width} * width;

__global__ void fill(float* to, float scale) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = scale * (static_cast<float>(i * 2654435761U >> 8) * 0x1p-23F - 1);
}
__global__ void forward(float* y, float* z, const float* x, const float* w) {  // a block a row
  const unsigned at = blockIdx.x * width + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < width; ++k) sum += x[blockIdx.x * width + k] * w[k * width + threadIdx.x];
  z[at] = sum;
  y[at] = x[at] + sum * normcdff(sum);
}
__global__ void backward(float* grad, float* z, const float* w) {  // dy to dx, and z to dz
  __shared__ float dz[width];
  const unsigned at = blockIdx.x * width + threadIdx.x;
  const float slope = normcdff(z[at]) + z[at] * 0.39894228F * expf(-z[at] * z[at] / 2);
  z[at] = dz[threadIdx.x] = grad[at] * slope;
  __syncthreads();
  for (int k = 0; k < width; ++k) grad[at] += dz[k] * w[threadIdx.x * width + k];
}
__global__ void update(float* w, float* dw, const float* x, const float* dz) {
  const unsigned at = blockIdx.x * width + threadIdx.x;
  float sum = 0;
  for (int i = 0; i < rows; ++i) sum += x[i * width + blockIdx.x] * dz[i * width + threadIdx.x];
  dw[at] = sum;
  w[at] -= 1e-6F * sum;
}

std::vector<float> train(bool offload) {  // the last step's gradients of all weights
  tidepool::cuda_device dev;
  const auto compute = dev.make_stream();
  const cudaStream_t stream = compute.get();  // any stream will do
  auto* w = static_cast<float*>(dev.allocate((2 * layers * weights + tokens) * sizeof(float)));
  float *dw = w + layers * weights, *grad = dw + layers * weights;
  fill<<<layers * width, width, 0, stream>>>(w, 0.05F);

  tidepool::options opts;
  if (offload) opts.offload_modules = {"mlp"};
  opts.max_inflight = 2;                      // forward waits rather than take memory for a third
  opts.device_step = tokens * sizeof(float);  // memory is taken from the device tensor by tensor
  offloader off(dev, opts);                   // (1)
  std::vector<offloader::buffer> x(layers + 1), z(layers);  // (2) was: two vectors of float*
  for (int step = 0; step < steps; ++step) {
    auto chunk = off.begin();                    // (3)
    x[0] = off.allocate<float>(tokens, stream);  // (4) was: cudaMallocAsync, as in the next two
    fill<<<rows, width, 0, stream>>>(x[0].as<float>(), 1);
    for (int l = 0; l < layers; ++l) {
      z[l] = off.allocate<float>(tokens, stream);
      x[l + 1] = off.allocate<float>(tokens, stream);
      forward<<<rows, width, 0, stream>>>(x[l + 1].as<float>(), z[l].as<float>(), x[l].as<float>(),
                                          w + l * weights);
      chunk.commit<"mlp">(l, stream, x[l], z[l]);  // (5) they leave
    }
    chunk.end_forward();  // (6)
    cudaMemcpyAsync(grad, x[layers].data(), tokens * sizeof *grad, cudaMemcpyDefault, stream);
    x[layers].reset(stream);  // (7) was: cudaFreeAsync, as below
    for (int l = layers - 1; l >= 0; --l) {
      chunk.restore<"mlp">(l, stream, x[l], z[l]);  // (8) they are back
      backward<<<rows, width, 0, stream>>>(grad, z[l].as<float>(), w + l * weights);
      update<<<width, width, 0, stream>>>(w + l * weights, dw + l * weights, x[l].as<float>(),
                                          z[l].as<float>());
      x[l].reset(stream);
      z[l].reset(stream);
    }
    chunk.finish();  // (9)
    off.end_step();  // (10)
  }
  std::vector<float> result(layers * weights);
  dev.synchronize(stream);
  cudaMemcpy(result.data(), dw, result.size() * sizeof(float), cudaMemcpyDefault);
  dev.deallocate(w);
  const auto seen = off.counters();
  std::printf("%-8s %4zu MiB of the device at most, %4zu MiB offloaded\n",
              offload ? "offload" : "eager", seen.device_peak >> 20,
              static_cast<std::size_t>(seen.modules[0].bytes_offloaded) >> 20);
  return result;
}

int main(int argc, char** argv) {
  const tools::about me{"cuda_first",
                        "Trains a small model on a GPU, without offload and with it."};
  return tools::run(me.name, [&] {
    tools::no_options(me, argc, argv);
    tools::print_device<tidepool::cuda_device>();
    const auto eager = train(false), offloaded = train(true);
    const bool equal = !std::memcmp(eager.data(), offloaded.data(), eager.size() * sizeof(float));
    std::printf("gradients %s\n", equal ? "equal to the bit" : "DIFFER");
    return equal && eager[0] != 0 ? 0 : 1;  // zeros: no kernel ran
  });
}
