/// A static trainer under CUDA graphs, in the two ways that there are.
///
/// 1. A whole step is one graph: its offloads and reloads are inside, and a launch costs the host
///    nothing but the launch.
/// 2. Each layer has graphs of its own, which know one address for good. Tidepool stays outside:
///    a commit after the forward graph, a restore before the backward graph.
///
/// Both give the bits of a step without graphs. The lines that matter are numbered.
#include <cstdio>
#include <tidepool/tidepool.hpp>
#include <vector>

namespace tp = tidepool;

namespace {

constexpr int layers = 6;
constexpr int steps = 5;
constexpr std::size_t width = 1 << 14;  // floats per layer

using device = tp::virtual_device;  // or tp::cuda_device, with kernels instead of `launch`
using offloader = tp::offloader<device, tp::modules<"fc1">>;

struct model {
  device& dev;
  device::stream_ref stream;
  std::vector<float> hidden = std::vector<float>(width, 1.0F);
  std::vector<float> grad = std::vector<float>(width, 1.0F);

  void forward(float* saved, int layer) {
    dev.launch(stream, 40'000, [this, saved, layer] {
      for (std::size_t i = 0; i < width; ++i) {
        saved[i] = hidden[i];
        hidden[i] = 0.5F * hidden[i] + static_cast<float>(layer);
      }
    });
  }
  void backward(const float* saved) {
    dev.launch(stream, 80'000, [this, saved] {
      for (std::size_t i = 0; i < width; ++i) grad[i] = 0.5F * grad[i] + saved[i];
    });
  }
};

tp::options options() {
  tp::options opts;
  opts.offload_modules = {"fc1"};
  opts.min_tensor_elements = 1;
  opts.margin = false;
  return opts;
}

void step(offloader& off, model& net) {
  auto chunk = off.begin();
  std::vector<offloader::buffer> saved(layers);
  for (int l = 0; l < layers; ++l) {
    saved[l] = off.allocate<float>(width, net.stream);
    net.forward(saved[l].as<float>(), l);
    chunk.commit<"fc1">(l, net.stream, saved[l]);
  }
  chunk.end_forward();
  for (int l = layers - 1; l >= 0; --l) {
    chunk.restore<"fc1">(l, net.stream, saved[l]);
    net.backward(saved[l].as<float>());
    saved[l].reset(net.stream);
  }
  chunk.finish();
  off.end_step();
}

float eager() {
  device dev;
  auto owned = dev.make_stream();
  model net{dev, owned.ref()};
  offloader off(dev, options());
  for (int i = 0; i < steps; ++i) step(off, net);
  dev.synchronize();
  return net.grad[width / 2];
}

float whole_step() {
  device dev;
  auto owned = dev.make_stream();
  model net{dev, owned.ref()};
  offloader off(dev, options());
  step(off, net);  // (1) once eagerly: memory is made
  auto graph = off.capture(net.stream, [&] { step(off, net); });  // (2) runs nothing
  for (int i = 1; i < steps; ++i) graph.launch(net.stream);       // (3) the other steps
  dev.synchronize();
  return net.grad[width / 2];
}

float layer_by_layer() {
  device dev;
  auto owned = dev.make_stream();
  model net{dev, owned.ref()};
  offloader off(dev, options());
  auto* const address = static_cast<float*>(dev.allocate(width * sizeof(float)));
  tp::fixed_block place(address,
                        width * sizeof(float));  // (4) the address that graphs know

  std::vector<device::graph> forward;  // the trainer's own graphs; no call of Tidepool inside
  std::vector<device::graph> backward;
  for (int l = 0; l < layers; ++l) {
    dev.begin_capture(net.stream);
    net.forward(address, l);
    forward.push_back(dev.end_capture(net.stream));
    dev.begin_capture(net.stream);
    net.backward(address);
    backward.push_back(dev.end_capture(net.stream));
  }
  for (int i = 0; i < steps; ++i) {
    auto chunk = off.begin();
    std::vector<offloader::buffer> saved(layers);
    for (int l = 0; l < layers; ++l) {
      saved[l] = off.allocate_from(place, width * sizeof(float), net.stream);  // (5) waits its turn
      dev.replay(forward[l], net.stream);
      chunk.commit<"fc1">(l, net.stream, saved[l]);  // (6) the address is the next layer's
    }
    chunk.end_forward();
    for (int l = layers - 1; l >= 0; --l) {
      chunk.restore<"fc1">(l, net.stream, saved[l]);  // (7) back at the same address
      dev.replay(backward[l], net.stream);
      saved[l].reset(net.stream);
    }
    chunk.finish();
    off.end_step();
  }
  dev.synchronize();
  dev.deallocate(address);
  return net.grad[width / 2];
}

}  // namespace

int main() {
  const auto expected = eager();
  const auto whole = whole_step();
  const auto layered = layer_by_layer();
  std::printf("eager %.9g, one graph a step %.9g, graphs of layers %.9g\n", expected, whole,
              layered);
  const bool equal = expected == whole && expected == layered;
  std::printf("gradients %s\n", equal ? "equal" : "DIFFER");
  return equal ? 0 : 1;
}
