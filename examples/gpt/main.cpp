/// gpt: a trainer in the style of llm.c, whose activations are one allocation with offsets; and the
/// same with `saved_layers`, so that the device holds few layers of them.
///
///   gpt                                     Tidepool, nothing offloaded
///   gpt --offload-modules=all               every module
///   gpt --compare --offload-modules=all     plain arrays, Tidepool, and offloaded, side by side
#include <algorithm>
#include <cstdio>
#include <deque>
#include <string>
#include <tidepool/layers.hpp>
#include <tidepool/plan.hpp>
#include <vector>

#include "../tools/device_clock.hpp"
#include "../tools/device_line.hpp"
#include "../tools/json_file.hpp"
#include "../train_moe/kernels/cpu/kernels.hpp"
#include "../train_moe/training/learning_rate.hpp"
#include "command_line.hpp"
#include "model.hpp"
#include "report.hpp"
#if defined(TIDEPOOL_HAS_CUDA)
#include "../train_moe/kernels/cuda/kernels.hpp"
#endif

namespace tp = tidepool;

namespace gpt {

/// All that Tidepool adds to the trainer. The class stands in for `plain_layers`: memory of a block
/// may leave after `done`, and is there again after `back`.
template <class Device>
class offloaded_layers {
  using modules = tp::modules<"attn_norm", "qkv_linear", "core_attn", "mlp_norm", "mlp_fc1",
                              "mlp_act", "mlp_fc2">;
  using offloader = tp::offloader<Device, modules>;

 public:
  offloaded_layers(Device& dev, const settings& run, typename Device::stream_ref stream,
                   const tp::options& options)
      : at_(run), stream_(stream), off_(dev, options, {.planner = tp::planner()}) {
    for (const auto name : modules::names) saved_.emplace_back(off_, pass_, name);
  }
  void begin() { pass_ = off_.begin(); }
  std::byte* fresh(module m, int l) { return saved_[m].fresh(l, at_.bytes[m], stream_); }
  void done(module m, int l) { saved_[m].done(l, stream_); }
  void end_forward() { pass_.end_forward(); }
  std::byte* back(module m, int l) { return saved_[m].back(l, stream_); }
  void release(module m, int l) { saved_[m].release(l, stream_); }
  void finish() {
    pass_.finish();
    off_.end_step();
  }
  [[nodiscard]] tp::trace::counters counters() const { return off_.counters(); }

 private:
  layer_layout at_;
  typename Device::stream_ref stream_;
  offloader off_;
  typename offloader::chunk pass_;
  std::deque<tp::saved_layers<std::byte, offloader>> saved_;
};

namespace {

/// Trains from the start. `Layers` is `plain_layers` or `offloaded_layers`, and nothing else
/// differs.
template <class Kernels, class Layers, class... Rest>
run_result train(typename Kernels::device& dev, const command_line& line, const moe::corpus& text,
                 const std::string& way, const Rest&... rest) {
  const std::size_t free_before = dev.memory().free;
  const auto stream = dev.make_stream();
  model<Kernels> net(dev, stream.ref(), line.run);
  Layers saved(dev, line.run, stream.ref(), rest...);
  run_result result{way, Kernels::device::name, {}, {}, 0, 0};
  std::printf("%s\n", way.c_str());
  for (int step = 0; step < line.run.steps; ++step) {
    const double start = tools::milliseconds(dev);
    net.read(text, line.run.seed + static_cast<std::uint64_t>(step));
    saved.begin();
    net.forward(saved);
    saved.end_forward();
    net.head();
    net.backward(saved);
    saved.finish();
    net.update(step, moe::learning_rate(line.run, step));
    result.losses.push_back(net.loss());
    result.step_ms.push_back(tools::milliseconds(dev) - start);
    const std::size_t free = dev.memory().free;
    result.driver_peak = std::max(result.driver_peak, free_before - std::min(free_before, free));
    print_step(result, line.run.steps);
  }
  if constexpr (requires { saved.counters(); }) {
    for (const auto& each : saved.counters().modules) result.moved += each.step_bytes;
  }
  dev.synchronize();
  return result;
}

/// All trainings of a device, in turn.
template <class Kernels>
std::vector<run_result> train_all(typename Kernels::device& dev, const command_line& line,
                                  const moe::corpus& text) {
  using device = typename Kernels::device;
  using plain = plain_layers<device>;
  using offloaded = offloaded_layers<device>;
  tools::print_device_of(dev);
  std::vector<run_result> runs;
  for (int round = 0; round < line.rounds; ++round) {
    if (line.compare) {
      runs.push_back(train<Kernels, plain>(dev, line, text, "plain"));
      runs.push_back(train<Kernels, offloaded>(dev, line, text, "kept", tp::options{}));
    }
    runs.push_back(train<Kernels, offloaded>(dev, line, text, "as asked", line.offload));
  }
  return runs;
}

std::vector<run_result> train_anywhere(const command_line& line, const moe::corpus& text) {
#if defined(TIDEPOOL_HAS_CUDA)
  const int gpus = tp::cuda_device::count();
  if (gpus > 0 && line.device != "virtual") {
    tp::cuda_device dev{0};
    return train_all<moe::cuda_kernels>(dev, line, text);
  }
#endif
  if (line.device == "cuda") {
    throw tp::option_error("--device=cuda: no GPU, or no CUDA in this build; use --device=virtual");
  }
  tp::virtual_device dev;
  if (line.mistake) dev.leave_out(tp::join_site::consumer);
  return train_all<moe::cpu_kernels>(dev, line, text);
}

}  // namespace

}  // namespace gpt

int main(int argc, char** argv) {
  return tools::run("gpt", [&] {
    const gpt::command_line line = gpt::read_command_line(argc, argv);
    const moe::corpus text = moe::load_corpus(line.data, line.run.model);
    tools::json_file json(line.json);
    const auto runs = gpt::train_anywhere(line, text);
    const bool equal = gpt::print_table(runs);
    json.fill(gpt::to_json(runs));
    return equal ? tools::done : tools::failed;
  });
}
