/// What `gradient_check` asks of less than fp32, on any device: gradients near those of fp32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "gradient_bench.hpp"

namespace moe {

/// Layers with routed experts alone, or all that DeepSeek-V3 has beside them.
inline settings tiny_run(bool all_parts, float capacity) {
  settings run;
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

/// In sizes that cuBLASLt takes, whatever a scale covers.
inline settings run_of_codes(fp8_scaling scaling, fp8_products products) {
  settings run = tiny_run(true, 0);
  run.model.hidden = 128;
  run.model.ffn = 256;
  run.precision = precision_kind::fp8;
  run.scaling = scaling;
  run.fp8_gemm = products;
  return run;
}

inline std::string title_of(const settings& run) {
  if (run.precision != precision_kind::fp8) return name_of(run.precision);
  return "fp8, a scale for each " + name_of(run.scaling) +
         (run.fp8_gemm == fp8_products::none ? "" : ", --fp8-gemm=" + name_of(run.fp8_gemm));
}

/// How far b is off a, as a part of a's length.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double off = 0, length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(b[i]) - a[i];
    off += difference * difference;
    length += static_cast<double>(a[i]) * a[i];
  }
  return std::sqrt(off / length);
}

/// The same gradients in less than fp32: those of fp32, but for the rounding of operands.
template <class Device, class Kernels>
int check_narrow(Device& dev, const settings& run, double tolerance) {
  settings wide = run;
  wide.precision = precision_kind::fp32;
  wide.fp8_gemm = fp8_products::none;
  gradient_bench<Device, Kernels> exact(dev, wide), narrow(dev, run);
  exact.differentiate();
  narrow.differentiate();
  int bad = 0;
  double worst = 0;
  for (std::size_t t = 0; t < exact.tensors().size(); ++t) {
    const std::vector<float> there = exact.gradient(exact.tensors()[t]);
    const std::vector<float> here = narrow.gradient(narrow.tensors()[t]);
    const double relative = distance(there, here);
    worst = std::max(worst, relative);
    if (relative > 0 && relative < tolerance) continue;
    ++bad;
    std::printf("BAD  %-18s is off by %.5f of its length\n", exact.tensors()[t].name.c_str(),
                relative);
  }
  std::printf("%-4s %s: at most %.5f of a gradient's length off fp32\n", bad == 0 ? "ok" : "BAD",
              title_of(run).c_str(), worst);
  return bad;
}

}  // namespace moe
