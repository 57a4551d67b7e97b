/// Compares every gradient of the model with finite differences of its loss, on the virtual device;
/// and in less than fp32 with those of fp32.
///
/// Prints a line for each parameter tensor; exits with 1 when one of them is off. It moves the
/// tensor along the gradient and along a random direction, and the loss must change accordingly.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <tidepool/offloader.hpp>
#include <utility>
#include <vector>

#include "alone.hpp"
#include "data.hpp"
#include "kernels_cpu.hpp"
#include "model.hpp"
#include "tied_embedding.hpp"

namespace {

using moe::index;
using device = tidepool::virtual_device;

/// Layers with routed experts alone, or all that DeepSeek-V3 has beside them.
moe::settings tiny_run(bool all_parts, float capacity) {
  moe::settings run;
  // layers, hidden, heads, experts, top-k, ffn, seq, batch
  run.model = {2, 16, 2, 3, 2, 8, 12, 2};
  run.model.capacity_factor = capacity;
  if (all_parts || capacity > 0) {
    run.model.top_k = run.model.experts;  // no token changes its expert, where the loss would jump
  }
  if (all_parts) {
    run.model.dense_layers = 1;
    run.model.dense_ffn = 20;
    run.model.shared_experts = 2;
    run.model.mtp = 2;
  }
  run.steps = run.microbatches = run.in_flight = 1;
  run.learning_rate = 1;
  return run;
}

/// A model with one fixed microbatch.
class bench {
 public:
  explicit bench(const moe::settings& run)
      : run_(run),
        stream_(dev_.make_stream()),
        kernels_(dev_, stream_.ref(), run),
        weights_(dev_, run.model, {moe::whole_of(run.model)}, true, {},
                 moe::types_of(run).operands),
        off_(dev_, everything()),
        model_(dev_, off_, kernels_, stream_.ref(), weights_, run),
        text_(dev_, moe::token_count(run.model), "text"),
        losses_(dev_, moe::loss_count(run.model), "losses") {
    off_.on_report([](std::string_view) {});  // of all modules, some are not in every model
    weights_.initialise(kernels_, 7);
    dev_.synchronize();
    for (index i = 0; i < text_.size(); ++i) {
      text_.data()[i] = static_cast<std::int32_t>(moe::mix(static_cast<std::uint64_t>(i)) % 23);
    }
  }

  /// What the gradient is the gradient of: cross-entropies and the weighted load balance.
  double loss() {
    model_.evaluate(io());
    dev_.synchronize();
    double sum = losses_.data()[0];
    const moe::model_sizes& m = run_.model;
    for (index l = m.dense_layers; l < m.layers + m.mtp; ++l) {
      sum += moe::balance_weight / static_cast<double>(m.routed_layers()) * losses_.data()[1 + l];
    }
    for (index depth = 1; depth <= m.mtp; ++depth) {
      const double weight = moe::mtp_weight / static_cast<double>(m.mtp);
      sum += weight * losses_.data()[moe::mtp_loss(m, depth)];
    }
    return sum;
  }

  void differentiate() {
    model_.forward(0, io());
    model_.backward(0, io());
    off_.end_step();
    dev_.synchronize();
  }

  /// The embedding and its copy get one gradient.
  void tie_embedding() {
    moe::alone<device, moe::cpu_kernels>::team nobody;
    moe::alone<device, moe::cpu_kernels> link(nobody, dev_, kernels_, stream_.ref());
    moe::sum_embedding_gradients(weights_, kernels_, off_, link, run_, stream_.ref());
    dev_.synchronize();
  }

  /// Central difference of the loss when `tied`, which start alike, move along `direction`.
  double slope(const std::vector<const moe::parameter*>& tied, const std::vector<double>& direction,
               double reach) {
    const moe::parameter& first = *tied.front();
    const std::vector<float> start(first.weight, first.weight + first.count);
    double side[2];
    for (const int sign : {-1, 1}) {
      for (const moe::parameter* p : tied) {
        for (index i = 0; i < p->count; ++i) {
          const auto at = static_cast<std::size_t>(i);
          p->weight[i] = static_cast<float>(start[at] + sign * reach * direction[at]);
        }
      }
      side[sign > 0] = loss();
    }
    for (const moe::parameter* p : tied) std::copy(start.begin(), start.end(), p->weight);
    return (side[1] - side[0]) / (2 * reach);
  }

  [[nodiscard]] const std::vector<moe::parameter>& tensors() const { return weights_.all(); }
  [[nodiscard]] std::vector<const moe::parameter*> embedding_and_copy() const {
    return {&weights_.embedding(), &weights_.mtp_embedding()};
  }

 private:
  static tidepool::options everything() {
    tidepool::options opt;
    opt.offload_modules = {"all"};
    opt.min_tensor_elements = 1;
    return opt;
  }
  moe::microbatch_io io() const { return {text_.data(), losses_.data()}; }

  moe::settings run_;
  device dev_;
  device::stream stream_;
  moe::cpu_kernels kernels_;
  moe::parameters<device> weights_;
  tidepool::offloader<device, moe::saving_modules> off_;
  moe::model<device, moe::cpu_kernels> model_;
  moe::device_array<device, std::int32_t> text_;
  moe::device_array<device, float> losses_;
};

/// Scales to length 1; returns the length before.
double normalise(std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  const double length = std::sqrt(sum);
  for (double& x : v) x /= length > 0 ? length : 1;
  return length;
}

/// Of tensors that are always equal, which one tensor is.
bool check(bench& on, const std::vector<const moe::parameter*>& tied) {
  const moe::parameter& p = *tied.back();
  std::vector<double> along(p.gradient, p.gradient + p.count);
  const double length = normalise(along);
  const double downhill = on.slope(tied, along, 4e-3);

  std::vector<double> random(along.size());
  for (std::size_t i = 0; i < random.size(); ++i) {
    random[i] = static_cast<double>(moe::mix(99 + i) >> 11) * 0x1p-52 - 1;
  }
  normalise(random);
  double expected = 0;
  for (std::size_t i = 0; i < random.size(); ++i) expected += random[i] * along[i] * length;
  const double found = on.slope(tied, random, 2e-2);

  const auto agree = [](double a, double b) {
    return std::abs(a - b) < 5e-5 + 0.005 * std::abs(a);
  };
  const bool good = length > 0 && agree(length, downhill) && agree(expected, found);
  std::printf("%-4s %-18s |gradient| %.6f, measured %.6f; random direction %+.6f, measured %+.6f\n",
              good ? "ok" : "BAD", p.name.c_str(), length, downhill, expected, found);
  return good;
}

/// The same gradients in less than fp32: those of fp32, but for the rounding of operands.
int check_narrow(moe::precision_kind precision, moe::fp8_scaling scaling, double tolerance) {
  moe::settings run = tiny_run(true, 0);
  bench exact(run);
  exact.differentiate();
  run.precision = precision;
  run.scaling = scaling;
  bench narrow(run);
  narrow.differentiate();
  int bad = 0;
  double worst = 0;
  for (std::size_t t = 0; t < exact.tensors().size(); ++t) {
    const moe::parameter &a = exact.tensors()[t], &b = narrow.tensors()[t];
    double off = 0, length = 0;
    for (index i = 0; i < a.count; ++i) {
      const double difference = static_cast<double>(b.gradient[i]) - a.gradient[i];
      off += difference * difference;
      length += static_cast<double>(a.gradient[i]) * a.gradient[i];
    }
    const double relative = std::sqrt(off / length);
    worst = std::max(worst, relative);
    if (relative > 0 && relative < tolerance) continue;
    ++bad;
    std::printf("BAD  %-18s is off by %.5f of its length\n", a.name.c_str(), relative);
  }
  std::printf("%-4s %s: at most %.5f of a gradient's length off fp32\n", bad == 0 ? "ok" : "BAD",
              moe::name_of(precision).c_str(), worst);
  return bad;
}

}  // namespace

int main() try {
  int bad = 0;
  for (const auto& [all_parts, capacity] : {std::pair{false, 0.0F}, {true, 0.0F}, {false, 0.7F}}) {
    bench on(tiny_run(all_parts, capacity));
    on.differentiate();
    for (const moe::parameter& p : on.tensors()) bad += check(on, {&p}) ? 0 : 1;
    if (!all_parts) continue;
    on.tie_embedding();
    bad += check(on, on.embedding_and_copy()) ? 0 : 1;
  }
  bad += check_narrow(moe::precision_kind::bf16, {}, 0.02);
  bad += check_narrow(moe::precision_kind::fp16, {}, 0.0025);
  for (const auto scaling : {moe::fp8_scaling::tensor, moe::fp8_scaling::block}) {
    bad += check_narrow(moe::precision_kind::fp8, scaling, 0.1);
  }
  std::printf("%s\n", bad == 0 ? "every gradient agrees" : "some gradients are wrong");
  return bad == 0 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "gradient_check: %s\n", e.what());
  return 2;
}
