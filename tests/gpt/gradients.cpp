/// Compares the gradient of every tensor of weights with finite differences of the loss, along the
/// gradient and along a random direction. Prints a line for each; exits with 1 if one is off.
#include <algorithm>
#include <string>
#include <vector>

#include "../../examples/gpt/command_line.hpp"
#include "../../examples/gpt/model.hpp"
#include "../../examples/tools/voice.hpp"
#include "../../examples/train_moe/check/slope_check.hpp"
#include "../../examples/train_moe/kernels/cpu/kernels.hpp"

namespace {

using device = tidepool::virtual_device;

/// A model with one fixed text. The memory of a virtual device is the host's, and the check writes
/// into it while no kernel runs.
class bench {
 public:
  explicit bench(const moe::settings& run)
      : net_(dev_, stream_.ref(), run), saved_(dev_, run, stream_.ref()) {
    net_.read(moe::load_corpus("", run.model), 1);
    loss();
    net_.backward(saved_);
    dev_.synchronize();
  }

  [[nodiscard]] const std::vector<gpt::parameter>& weights() const { return net_.weights(); }

  /// The loss with other weights in `p`, which gets its own back. It adds to gradients, so that the
  /// caller reads them first.
  double loss_with(const gpt::parameter& p, const std::vector<float>& weights) {
    const std::vector<float> start(p.weight, p.weight + p.count);
    std::ranges::copy(weights, p.weight);
    const double found = loss();
    std::ranges::copy(start, p.weight);
    return found;
  }

 private:
  double loss() {
    net_.forward(saved_);
    net_.head();
    return net_.loss();
  }

  device dev_;
  device::stream stream_ = dev_.make_stream();
  gpt::model<moe::cpu_kernels> net_;
  gpt::plain_layers<device> saved_;
};

int check_all() {
  moe::settings run = gpt::default_run();
  run.model.layers = 2;
  run.model.batch = 2;
  bench on(run);
  std::vector<std::vector<float>> gradients;
  for (const gpt::parameter& p : on.weights()) {
    gradients.emplace_back(p.gradient, p.gradient + p.count);
  }
  int bad = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const gpt::parameter& p = on.weights()[i];
    const std::vector<float> start(p.weight, p.weight + p.count);
    const bool good =
        moe::check_slopes("tensor " + std::to_string(i), start, gradients[i],
                          [&](const auto& weights) { return on.loss_with(p, weights); });
    bad += good ? 0 : 1;
  }
  return moe::verdict(bad);
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"gpt_gradients",
                        "Compares all gradients of gpt with finite differences of its loss."};
  return tools::run(me.name, [&] {
    tools::no_options(me, argc, argv);
    return check_all();
  });
}
