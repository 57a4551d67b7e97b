/// Compares every gradient of the model with finite differences of its loss, on the virtual device;
/// and in less than fp32 with those of fp32. Linear layers of any number of rows are compared to
/// the bit, and what multiplies codes of FP8 is held to the codes: on the virtual device and, if
/// there is one, on a GPU.
///
/// Prints a line for each parameter tensor; exits with 1 when one of them is off. It moves the
/// tensor along the gradient and along a random direction, and the loss must change accordingly.
#include <tidepool/offloader.hpp>
#include <utility>
#include <vector>

#include "../../tools/voice.hpp"
#include "../kernels/cpu/kernels.hpp"
#include "gradient_codec.hpp"
#include "gradient_narrow.hpp"
#include "gradient_products.hpp"
#include "gradient_rows.hpp"
#include "slope_check.hpp"

#if defined(TIDEPOOL_HAS_CUDA)
namespace moe {
int check_on_gpu();  // in gradient_check_cuda.cpp
}
#endif

namespace {

using device = tidepool::virtual_device;
using bench = moe::gradient_bench<device, moe::cpu_kernels>;

/// Of tensors that are always equal, which one tensor is.
bool check(bench& on, const std::vector<const moe::parameter*>& tied) {
  const moe::parameter& p = *tied.back();
  return moe::check_slopes(p.name, on.weight(p), on.gradient(p),
                           [&](const auto& weight) { return on.loss_with(tied, weight); });
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
  return moe::verdict(bad);
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
