/// What the parts of a layer have in common.
#pragma once

#include <cstdint>
#include <tidepool/chunk.hpp>

#include "model_parts.hpp"
#include "parameters.hpp"

namespace moe {

/// A matrix that is multiplied and saved: as operands of GEMMs are, or as codes of FP8 with their
/// scales.
template <class Buffer>
struct saved_matrix {
  Buffer data, scale;
};

template <class Device, class Kernels>
class layer_part {
 public:
  using buffer = tidepool::buffer<Device>;
  using chunk = tidepool::chunk<Device, saving_modules>;

 protected:
  layer_part(context<Device, Kernels>& on, int number)
      : on_(on),
        k_(on.kernels),
        m_(on.sizes),
        number_(number),
        norm_again_(on.offloader.recomputes("layernorm")) {}

  /// Memory for an operand of a GEMM.
  buffer matrix(index count) { return on_.allocate_operand(count); }
  operand m(const buffer& b) const { return on_.operand_in(b); }

  /// Memory for such a matrix.
  void allocate(saved_matrix<buffer>& x, index rows, index width) {
    if (!on_.types.quantises) {
      x.data = matrix(rows * width);
      return;
    }
    x.data = on_.template allocate<e4m3>(rows * width);
    x.scale = floats(scale_count(rows, width, on_.types.scaling));
  }
  /// Fills it with what `write(operand)` writes; returns it as GEMMs read it, until the next call.
  template <class Write>
  operand fill(const saved_matrix<buffer>& x, index rows, index width, Write write) {
    const operand to = on_.types.quantises ? on_.work.decoded : m(x.data);
    write(to);
    if (on_.types.quantises) {
      k_.quantise(codes(x), p(x.scale), to, rows, width, on_.types.scaling);
    }
    return to;
  }
  /// The same of one that was filled before.
  operand read(const saved_matrix<buffer>& x, index rows, index width) {
    if (!on_.types.quantises) return m(x.data);
    k_.dequantise(on_.work.decoded, codes(x), p(x.scale), rows, width, on_.types.scaling);
    return on_.work.decoded;
  }
  /// The same where no workspace has room, since rows come from elsewhere: what GEMMs read is the
  /// saved matrix itself, or lies in `beside` its codes.
  buffer& plain(saved_matrix<buffer>& x, buffer& beside) const {
    return on_.types.quantises ? beside : x.data;
  }
  /// Makes codes, if any are saved, with memory for `held` rows unless they have it; afterwards
  /// `beside` is what they stand for.
  void encode(saved_matrix<buffer>& x, const buffer& beside, index held, index rows, index width) {
    if (!on_.types.quantises) return;
    if (x.data.size() == 0) allocate(x, held, width);
    if (rows > 0) k_.quantise(codes(x), p(x.scale), m(beside), rows, width, on_.types.scaling);
  }
  void decode(const saved_matrix<buffer>& x, buffer& beside, index held, index rows, index width) {
    if (!on_.types.quantises) return;
    if (!beside) beside = matrix(held * width);
    if (rows > 0) k_.dequantise(m(beside), codes(x), p(x.scale), rows, width, on_.types.scaling);
  }
  /// y = x·w for `rows` rows from `first` on, with the matrix of one expert. `plain_x` is x as
  /// GEMMs read it where they do not multiply codes.
  void multiply(operand y, const saved_matrix<buffer>& x, operand plain_x, const parameter& w,
                index expert, index first, index rows) {
    const index in = w.in, out = w.out();
    if (!on_.types.multiplies_codes) {
      k_.linear(y + first * out, plain_x + first * in, w.matrix + expert * in * out, rows, in, out);
      return;
    }
    const fp8_scaling scaling = on_.types.scaling;
    const index scales = scaling == fp8_scaling::tensor ? 0 : scale_count(first, in, scaling);
    k_.linear_of_codes(y + first * out, {codes(x) + first * in, p(x.scale) + scales},
                       w.codes_of(expert, scaling), rows, in, out, scaling);
  }
  /// Calls `use(data of each...)`, with their scales behind them where there are scales: codes and
  /// scales leave in one group and come back in one.
  template <class Use, class... Matrices>
  void with(Use use, Matrices&... x) {
    if (on_.types.quantises) {
      use(x.data..., x.scale...);
    } else {
      use(x.data...);
    }
  }

  buffer floats(index count) { return on_.template allocate<float>(count); }
  static float* p(const buffer& b) { return b.template as<float>(); }
  static std::int32_t* ints(const buffer& b) { return b.template as<std::int32_t>(); }

  static operand codes(const saved_matrix<buffer>& x) {
    return {x.data.template as<e4m3>(), number_type::e4m3};
  }

  context<Device, Kernels>& on_;
  Kernels& k_;
  const model_sizes& m_;
  int number_;
  bool norm_again_;  // recomputed
};

}  // namespace moe
