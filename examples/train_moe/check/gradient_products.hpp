/// What `gradient_check` asks of GEMMs that multiply codes of FP8, on any device: codes that are
/// those of the weights as they are, and products that are sums of what codes stand for.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gradient_narrow.hpp"

namespace moe {

/// After an update the codes are those of the new weights, backward reads them or what they stand
/// for, and forward nothing but the codes.
template <class Device, class Kernels>
int check_codes(Device& dev, fp8_scaling scaling, fp8_products products) {
  const settings run = run_of_codes(scaling, products);
  gradient_bench<Device, Kernels> on(dev, run);
  on.differentiate();
  on.update(0.05F);
  int bad = 0;
  for (const parameter& p : on.tensors()) {
    if (p.in == 0) continue;
    const index in = p.in, out = p.out(), each = p.elements_each();
    const index stride = weight_scale_stride(in, scaling);
    const index scales = p.scales_each(scaling), turned_at = turned_scales_at(in, out, scaling);
    const index turned_stride = weight_scale_stride(out, scaling);
    const bool coded = p.matrix.type == number_type::e4m3;
    const index side = scaling == fp8_scaling::tensor ? std::max(in, out) : scale_block;
    const std::vector<float> weight = on.weight(p);
    const auto codes = on.memory().read(p.codes.template as<e4m3>(), p.count);
    const auto scale = on.memory().read(p.scale, p.count / each * scales);
    const auto matrix =
        on.memory().read(p.matrix.template as<std::uint8_t>(), p.count * bytes_of(p.matrix.type));
    index wrong = 0;
    for (index i = 0; i < p.count; ++i) {
      const index r = i % each / out, c = i % out;
      const auto code = codes[static_cast<std::size_t>(i / each * each + c * in + r)];
      const float step =
          scale[static_cast<std::size_t>(i / each * scales + c / side * stride + r / side)];
      const float value = weight[static_cast<std::size_t>(i)];
      bool good = code.bits == e4m3(value / step).bits;
      if (coded) {
        const index at = i / each * scales + turned_at + r / side * turned_stride + c / side;
        good = good && matrix[static_cast<std::size_t>(i)] == code.bits &&
               scale[static_cast<std::size_t>(at)] == step;
      } else {
        bf16 decoded;
        std::memcpy(&decoded, &matrix[static_cast<std::size_t>(2 * i)], sizeof decoded);
        good = good && static_cast<float>(decoded) == static_cast<float>(code) * step;
      }
      wrong += good ? 0 : 1;
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
  std::printf("%-4s %s: codes after an update\n", bad == 0 ? "ok" : "BAD", title_of(run).c_str());
  return bad;
}

/// Numbers of all magnitudes below two to the power of `power(row, column)`.
template <class T, class Power>
std::vector<T> uneven(index rows, index width, std::uint64_t seed, Power power) {
  std::vector<T> numbers;
  for (index i = 0; i < rows * width; ++i) {
    const float unit =
        static_cast<float>(mix(seed + static_cast<std::uint64_t>(i)) >> 40) * 0x1p-23F - 1;
    numbers.push_back(T(std::ldexp(unit, static_cast<int>(power(i / width, i % width)))));
  }
  return numbers;
}

/// Squares of a weight differ, so that no scale will do for another.
inline std::vector<float> uneven_weight(index in, index out, std::uint64_t seed) {
  return uneven<float>(in, out, seed, [](index r, index c) {
    return (3 * (r / scale_block) + 2 * (c / scale_block)) % 5;
  });
}

/// How far `sums` are off `start` + a·b, as a part of what each adds up. They may be rounded to
/// `rounding` of themselves.
template <class A, class B>
double worst_sum(const std::vector<float>& sums, index columns, index terms, double start,
                 double rounding, A a, B b) {
  double worst = 0;
  for (index at = 0; at < static_cast<index>(sums.size()); ++at) {
    double sum = start, magnitudes = std::abs(start);
    for (index i = 0; i < terms; ++i) {
      const double term = static_cast<double>(a(at / columns, i)) * b(i, at % columns);
      sum += term;
      magnitudes += std::abs(term);
    }
    const double off = std::abs(sums[static_cast<std::size_t>(at)] - sum);
    // Not a number is not fine either.
    const double part = (off - rounding * std::abs(sum)) / magnitudes;
    worst = std::max(worst, std::isfinite(off) ? part : HUGE_VAL);
  }
  return worst;
}

/// A product of codes against the sum of what they stand for, in double. `tolerance` is what the
/// accumulation may be off, as a part of the sum of magnitudes.
template <class Device, class Kernels>
int check_product(Device& dev, fp8_scaling scaling, number_type type, double tolerance) {
  constexpr index all_rows = 40, in = 384, out = 256;  // three blocks: a row of scales is filled up
  settings run = run_of_codes(scaling, fp8_products::forward);
  run.model.hidden = in;
  run.model.ffn = out;
  run.model.seq = all_rows;
  auto stream = dev.make_stream();
  Kernels k(dev, stream.ref(), run);
  const transfer<Device> memory(dev, stream.ref());
  const auto x = uneven<bf16>(all_rows, in, 1,
                              [](index r, index c) { return (3 * r + 2 * (c / scale_block)) % 5; });
  const std::vector<float> w = uneven_weight(in, out, 2);
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
  std::vector<float> product;
  if (type == number_type::bf16) {
    for (const bf16 each : memory.read(to.as<bf16>(), all_rows * out)) {
      product.push_back(static_cast<float>(each));
    }
  } else {
    product = memory.read(y.data(), all_rows * out);
  }
  const double worst = worst_sum(
      product, out, in, 0, type == number_type::bf16 ? 0x1p-8 : 0,
      [&](index r, index i) { return static_cast<float>(a[static_cast<std::size_t>(r * in + i)]); },
      [&](index i, index c) {
        return static_cast<float>(b[static_cast<std::size_t>(i * out + c)]);
      });
  const bool good = worst < tolerance;
  std::printf(
      "%-4s a scale for each %s: products of codes as %s are off by at most %.2e of what "
      "is added up\n",
      good ? "ok" : "BAD", name_of(scaling).c_str(), type == number_type::bf16 ? "bf16" : "fp32",
      std::max(worst, 0.0));
  return good ? 0 : 1;
}

/// What codes of x stand for, with one scale for all numbers that `group(row, column)` puts
/// together.
template <class Code, class T, class Group>
std::vector<float> coded(const std::vector<T>& x, index width, Group group) {
  std::map<index, float> largest;
  std::vector<float> result;
  const auto each = [&](auto body) {
    for (index i = 0; i < static_cast<index>(x.size()); ++i) {
      body(static_cast<float>(x[static_cast<std::size_t>(i)]), group(i / width, i % width));
    }
  };
  each([&](float value, index of) { largest[of] = std::max(largest[of], std::abs(value)); });
  each([&](float value, index of) {
    const float scale = fp8_scale<Code>(largest[of]);
    result.push_back(static_cast<float>(Code(value / scale)) * scale);
  });
  return result;
}

/// Both gradients of one expert's rows against sums, in double, of what codes made here stand for.
template <class Device, class Kernels>
int check_backward(Device& dev, fp8_scaling scaling, index rows, double tolerance) {
  constexpr index in = 256, out = 384;
  settings run = run_of_codes(scaling, fp8_products::both);
  run.model.hidden = out;
  run.model.ffn = in;
  run.model.seq = rows;
  auto stream = dev.make_stream();
  Kernels k(dev, stream.ref(), run);
  const transfer<Device> memory(dev, stream.ref());
  // Rows and columns differ by more than codes do, so that no scale will do for its neighbour.
  const auto x =
      uneven<bf16>(rows, in, 3, [](index r, index c) { return 6 * (r % 4) + 6 * (c % 5) - 21; });
  const auto dy =
      uneven<bf16>(rows, out, 4, [](index r, index c) { return 11 * (r % 4) + 8 * (c % 5) - 32; });
  const std::vector<float> w = uneven_weight(in, out, 5);
  const index turned_at = turned_scales_at(in, out, scaling);
  device_array<Device, bf16> x_there(dev, rows * in, "x"), dy_there(dev, rows * out, "dy");
  device_array<Device, float> w_there(dev, in * out, "w"), dx(dev, rows * in, "dx");
  device_array<Device, float> dw(dev, in * out, "dw");
  device_array<Device, e4m3> turned(dev, in * out, "codes"), codes(dev, in * out, "codes");
  device_array<Device, float> scale(dev, turned_at + weight_scale_count(out, in, scaling), "scale");
  memory.write(x_there.data(), x);
  memory.write(dy_there.data(), dy);
  memory.write(w_there.data(), w);
  k.fill(dw.data(), in * out, 1);
  k.quantise_weight({turned.data(), number_type::e4m3}, scale.data(),
                    {codes.data(), number_type::e4m3}, w_there.data(), in, out, scaling);
  k.linear_backward_of_codes(
      dx.data(), dw.data(), {x_there.data(), number_type::bf16},
      {dy_there.data(), number_type::bf16},
      {const_operand(codes.data(), number_type::e4m3), scale.data() + turned_at}, rows, in, out,
      scaling);

  const index one = scaling == fp8_scaling::tensor ? 0 : 1;  // 0: all in one group
  const auto along_row = [one](index r, index c) { return one * (r << 20 | c / scale_block); };
  const auto along_column = [one](index r, index c) { return one * (c << 20 | r / scale_block); };
  const auto square = [one](index r, index c) {
    return one * ((r / scale_block) << 20 | c / scale_block);
  };
  const auto at = [](const std::vector<float>& of, index i) {
    return of[static_cast<std::size_t>(i)];
  };
  const auto w_coded = coded<e4m3>(w, out, square), up = coded<e5m2>(dy, out, along_row);
  const auto x_down = coded<e4m3>(x, in, along_column), down = coded<e5m2>(dy, out, along_column);
  const double off_dx = worst_sum(
      memory.read(dx.data(), rows * in), in, out, 0, 0,
      [&](index r, index i) { return at(up, r * out + i); },
      [&](index i, index c) { return at(w_coded, c * out + i); });
  const double off_dw = worst_sum(
      memory.read(dw.data(), in * out), out, rows, 1, 0,
      [&](index r, index i) { return at(x_down, i * in + r); },
      [&](index i, index c) { return at(down, i * out + c); });
  const bool good = off_dx < tolerance && off_dw < tolerance;
  std::printf(
      "%-4s a scale for each %s: gradients of %lld rows as products of codes are off by at most "
      "%.2e (x) and %.2e (w) of what is added up\n",
      good ? "ok" : "BAD", name_of(scaling).c_str(), static_cast<long long>(rows), off_dx, off_dw);
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
    // Less than a block, and more, which zeros fill up to a multiple of 16.
    for (const index rows : {8, 264}) {
      bad += check_backward<Device, Kernels>(dev, scaling, rows, accumulation);
    }
    for (const auto& [products, most] :
         {std::pair{fp8_products::forward, 0.15}, {fp8_products::both, 0.2}}) {
      bad += check_codes<Device, Kernels>(dev, scaling, products);
      bad += check_narrow<Device, Kernels>(dev, run_of_codes(scaling, products), most);
    }
  }
  return bad;
}

}  // namespace moe
