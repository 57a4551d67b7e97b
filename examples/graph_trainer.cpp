/// A static trainer under CUDA graphs, in the two ways that there are.
///
/// 1. A whole step is one graph: its offloads and reloads are inside, and a launch costs the host
///    nothing but the launch.
/// 2. Each layer has graphs of its own, which know one address for good. Tidepool stays outside:
///    a commit after the forward graph, a restore before the backward graph.
///
/// Both give the bits of a step without graphs. The lines that matter are numbered.
///
///     graph_trainer [--device virtual|cuda] [--check-order]
///
/// `--check-order` looks for accesses without an order (docs/checking.md).
#include <cstdio>
#include <string>
#include <tidepool/device/checked.hpp>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "each.hpp"
#include "tools/command_line.hpp"
#include "tools/device_line.hpp"

namespace tp = tidepool;

namespace {

constexpr int layers = 6;
constexpr int steps = 5;
constexpr std::size_t width = 1 << 14;  // floats per layer
constexpr std::size_t bytes = width * sizeof(float);

// What the kernels do to element i, on any device.
struct forward_body {
  float *saved, *hidden;
  std::size_t layer;
  ON_ANY_DEVICE void operator()(std::size_t i) const {
    saved[i] = hidden[i];
    hidden[i] = 0.5F * hidden[i] + static_cast<float>(layer + i);
  }
};
struct backward_body {
  const float* saved;
  float* grad;
  ON_ANY_DEVICE void operator()(std::size_t i) const { grad[i] = 0.5F * grad[i] + saved[i]; }
};

template <class Device>
struct model {
  Device& dev;
  typename Device::stream owned = dev.make_stream();
  typename Device::stream_ref stream = owned.ref();
  float* hidden = static_cast<float*>(dev.allocate(bytes));
  float* grad = static_cast<float*>(dev.allocate(bytes));

  explicit model(Device& on) : dev(on) {
    if constexpr (tp::order_checking_device<Device>) dev.name_stream(stream, "compute");
    dev.fill_bytes(hidden, 0, bytes, stream);
    dev.fill_bytes(grad, 0, bytes, stream);
  }
  ~model() {
    dev.deallocate(hidden);
    dev.deallocate(grad);
  }

  void forward(float* saved, int layer) {
    each(dev, stream, "forward",
         {reads(hidden, bytes), writes(hidden, bytes), writes(saved, bytes)}, width,
         forward_body{saved, hidden, static_cast<std::size_t>(layer)});
  }
  void backward(const float* saved) {
    each(dev, stream, "backward", {reads(saved, bytes), reads(grad, bytes), writes(grad, bytes)},
         width, backward_body{saved, grad});
  }
  std::vector<float> gradient() { return read_back(dev, stream, grad, width); }
};

template <class Device>
using offloader = tp::offloader<Device, tp::modules<"fc1">>;

tp::options options() {
  tp::options opts;
  opts.offload_modules = {"fc1"};
  opts.min_tensor_elements = 1;
  opts.margin = false;
  return opts;
}

template <class Device>
void step(offloader<Device>& off, model<Device>& net) {
  auto chunk = off.begin();
  std::vector<tp::buffer<Device>> saved(layers);
  for (int l = 0; l < layers; ++l) {
    saved[l] = off.allocate(bytes, net.stream);
    net.forward(saved[l].template as<float>(), l);
    chunk.template commit<"fc1">(l, net.stream, saved[l]);
  }
  chunk.end_forward();
  for (int l = layers - 1; l >= 0; --l) {
    chunk.template restore<"fc1">(l, net.stream, saved[l]);
    net.backward(saved[l].template as<float>());
    saved[l].reset(net.stream);
  }
  chunk.finish();
  off.end_step();
}

template <class Device>
std::vector<float> eager(Device& dev) {
  model<Device> net(dev);
  offloader<Device> off(dev, options());
  for (int i = 0; i < steps; ++i) step(off, net);
  return net.gradient();
}

template <class Device>
std::vector<float> whole_step(Device& dev) {
  model<Device> net(dev);
  offloader<Device> off(dev, options());
  step(off, net);  // (1) once eagerly: memory is made
  auto graph = off.capture(net.stream, [&] { step(off, net); });  // (2) runs nothing
  for (int i = 1; i < steps; ++i) graph.launch(net.stream);       // (3) the other steps
  return net.gradient();
}

template <class Device>
std::vector<float> layer_by_layer(Device& dev) {
  model<Device> net(dev);
  offloader<Device> off(dev, options());
  auto* const address = static_cast<float*>(dev.allocate(bytes));
  tp::fixed_block place(address, bytes);  // (4) the address that graphs know

  std::vector<typename Device::graph> forward;  // the trainer's own; no call of Tidepool inside
  std::vector<typename Device::graph> backward;
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
    std::vector<tp::buffer<Device>> saved(layers);
    for (int l = 0; l < layers; ++l) {
      saved[l] = off.allocate_from(place, bytes, net.stream);  // (5) waits its turn
      dev.replay(forward[l], net.stream);
      chunk.template commit<"fc1">(l, net.stream, saved[l]);  // (6) the address is the next layer's
    }
    chunk.end_forward();
    for (int l = layers - 1; l >= 0; --l) {
      chunk.template restore<"fc1">(l, net.stream, saved[l]);  // (7) back at the same address
      dev.replay(backward[l], net.stream);
      saved[l].reset(net.stream);
    }
    chunk.finish();
    off.end_step();
  }
  auto result = net.gradient();
  dev.deallocate(address);
  return result;
}

template <class Device>
int run() {
  tools::print_device<Device>();
  Device dev;
  const auto expected = eager(dev);
  const auto whole = whole_step(dev);
  const auto layered = layer_by_layer(dev);
  std::printf("eager %.9g, one graph a step %.9g, graphs of layers %.9g\n", expected.back(),
              whole.back(), layered.back());
  const bool equal = expected == whole && expected == layered;
  std::printf("gradients %s\n", equal ? "equal" : "DIFFER");
  if constexpr (tp::order_checking_device<Device>) {
    std::fputs(dev.report().c_str(), stdout);
    return equal && dev.findings().empty() ? 0 : 1;
  }
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"graph_trainer",
                        "Trains under CUDA graphs, in the two ways that there are."};
  return tools::run(me.name, [&] {
    std::string device = "virtual";
    bool check = false;
    tools::command_line line(me);
    line.add_option("--device", device, "virtual or cuda")
        ->check(CLI::IsMember({"virtual", "cuda"}))
        ->capture_default_str();
    line.add_flag("--check-order", check, "Look for accesses without an order");
    line.read(argc, argv);
    if (device == "virtual") {
      return check ? run<tp::checked_device<tp::virtual_device>>() : run<tp::virtual_device>();
    }
#if defined(__CUDACC__)
    return check ? run<tp::checked_device<tp::cuda_device>>() : run<tp::cuda_device>();
#else
    throw tp::option_error("--device=cuda: this build has no CUDA; take --device=virtual");
#endif
  });
}
