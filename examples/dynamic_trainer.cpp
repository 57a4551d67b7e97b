/// A dynamic trainer: how large a layer's activations are is known only after routing.
///
/// Buffers come from the offloader and are move-only, so that what was forgotten is freed and what
/// was left out is said. The lines that Tidepool adds are marked.
#include <cstdio>
#include <iostream>
#include <random>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "tools/device_line.hpp"
#include "tools/voice.hpp"

namespace tp = tidepool;

namespace {

constexpr int layers = 6;
constexpr int microbatches = 4;
constexpr std::size_t hidden = 256;

using device = tp::virtual_device;  // or tp::cuda_device, with kernels instead of `launch`
using offloader = tp::offloader<device, tp::modules<"expert_fc1", "moe_act">>;

struct layer_tensors {
  std::size_t rows = 0;
  offloader::buffer routed;  // the input of the experts, saved by expert_fc1
  offloader::buffer hidden;  // the input of the activation, saved by moe_act
};

void fill(device& dev, device::stream_ref stream, float* to, std::size_t count, float value) {
  dev.launch(stream, static_cast<double>(count), [=] { std::fill_n(to, count, value); });
}
void add(device& dev, device::stream_ref stream, double& total, const float* from,
         std::size_t count) {
  dev.launch(stream, 2.0 * static_cast<double>(count), [=, &total] {
    for (std::size_t i = 0; i < count; ++i) total += from[i];
  });
}

double train(const tp::options& opts) {
  device dev;
  auto owned = dev.make_stream();
  const auto stream = owned.ref();
  offloader off(dev, opts, {.output = tp::trace_output()});  // + for --summary, --trace-step
  std::mt19937 router(7);
  double total = 0;

  for (int mb = 0; mb < microbatches; ++mb) {
    auto chunk = off.begin({.microbatch = mb});  // +
    std::vector<layer_tensors> saved(layers);
    for (int l = 0; l < layers; ++l) {
      auto& t = saved[l];
      t.rows = 64 + router() % 64;  // as the router has it
      t.routed = off.allocate<float>(t.rows * hidden, stream);
      t.hidden = off.allocate<float>(t.rows * hidden * 2, stream);
      fill(dev, stream, t.routed.as<float>(), t.rows * hidden, static_cast<float>(l));
      fill(dev, stream, t.hidden.as<float>(), t.rows * hidden * 2, static_cast<float>(mb));
      chunk.commit<"expert_fc1">(l, stream, t.routed);  // +
      chunk.commit<"moe_act">(l, stream, t.hidden);     // +
    }
    chunk.end_forward();  // +
    for (int l = layers - 1; l >= 0; --l) {
      auto& t = saved[l];
      chunk.restore<"moe_act">(l, stream, t.hidden);  // +
      add(dev, stream, total, t.hidden.as<float>(), t.rows * hidden * 2);
      t.hidden.reset(stream);
      chunk.restore<"expert_fc1">(l, stream, t.routed);  // +
      add(dev, stream, total, t.routed.as<float>(), t.rows * hidden);
      t.routed.reset(stream);
    }
    chunk.finish();  // + throws if a restore was forgotten
  }
  off.end_step();  // +
  dev.synchronize();
  tp::trace::write_summary(std::cout, off.counters());
  return total;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"dynamic_trainer", "Trains layers whose sizes are known after routing."};
  return tools::run(me.name, [&] {
    tp::options resident;
    resident.device_step = 1 << 20;
    auto opts = resident;
    opts.offload_modules = {"expert_fc1", "moe_act"};
    opts.min_tensor_elements = 1;
    opts = tp::take_options(argc, argv, opts);  // --max-inflight=2, --memory=arena, …
    tools::no_options(me, argc, argv, tp::options_help());
    tools::print_device<device>();
    const auto same = train(resident) == train(opts);
    std::printf("results %s\n", same ? "equal" : "DIFFER");
    return same ? 0 : 1;
  });
}
