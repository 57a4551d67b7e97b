/// Compares the gradient of every tensor of weights with finite differences of the loss, along the
/// gradient and along a random direction. Prints a line for each; exits with 1 if one is off.
#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "../../examples/gpt/command_line.hpp"
#include "../../examples/gpt/model.hpp"
#include "../../examples/tools/voice.hpp"
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

  /// The change of the loss along a direction of length 1. `head` adds to gradients, so that the
  /// caller reads them first.
  double slope(const gpt::parameter& p, const std::vector<double>& direction, double reach) {
    const std::span<float> weight(p.weight, direction.size());
    const std::vector<float> start(weight.begin(), weight.end());
    double side[2];
    for (const int sign : {-1, 1}) {
      for (std::size_t i = 0; i < start.size(); ++i) {
        weight[i] = static_cast<float>(start[i] + sign * reach * direction[i]);
      }
      side[sign > 0] = loss();
    }
    std::copy(start.begin(), start.end(), weight.begin());
    return (side[1] - side[0]) / (2 * reach);
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

/// Scales to length 1; returns the length before.
double normalise(std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  const double length = std::sqrt(sum);
  for (double& x : v) x /= length > 0 ? length : 1;
  return length;
}

bool check(bench& on, std::size_t number, const gpt::parameter& p, std::vector<double> along) {
  const double length = normalise(along);
  std::vector<double> random(along.size());
  for (std::size_t i = 0; i < random.size(); ++i) {
    random[i] = static_cast<double>(moe::mix(99 + i) >> 11) * 0x1p-52 - 1;
  }
  normalise(random);
  double expected = 0;
  for (std::size_t i = 0; i < random.size(); ++i) expected += random[i] * along[i] * length;
  const double downhill = on.slope(p, along, 4e-3), found = on.slope(p, random, 2e-2);
  const auto agree = [](double a, double b) {
    return std::abs(a - b) < 5e-5 + 0.005 * std::abs(a);
  };
  const bool good = length > 0 && agree(length, downhill) && agree(expected, found);
  std::printf("%-4s tensor %2zu |gradient| %.6f, measured %.6f; random %+.6f, measured %+.6f\n",
              good ? "ok" : "BAD", number, length, downhill, expected, found);
  return good;
}

int check_all() {
  moe::settings run = gpt::default_run();
  run.model.layers = 2;
  run.model.batch = 2;
  bench on(run);
  std::vector<std::vector<double>> gradients;
  for (const gpt::parameter& p : on.weights()) {
    gradients.emplace_back(p.gradient, p.gradient + p.count);
  }
  int bad = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    bad += check(on, i, on.weights()[i], gradients[i]) ? 0 : 1;
  }
  std::printf("%s\n", bad == 0 ? "every gradient agrees" : "some gradients are wrong");
  return bad == 0 ? 0 : 1;
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
