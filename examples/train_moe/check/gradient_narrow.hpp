/// What `gradient_check` asks of less than fp32, on any device: gradients near those of fp32, codes
/// that are those of the weights as they are, and products of codes.
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
inline settings run_of_codes(fp8_scaling scaling) {
  settings run = tiny_run(true, 0);
  run.model.hidden = 128;
  run.model.ffn = 256;
  run.precision = precision_kind::fp8;
  run.scaling = scaling;
  run.fp8_gemm = true;
  return run;
}

inline std::string title_of(const settings& run) {
  if (run.precision != precision_kind::fp8) return name_of(run.precision);
  return "fp8, a scale for each " + name_of(run.scaling) +
         (run.fp8_gemm ? ", codes multiplied" : "");
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
  wide.fp8_gemm = false;
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

/// After an update the codes are those of the new weights, backward reads what they stand for, and
/// forward nothing but the codes.
template <class Device, class Kernels>
int check_codes(Device& dev, fp8_scaling scaling) {
  const settings run = run_of_codes(scaling);
  gradient_bench<Device, Kernels> on(dev, run);
  on.differentiate();
  on.update(0.05F);
  int bad = 0;
  for (const parameter& p : on.tensors()) {
    if (p.in == 0) continue;
    const index in = p.in, out = p.out(), each = p.elements_each();
    const index stride = weight_scale_stride(in, scaling);
    const index scales = weight_scale_count(in, out, scaling);
    const index side = scaling == fp8_scaling::tensor ? std::max(in, out) : scale_block;
    const std::vector<float> weight = on.weight(p);
    const auto codes = on.memory().read(p.codes.template as<e4m3>(), p.count);
    const auto scale = on.memory().read(p.scale, p.count / each * scales);
    const auto matrix = on.memory().read(p.matrix.template as<bf16>(), p.count);
    index wrong = 0;
    for (index i = 0; i < p.count; ++i) {
      const index r = i % each / out, c = i % out;
      const auto code = codes[static_cast<std::size_t>(i / each * each + c * in + r)];
      const float step =
          scale[static_cast<std::size_t>(i / each * scales + c / side * stride + r / side)];
      const float value = weight[static_cast<std::size_t>(i)];
      const float decoded = static_cast<float>(code) * step;
      if (code.bits != e4m3(value / step).bits ||
          static_cast<float>(matrix[static_cast<std::size_t>(i)]) != decoded) {
        ++wrong;
      }
    }
    if (wrong == 0) continue;
    ++bad;
    std::printf("BAD  %-18s has %lld codes of %lld that are not those of its weights\n",
                p.name.c_str(), static_cast<long long>(wrong), static_cast<long long>(p.count));
  }
  const double before = on.loss();
  const auto clear = [&](auto memory_of) {
    for (const parameter& p : on.tensors()) {
      if (p.in == 0) continue;
      const operand what = memory_of(p);
      on.memory().write(
          what.template as<std::uint8_t>(),
          std::vector<std::uint8_t>(static_cast<std::size_t>(p.count * bytes_of(what.type))));
    }
    return on.loss();
  };
  if (clear([](const parameter& p) { return p.matrix; }) != before) {
    ++bad;
    std::printf("BAD  forward reads weights that are no codes\n");
  }
  if (clear([](const parameter& p) { return p.codes; }) == before) {
    ++bad;
    std::printf("BAD  forward does not read codes\n");
  }
  std::printf("%-4s a scale for each %s: codes after an update\n", bad == 0 ? "ok" : "BAD",
              name_of(scaling).c_str());
  return bad;
}

/// A product of codes against the sum of what they stand for, in double. `tolerance` is what the
/// accumulation may be off, as a part of the sum of magnitudes.
template <class Device, class Kernels>
int check_product(Device& dev, fp8_scaling scaling, number_type type, double tolerance) {
  constexpr index all_rows = 40, in = 384, out = 256;  // three blocks: a row of scales is filled up
  settings run = run_of_codes(scaling);
  run.model.hidden = in;
  run.model.ffn = out;
  run.model.seq = all_rows;
  auto stream = dev.make_stream();
  Kernels k(dev, stream.ref(), run);
  const transfer<Device> memory(dev, stream.ref());
  // Magnitudes that differ from block to block, so that no scale will do for another.
  const auto number = [](index i, index r, index c, std::uint64_t seed) {
    const float unit =
        static_cast<float>(mix(seed + static_cast<std::uint64_t>(i)) >> 40) * 0x1p-23F - 1;
    return std::ldexp(unit, static_cast<int>((3 * r + 2 * c) % 5));
  };
  std::vector<bf16> x;
  std::vector<float> w;
  for (index i = 0; i < all_rows * in; ++i) {
    x.push_back(bf16(number(i, i / in, i % in / scale_block, 1)));
  }
  for (index i = 0; i < in * out; ++i) {
    w.push_back(number(i, i / out / scale_block, i % out / scale_block, 2));
  }
  device_array<Device, bf16> x_there(dev, all_rows * in, "x"), matrix(dev, in * out, "weight");
  device_array<Device, float> w_there(dev, in * out, "weight");
  device_array<Device, e4m3> x_codes(dev, all_rows * in, "x"), w_codes(dev, in * out, "weight");
  device_array<Device, float> x_scale(dev, scale_count(all_rows, in, scaling), "scales");
  device_array<Device, float> w_scale(dev, weight_scale_count(in, out, scaling), "scales");
  device_array<Device, float> y(dev, all_rows * out, "y");
  memory.write(x_there.data(), x);
  memory.write(w_there.data(), w);
  const operand codes_of_x(x_codes.data(), number_type::e4m3);
  const operand codes_of_w(w_codes.data(), number_type::e4m3);
  const operand to(y.data(), type);
  k.quantise(codes_of_x, x_scale.data(), {x_there.data(), number_type::bf16}, all_rows, in,
             scaling);
  k.quantise_weight(codes_of_w, w_scale.data(), {matrix.data(), number_type::bf16}, w_there.data(),
                    in, out, scaling);
  // In two parts, as rows of two experts.
  constexpr index first_of_second = 32;
  for (const auto& [first, rows] :
       {std::pair{index{0}, first_of_second}, {first_of_second, all_rows - first_of_second}}) {
    const index scales = scaling == fp8_scaling::tensor ? 0 : scale_count(first, in, scaling);
    k.linear_of_codes(to + first * out, {codes_of_x + first * in, x_scale.data() + scales},
                      {codes_of_w, w_scale.data()}, rows, in, out, scaling);
  }
  const std::vector<bf16> a = memory.read(x_there.data(), all_rows * in);
  const std::vector<bf16> b = memory.read(matrix.data(), in * out);
  std::vector<double> product;
  if (type == number_type::bf16) {
    for (const bf16 each : memory.read(to.as<bf16>(), all_rows * out)) {
      product.push_back(static_cast<float>(each));
    }
  } else {
    for (const float each : memory.read(y.data(), all_rows * out)) product.push_back(each);
  }
  double worst = 0;
  for (index r = 0; r < all_rows; ++r) {
    for (index c = 0; c < out; ++c) {
      double sum = 0, magnitudes = 0;
      for (index i = 0; i < in; ++i) {
        const double term =
            static_cast<double>(static_cast<float>(a[static_cast<std::size_t>(r * in + i)])) *
            static_cast<float>(b[static_cast<std::size_t>(i * out + c)]);
        sum += term;
        magnitudes += std::abs(term);
      }
      const double rounding = type == number_type::bf16 ? std::abs(sum) * 0x1p-8 : 0;
      const double off = std::abs(product[static_cast<std::size_t>(r * out + c)] - sum);
      // Not a number is not fine either.
      worst = std::max(worst, std::isfinite(off) ? (off - rounding) / magnitudes : HUGE_VAL);
    }
  }
  const bool good = worst < tolerance;
  std::printf(
      "%-4s a scale for each %s: products of codes as %s are off by at most %.2e of what "
      "is added up\n",
      good ? "ok" : "BAD", name_of(scaling).c_str(), type == number_type::bf16 ? "bf16" : "fp32",
      std::max(worst, 0.0));
  return good ? 0 : 1;
}

/// All that is multiplied as codes. `accumulation` is what the device's sums may be off.
template <class Device, class Kernels>
int check_all_codes(Device& dev, double accumulation) {
  int bad = 0;
  for (const auto scaling : {fp8_scaling::tensor, fp8_scaling::block}) {
    for (const auto type : {number_type::bf16, number_type::fp32}) {
      bad += check_product<Device, Kernels>(dev, scaling, type, accumulation);
    }
    bad += check_codes<Device, Kernels>(dev, scaling);
    bad += check_narrow<Device, Kernels>(dev, run_of_codes(scaling), 0.15);
  }
  return bad;
}

}  // namespace moe
