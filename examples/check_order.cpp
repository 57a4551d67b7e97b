// A trainer looks for races of its own: the same loop on a device that checks the order of all
// accesses. See docs/checking.md.
//
//   check_order            a loop without mistakes: prints "0 mistakes found"
//   check_order --mistake  commits on a stream that does not wait for the kernel; exit status 1
#include <cstddef>
#include <cstdio>
#include <tidepool/device/checked.hpp>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "tools/command_line.hpp"
#include "tools/device_line.hpp"

namespace tp = tidepool;

using device = tp::checked_device<tp::virtual_device>;  // on a GPU: checked_device<cuda_device>
using offloader = tp::offloader<device, tp::modules<"mlp_act">>;

constexpr int layers = 4;
constexpr std::size_t count = 4096;

// A kernel: here a host function that the virtual device runs. What it touches is said beside it.
void gelu(device& dev, device::stream_ref stream, float* y, const float* x) {
  dev.launch(stream, 1000, [=] {
    for (std::size_t i = 0; i < count; ++i) y[i] = x == nullptr ? 1.0F : x[i] * 0.5F;
  });
  if (x != nullptr) dev.reads(x, count * sizeof(float), stream, "gelu");
  dev.writes(y, count * sizeof(float), stream, "gelu");
}

int train(bool mistake) {
  device dev{tp::machine{}};
  const auto compute = dev.make_stream();
  const auto other = dev.make_stream();
  dev.name_stream(compute.ref(), "compute");
  dev.name_stream(other.ref(), "other");

  tp::options opts;
  opts.offload_modules = {"mlp_act"};
  opts.min_tensor_elements = 1;
  offloader off(dev, opts);

  for (int step = 0; step < 2; ++step) {
    auto chunk = off.begin();
    std::vector<offloader::buffer> saved;
    for (int l = 0; l < layers; ++l) {
      saved.push_back(off.allocate<float>(count, compute.ref()));
      gelu(dev, compute.ref(), saved.back().as<float>(), nullptr);
      // The stream of a commit is one behind whose work the tensor is ready.
      chunk.commit<"mlp_act">(l, mistake ? other.ref() : compute.ref(), saved.back());
    }
    chunk.end_forward();
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      chunk.restore<"mlp_act">(l, compute.ref(), x);
      auto gradient = off.allocate<float>(count, compute.ref());
      {
        const auto part = dev.at("mlp_act", l);  // what follows is about this layer
        gelu(dev, compute.ref(), gradient.as<float>(), x.as<float>());
      }
      gradient.reset(compute.ref());
      x.reset(compute.ref());
    }
    chunk.finish();
    off.end_step();
  }
  dev.synchronize();

  std::fputs(dev.report().c_str(), stdout);
  return dev.findings().empty() ? 0 : 1;
}

int main(int argc, char** argv) {
  const tools::about me{"check_order", "Looks for accesses to memory without an order."};
  return tools::run(me.name, [&] {
    bool mistake = false;
    tools::command_line line(me);
    line.add_flag("--mistake", mistake, "Commit on a stream that does not wait for the kernel");
    line.read(argc, argv);
    tools::print_device<device>();
    return train(mistake);
  });
}
