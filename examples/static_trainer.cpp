/// A static trainer: every layer's activations have one shape, known before the first step.
///
/// Without Tidepool such a trainer keeps one array per tensor with room for all layers and indexes
/// it by layer. With it, each array becomes a vector of handles over a ring of slots. The changed
/// lines are numbered. Layers are chained: what layer l makes is what layer l + 1 reads and saves.
#include <algorithm>
#include <cstdio>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "tools/device_line.hpp"
#include "tools/voice.hpp"

namespace tp = tidepool;

namespace {

constexpr int layers = 8;
constexpr int steps = 4;
constexpr std::size_t width = 1 << 16;  // floats per layer

// Or tp::cuda_device, with kernels instead of `launch` and device memory instead of vectors; the
// numbered lines stay as they are.
using device = tp::virtual_device;
using offloader = tp::offloader<device, tp::modules<"fc1">>;

// Stand for kernels: y = x * x / 2 + layer / 8, so that backward needs x: grad = grad * x.
void forward(device& dev, device::stream_ref stream, float* y, const float* x, int layer) {
  dev.launch(stream, 40'000, [=] {
    for (std::size_t i = 0; i < width; ++i) {
      y[i] = 0.5F * x[i] * x[i] + 0.125F * static_cast<float>(layer);
    }
  });
}
void backward(device& dev, device::stream_ref stream, float* grad, const float* x) {
  dev.launch(stream, 80'000, [=] {
    for (std::size_t i = 0; i < width; ++i) grad[i] *= x[i];
  });
}

std::vector<float> train(bool offload) {  // the gradient of the first layer's input
  device dev;
  auto owned = dev.make_stream();
  const auto stream = owned.ref();

  tp::options opts;
  if (offload) opts.offload_modules = {"fc1"};
  opts.min_tensor_elements = 1;
  opts.memory = tp::memory_kind::slots;  // 5 slots instead of 9
  opts.slots = {{width * sizeof(float), offload ? 5U : layers + 1}};
  offloader off(dev, opts);

  std::vector<float> grad(width);
  std::vector<offloader::buffer> x(layers + 1);  // (1) was: float* x, of (layers + 1) * width

  for (int step = 0; step < steps; ++step) {
    auto chunk = off.begin();
    x[0] = off.allocate<float>(width, stream);  // (2) was: x
    dev.launch(stream, 10'000, [to = x[0].as<float>()] { std::fill_n(to, width, 1.5F); });
    for (int l = 0; l < layers; ++l) {
      x[l + 1] = off.allocate<float>(width, stream);  // (2) was: x + (l + 1) * width
      forward(dev, stream, x[l + 1].as<float>(), x[l].as<float>(), l);
      chunk.commit<"fc1">(l, stream, x[l]);  // (3) nobody reads it before backward: it leaves
    }
    chunk.end_forward();
    x[layers].reset(stream);  // the output: the loss is its sum
    dev.launch(stream, 10'000, [&] { std::fill(grad.begin(), grad.end(), 1.0F); });
    for (int l = layers - 1; l >= 0; --l) {
      chunk.restore<"fc1">(l, stream, x[l]);  // (4) is back
      backward(dev, stream, grad.data(), x[l].as<float>());
      x[l].reset(stream);  // (5) its slot is free from here on
    }
    chunk.finish();
    off.end_step();
  }
  dev.synchronize();

  const auto seen = off.counters();
  std::printf("%-10s %8.0f KiB on the device, %6.0f KiB moved out, %7.3f ms\n",
              offload ? "offload" : "resident", static_cast<double>(seen.device_peak) / 1024,
              static_cast<double>(seen.modules[0].bytes_offloaded) / 1024, dev.now_ns() / 1e6);
  return grad;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"static_trainer", "Trains layers of one shape, resident and offloaded."};
  return tools::run(me.name, [&] {
    tools::no_options(me, argc, argv);
    tools::print_device<device>();
    const auto resident = train(false);
    const auto offloaded = train(true);
    std::printf("gradients %s\n", resident == offloaded ? "equal" : "DIFFER");
    return resident == offloaded && resident[0] != 0 ? 0 : 1;
  });
}
