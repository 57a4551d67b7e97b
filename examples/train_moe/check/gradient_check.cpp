/// Compares every gradient of the model with finite differences of its loss, on the virtual device;
/// and in less than fp32 with those of fp32. Linear layers of any number of rows are compared to
/// the bit, and what multiplies codes of FP8 is held to the codes: on the virtual device and, if
/// there is one, on a GPU.
///
/// Prints a line for each parameter tensor; exits with 1 when one of them is off. It moves the
/// tensor along the gradient and along a random direction, and the loss must change accordingly.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <tidepool/offloader.hpp>
#include <utility>
#include <vector>

#include "../../tools/voice.hpp"
#include "../kernels/cpu/kernels.hpp"
#include "gradient_codec.hpp"
#include "gradient_narrow.hpp"
#include "gradient_rows.hpp"

#if defined(TIDEPOOL_HAS_CUDA)
namespace moe {
int check_on_gpu();  // in gradient_check_cuda.cpp
}
#endif

namespace {

using device = tidepool::virtual_device;
using bench = moe::gradient_bench<device, moe::cpu_kernels>;

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
  const std::vector<float> gradient = on.gradient(p);
  std::vector<double> along(gradient.begin(), gradient.end());
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

int check_all() {
  int bad = 0;
  device dev;
  for (const auto& [all_parts, capacity] : {std::pair{false, 0.0F}, {true, 0.0F}, {false, 0.7F}}) {
    bench on(dev, moe::tiny_run(all_parts, capacity));
    on.differentiate();
    for (const moe::parameter& p : on.tensors()) bad += check(on, {&p}) ? 0 : 1;
    if (!all_parts) continue;
    on.tie_embedding();
    bad += check(on, on.embedding_and_copy()) ? 0 : 1;
  }
  const auto narrow = [&](moe::precision_kind precision, moe::fp8_scaling scaling, double most) {
    moe::settings run = moe::tiny_run(true, 0);
    run.precision = precision;
    run.scaling = scaling;
    bad += moe::check_narrow<device, moe::cpu_kernels>(dev, run, most);
  };
  narrow(moe::precision_kind::bf16, {}, 0.02);
  narrow(moe::precision_kind::fp16, {}, 0.0025);
  for (const auto scaling : {moe::fp8_scaling::tensor, moe::fp8_scaling::block}) {
    narrow(moe::precision_kind::fp8, scaling, 0.1);
  }
  bad += moe::check_rows<device, moe::cpu_kernels>(dev);
  bad += moe::check_codec<device, moe::cpu_kernels>(dev, 0.05);
  bad += moe::check_all_codes<device, moe::cpu_kernels>(dev, 1e-6);
#if defined(TIDEPOOL_HAS_CUDA)
  bad += moe::check_on_gpu();
#endif
  std::printf("%s\n", bad == 0 ? "every gradient agrees" : "some gradients are wrong");
  return bad == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"gradient_check",
                        "Compares all gradients of train_moe with finite differences of its loss."};
  return tools::run(me.name, [&] {
    tools::no_options(me, argc, argv);
    return check_all();
  });
}
