/// What the parts of a layer have in common.
#pragma once

#include <cstdint>
#include <tidepool/chunk.hpp>
#include <tidepool/codec/fp8.hpp>

#include "model_parts.hpp"
#include "parameters.hpp"

namespace moe {

/// A matrix that is multiplied and saved: as operands of GEMMs are, as codes of FP8 with their
/// scales, or as Tidepool's codec packs it.
template <class Buffer>
struct saved_matrix;

template <class Device>
struct saved_matrix<tidepool::buffer<Device>> {
  tidepool::buffer<Device> data, scale;
  tidepool::fp8_tensor<Device> packed;

  /// Whether it has memory, here or on the host.
  [[nodiscard]] bool allocated() const { return data.size() > 0 || packed.data.size() > 0; }
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
  [[nodiscard]] operand m(const buffer& b) const { return on_.operand_in(b); }

  /// Memory for such a matrix.
  void allocate(saved_matrix<buffer>& x, index rows, index width) {
    if (!on_.types.saves_codes()) {
      x.data = matrix(rows * width);
      return;
    }
    if (on_.types.packs) {
      x.packed.data = on_.template allocate<std::uint8_t>(
          static_cast<index>(tidepool::codec::packed_bytes(elements(rows, width))));
      return;
    }
    x.data = on_.template allocate<e4m3>(rows * width);
    x.scale = floats(scale_count(rows, width, on_.types.scaling));
  }
  /// Fills it with what `write(operand)` writes; returns it as GEMMs of forward read it, until the
  /// next call.
  template <class Write>
  operand fill(saved_matrix<buffer>& x, index rows, index width, Write write) {
    const operand to = on_.types.saves_codes() ? on_.work.decoded : m(x.data);
    write(to);
    if (on_.types.saves_codes()) make_codes(x, to, rows, width);
    return to;
  }
  /// One that was filled before, as GEMMs of backward read it.
  operand read(const saved_matrix<buffer>& x, index rows, index width) {
    if (!on_.types.saves_codes()) return m(x.data);
    read_codes(on_.work.decoded, x, rows, width);
    return on_.work.decoded;
  }
  /// The same where no workspace has room, since rows come from elsewhere: what GEMMs read is the
  /// saved matrix itself, or lies in `beside` its codes.
  buffer& plain(saved_matrix<buffer>& x, buffer& beside) const {
    return on_.types.saves_codes() ? beside : x.data;
  }
  /// Makes codes, if any are saved, with memory for `held` rows unless they have it; afterwards
  /// `beside` is what forward multiplies.
  void encode(saved_matrix<buffer>& x, const buffer& beside, index held, index rows, index width) {
    if (!on_.types.saves_codes()) return;
    if (!x.allocated()) allocate(x, held, width);
    if (rows > 0) make_codes(x, m(beside), rows, width);
  }
  void decode(const saved_matrix<buffer>& x, buffer& beside, index held, index rows, index width) {
    if (!on_.types.saves_codes()) return;
    if (!beside) beside = matrix(held * width);
    if (rows > 0) read_codes(m(beside), x, rows, width);
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
  /// The gradients of both factors: dx of x, and that of w is added to. `plain_x` is x as GEMMs of
  /// backward read it.
  void multiply_backward(float* dx, operand dy, operand plain_x, const parameter& w, index expert,
                         index first, index rows) {
    const index in = w.in, out = w.out();
    float* const dw = w.gradient + expert * in * out;
    const operand x = plain_x + first * in, up = dy + first * out;
    if (on_.types.multiplies_gradients) {
      const fp8_scaling scaling = on_.types.scaling;
      k_.linear_backward_of_codes(dx + first * in, dw, x, up, w.codes_for_backward(expert, scaling),
                                  rows, in, out, scaling);
      return;
    }
    k_.linear_backward_weight(dw, x, up, rows, in, out);
    k_.linear_backward_input(dx + first * in, up, w.matrix + expert * in * out, rows, in, out);
  }
  /// Calls `use(data of each...)`, with their scales behind them where those are tensors of their
  /// own: codes and scales leave in one group and come back in one.
  template <class Use, class... Matrices>
  void with(Use use, Matrices&... x) {
    if (on_.types.quantises) {
      use(x.data..., x.scale...);
    } else if (on_.types.packs) {
      use(x.packed.data...);
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

 private:
  /// Rounds x too where forward multiplies what the codes stand for.
  void make_codes(saved_matrix<buffer>& to, operand x, index rows, index width) {
    if (on_.types.packs) {
      to.packed.elements = elements(rows, width);
      k_.encode(to.packed, x);
    } else {
      k_.quantise(codes(to), p(to.scale), x, rows, width, on_.types.scaling);
    }
  }
  void read_codes(operand x, const saved_matrix<buffer>& from, index rows, index width) {
    if (on_.types.packs) {
      k_.decode(x, from.packed);
    } else {
      k_.dequantise(x, codes(from), p(from.scale), rows, width, on_.types.scaling);
    }
  }
  static std::size_t elements(index rows, index width) {
    return static_cast<std::size_t>(rows * width);
  }
};

}  // namespace moe
