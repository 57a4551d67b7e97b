/// The CPU kernels between numbers of different types: conversion, quantisation, a look for
/// overflow.
#pragma once

#include <algorithm>
#include <cmath>
#include <tidepool/codec/fp8.hpp>

#include "base.hpp"

namespace moe {

class cpu_numbers : public cpu_launcher {
 public:
  cpu_numbers(device& dev, stream_ref stream, const accelerator& speed)
      : cpu_launcher(dev, stream, speed), codec_(dev, speed.bandwidth * 1e-9) {}

  void encode(const tidepool::fp8_tensor<device>& to, const_operand x) {
    codec_.encode_into(to, x.as<bf16>(), stream());
  }
  void decode(operand x, const tidepool::fp8_tensor<device>& from) {
    codec_.decode_into(x.as<bf16>(), from, stream());
  }

  void convert(operand y, const_operand x, index count) {
    launch("convert", 0, floats_in(x, count) + floats_in(y, count), [=] {
      with_elements(x, [&](const auto* from) {
        with_elements(y, [&]<class T>(T* to) {
          for (index i = 0; i < count; ++i) to[i] = T(static_cast<float>(from[i]));
        });
      });
    });
  }

  void find_not_finite(std::int32_t* found, const float* x, index count) {
    launch("find_not_finite", 0, count, [=] {
      const bool finite = std::all_of(x, x + count, [](float each) { return std::isfinite(each); });
      *found = finite ? 0 : 1;
    });
  }

  void quantise(operand codes, float* scale, operand x, index rows, index width,
                fp8_scaling scaling) {
    launch("quantise", 4 * rows * width, 2 * floats_in(x, rows * width), [=] {
      auto* const to = codes.as<e4m3>();
      auto* const from = x.as<bf16>();
      each_group(rows, width, scaling, [&](index first, index end, index group) {
        float largest = 0;
        for (index i = first; i < end; ++i) {
          largest = std::max(largest, std::abs(static_cast<float>(from[i])));
        }
        const float step = scale[group] = fp8_scale<e4m3>(largest);
        for (index i = first; i < end; ++i) {
          to[i] = e4m3(static_cast<float>(from[i]) / step);
          from[i] = bf16(static_cast<float>(to[i]) * step);
        }
      });
    });
  }

  void quantise_weight(operand codes, float* scale, operand y, const float* w, index in, index out,
                       fp8_scaling scaling) {
    launch("quantise_weight", 4 * in * out, 2 * in * out, [=] {
      auto* const to = codes.as<e4m3>();
      const bool turned = y.type == number_type::e4m3;
      each_square(in, out, scaling, [&](square s) {
        float largest = 0;
        s.each([&](index r, index c) { largest = std::max(largest, std::abs(w[r * out + c])); });
        const float step = scale[s.scale] = fp8_scale<e4m3>(largest);
        s.each([&](index r, index c) {
          const e4m3 code(w[r * out + c] / step);
          to[c * in + r] = code;
          if (turned) {
            y.as<e4m3>()[r * out + c] = code;
          } else {
            y.as<bf16>()[r * out + c] = bf16(static_cast<float>(code) * step);
          }
        });
        if (!turned || scaling == fp8_scaling::tensor) return;
        scale[turned_scales_at(in, out, scaling) +
              s.first_row / scale_block * weight_scale_stride(out, scaling) +
              s.first_column / scale_block] = step;
      });
    });
  }

  void dequantise(operand x, const_operand codes, const float* scale, index rows, index width,
                  fp8_scaling scaling) {
    launch("dequantise", rows * width, 2 * floats_in(x, rows * width), [=] {
      const auto* const from = codes.as<e4m3>();
      auto* const to = x.as<bf16>();
      each_group(rows, width, scaling, [&](index first, index end, index group) {
        for (index i = first; i < end; ++i)
          to[i] = bf16(static_cast<float>(from[i]) * scale[group]);
      });
    });
  }

 protected:
  /// What the codes of rows, or of a weight as [out][in], stand for. One as [in][out] is a weight
  /// whose widths have changed places.
  static void decode_rows(float* to, coded_operand x, index rows, index width,
                          fp8_scaling scaling) {
    const auto* const from = x.codes.as<e4m3>();
    each_group(rows, width, scaling, [&](index first, index end, index group) {
      for (index i = first; i < end; ++i) to[i] = static_cast<float>(from[i]) * x.scale[group];
    });
  }
  static void decode_weight(float* to, coded_operand w, index in, index out, fp8_scaling scaling) {
    const auto* const from = w.codes.as<e4m3>();
    each_square(in, out, scaling, [&](square s) {
      s.each([&](index r, index c) {
        to[c * in + r] = static_cast<float>(from[c * in + r]) * w.scale[s.scale];
      });
    });
  }
  /// What codes of x stand for that have scales along its rows, or along its columns.
  template <class Code>
  static void round_to_codes(float* to, const_operand x, index rows, index width,
                             fp8_scaling scaling, bool along_columns) {
    const auto* const from = x.as<bf16>();
    const auto round = [&](index first, index count, index step) {
      float largest = 0;
      for (index i = 0; i < count; ++i) {
        largest = std::max(largest, std::abs(static_cast<float>(from[first + i * step])));
      }
      const float scale = fp8_scale<Code>(largest);
      for (index i = 0; i < count; ++i) {
        const Code code(static_cast<float>(from[first + i * step]) / scale);
        to[first + i * step] = static_cast<float>(code) * scale;
      }
    };
    if (scaling == fp8_scaling::block && along_columns) {
      for (index r = 0; r < rows; r += scale_block) {
        for (index c = 0; c < width; ++c) {
          round(r * width + c, std::min(scale_block, rows - r), width);
        }
      }
      return;
    }
    each_group(rows, width, scaling,
               [&](index first, index end, index) { round(first, end - first, 1); });
  }

 private:
  /// What one scale of a weight covers.
  struct square {
    index first_row, end_row, first_column, end_column;
    index scale;

    template <class Body>
    void each(Body body) const {
      for (index r = first_row; r < end_row; ++r) {
        for (index c = first_column; c < end_column; ++c) body(r, c);
      }
    }
  };
  template <class Body>
  static void each_square(index in, index out, fp8_scaling scaling, Body body) {
    const index side = scaling == fp8_scaling::tensor ? std::max(in, out) : scale_block;
    const index stride = weight_scale_stride(in, scaling);
    for (index c = 0; c < out; c += side) {
      for (index r = 0; r < in; r += side) {
        body({r, std::min(r + side, in), c, std::min(c + side, out), c / side * stride + r / side});
      }
    }
  }

  /// Calls `body(first, end, number)` for the numbers of each scale.
  template <class Body>
  static void each_group(index rows, index width, fp8_scaling scaling, Body body) {
    if (scaling == fp8_scaling::tensor) return body(0, rows * width, 0);
    index group = 0;
    for (index r = 0; r < rows; ++r) {
      for (index c = 0; c < width; c += scale_block) {
        body(r * width + c, r * width + std::min(c + scale_block, width), group++);
      }
    }
  }

  tidepool::fp8_codec<device> codec_;
};

}  // namespace moe
