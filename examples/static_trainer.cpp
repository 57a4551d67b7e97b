/// A static trainer: every layer's activations have one shape, known before the first step.
///
/// Without Tidepool such a trainer keeps one array per tensor with room for all layers and indexes
/// it by layer. With it, each array becomes a vector of handles over a ring of slots. The five
/// changed lines are numbered.
#include <cstdio>
#include <tidepool/tidepool.hpp>
#include <vector>

namespace tp = tidepool;

namespace {

constexpr int layers = 8;
constexpr int steps = 4;
constexpr std::size_t width = 1 << 16;  // floats per layer

// Or tp::cuda_device, with kernels instead of `launch` and device memory instead of vectors; the
// numbered lines stay as they are.
using device = tp::virtual_device;
using offloader = tp::offloader<device, tp::modules<"fc1">>;

// Stand for kernels: x = in / 2 + layer, which is saved, and in backward grad = grad / 2 + x.
void forward(device& dev, device::stream_ref stream, float* x, const float* in, int layer) {
  dev.launch(stream, 40'000, [=] {
    for (std::size_t i = 0; i < width; ++i) x[i] = 0.5F * in[i] + static_cast<float>(layer);
  });
}
void backward(device& dev, device::stream_ref stream, float* grad, const float* x) {
  dev.launch(stream, 80'000, [=] {
    for (std::size_t i = 0; i < width; ++i) grad[i] = 0.5F * grad[i] + x[i];
  });
}

float train(bool offload) {
  device dev;
  auto owned = dev.make_stream();
  const auto stream = owned.ref();

  tp::options opts;
  if (offload) opts.offload_modules = {"fc1"};
  opts.min_tensor_elements = 1;
  opts.memory = tp::memory_kind::slots;  // 5 slots instead of 8 layers
  opts.slots = {{width * sizeof(float), offload ? 5U : layers}};
  offloader off(dev, opts);

  std::vector<float> grad(width, 1.0F);
  std::vector<float> input(width, 1.0F);
  std::vector<offloader::buffer> fc1(layers);  // (1) was: float* fc1, of layers * width

  for (int step = 0; step < steps; ++step) {
    auto chunk = off.begin();
    const float* in = input.data();
    for (int l = 0; l < layers; ++l) {
      fc1[l] = off.allocate<float>(width, stream);  // (2) was: fc1 + l * width
      forward(dev, stream, fc1[l].as<float>(), in, l);
      in = input.data();
      chunk.commit<"fc1">(l, stream, fc1[l]);  // (3) leaves
    }
    chunk.end_forward();
    for (int l = layers - 1; l >= 0; --l) {
      chunk.restore<"fc1">(l, stream, fc1[l]);  // (4) is back
      backward(dev, stream, grad.data(), fc1[l].as<float>());
      fc1[l].reset(stream);  // (5) its slot is free from here on
    }
    chunk.finish();
    off.end_step();
  }
  dev.synchronize();

  const auto seen = off.counters();
  std::printf("%-10s %8.0f KiB on the device, %6.0f KiB moved out, %7.3f ms of virtual time\n",
              offload ? "offload" : "resident", static_cast<double>(seen.device_peak) / 1024,
              static_cast<double>(seen.modules[0].bytes_offloaded) / 1024, dev.now_ns() / 1e6);
  return grad[width / 2];
}

}  // namespace

int main() {
  const auto resident = train(false);
  const auto offloaded = train(true);
  std::printf("gradients %s\n", resident == offloaded ? "equal" : "DIFFER");
  return resident == offloaded ? 0 : 1;
}
