/// What `gradient_check` asks of linear layers on any device: that they are right for any number of
/// rows, as experts get them, and for rows that no wide load can read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "gradient_narrow.hpp"

namespace moe {

/// A matrix of small multiples of 1/16: every type holds them, and fp32 holds any sum of products.
inline std::vector<float> small_numbers(index count, std::uint64_t seed) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(static_cast<int>(mix(seed + i) % 17) - 8) / 16;
  }
  return numbers;
}

/// How far apart elements lie, down and across.
struct strides {
  index row, step;
};
/// to[m][n] += a·b.
inline void add_product(std::vector<float>& to, const std::vector<float>& a, strides of_a,
                        const std::vector<float>& b, strides of_b, index m, index n, index k) {
  const auto at = [](index i) { return static_cast<std::size_t>(i); };
  for (index i = 0; i < m; ++i) {
    for (index l = 0; l < k; ++l) {
      const float factor = a[at(i * of_a.row + l * of_a.step)];
      for (index j = 0; j < n; ++j) {
        to[at(i * n + j)] += factor * b[at(l * of_b.row + j * of_b.step)];
      }
    }
  }
}

/// Linear layers of `in` by `out`, forward and backward, with operands of one type.
template <class Device, class Kernels, class T>
class linear_check {
 public:
  linear_check(Device& dev, number_type type, index in, index out)
      : dev_(dev), type_(type), in_(in), out_(out) {}

  /// Whether everything is right to the bit.
  bool with(index rows) {
    const auto x = small_numbers(rows * in_, 1), w = small_numbers(in_ * out_, 2),
               dy = small_numbers(rows * out_, 3);
    const auto typed_x = typed(x), typed_w = typed(w), typed_dy = typed(dy);
    device_array<Device, T> y(dev_, rows * out_, "y");
    device_array<Device, float> dx(dev_, rows * in_, "dx"), dw(dev_, in_ * out_, "dw");
    kernels_.fill(dw.data(), dw.size(), 1);
    kernels_.linear({y.data(), type_}, {typed_x.data(), type_}, {typed_w.data(), type_}, rows, in_,
                    out_);
    kernels_.linear_backward_input(dx.data(), {typed_dy.data(), type_}, {typed_w.data(), type_},
                                   rows, in_, out_);
    kernels_.linear_backward_weight(dw.data(), {typed_x.data(), type_}, {typed_dy.data(), type_},
                                    rows, in_, out_);

    std::vector<float> sums(static_cast<std::size_t>(rows * out_), 0);
    add_product(sums, x, {in_, 1}, w, {out_, 1}, rows, out_, in_);
    bool good = std::ranges::equal(
        transfer_.read(y.data(), y.size()), sums, {},
        [](T each) { return static_cast<float>(each); },
        [](float each) { return static_cast<float>(T(each)); });
    sums.assign(static_cast<std::size_t>(rows * in_), 0);
    add_product(sums, dy, {out_, 1}, w, {1, out_}, rows, in_, out_);
    good = good && transfer_.read(dx.data(), dx.size()) == sums;
    sums.assign(static_cast<std::size_t>(in_ * out_), 1);
    add_product(sums, x, {1, in_}, dy, {out_, 1}, in_, out_, rows);
    return good && transfer_.read(dw.data(), dw.size()) == sums;
  }

 private:
  device_array<Device, T> typed(const std::vector<float>& numbers) {
    device_array<Device, T> to(dev_, static_cast<index>(numbers.size()), "a factor");
    transfer_.write(to.data(), std::vector<T>(numbers.begin(), numbers.end()));
    return to;
  }

  Device& dev_;
  number_type type_;
  index in_, out_;
  typename Device::stream stream_ = dev_.make_stream();
  Kernels kernels_{dev_, stream_.ref(), tiny_run(false, 0)};
  transfer<Device> transfer_{dev_, stream_.ref()};
};

/// Returns how many numbers of rows are wrong.
template <class Device, class Kernels>
int check_rows(Device& dev) {
  int bad = 0;
  const auto check = [&]<class T>(T /*of*/, number_type type, const char* name, index out) {
    linear_check<Device, Kernels, T> linear(dev, type, 24, out);
    for (const index rows : {1, 2, 3, 5, 8, 31, 63, 64, 65, 100, 128, 129, 1000, 1025, 4100}) {
      if (linear.with(rows)) continue;
      ++bad;
      std::printf("BAD  linear layers of %lld rows, 24 by %lld, in %s\n",
                  static_cast<long long>(rows), static_cast<long long>(out), name);
    }
  };
  for (const index out : {40, 33}) {
    check(float{}, number_type::fp32, "fp32", out);
    check(bf16{}, number_type::bf16, "bf16", out);
    check(fp16{}, number_type::fp16, "fp16", out);
  }
  std::printf("%-4s linear layers of 1 to 4100 rows, to the bit\n", bad == 0 ? "ok" : "BAD");
  return bad;
}

}  // namespace moe
