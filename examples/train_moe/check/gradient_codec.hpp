/// What `gradient_check` asks of Tidepool's FP8 codec, on any device: it rounds the gradients of
/// the matrices whose inputs it packs, a little, and no other bit.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "gradient_narrow.hpp"

namespace moe {

/// Against BF16 without the codec. Returns how many tensors are wrong.
template <class Device, class Kernels>
int check_codec(Device& dev, double most) {
  settings run = tiny_run(true, 0);
  run.precision = precision_kind::bf16;
  gradient_bench<Device, Kernels> exact(dev, run);
  run.codec = codec_kind::fp8;
  gradient_bench<Device, Kernels> packed(dev, run);
  exact.differentiate();
  packed.differentiate();
  int bad = 0;
  double worst = 0;
  for (std::size_t t = 0; t < exact.tensors().size(); ++t) {
    const std::string& name = exact.tensors()[t].name;
    const bool of_experts = name.ends_with(".fc1") || name.ends_with(".fc2");
    const std::vector<float> there = exact.gradient(exact.tensors()[t]);
    const std::vector<float> here = packed.gradient(packed.tensors()[t]);
    const double off = distance(there, here);
    worst = std::max(worst, off);
    if (of_experts ? off > 0 && off < most : off == 0) continue;
    ++bad;
    std::printf("BAD  %-18s is off by %.5f of its length\n", name.c_str(), off);
  }
  std::printf(
      "%-4s bf16 through the FP8 codec: at most %.5f of a gradient's length off bf16, the "
      "experts' alone\n",
      bad == 0 ? "ok" : "BAD", worst);
  return bad;
}

}  // namespace moe
