/// A gated MLP that every token goes through: that of a dense layer, or a shared expert.
#pragma once

#include "layer_part.hpp"

namespace moe {

/// What a gated MLP saves beside its input, which is its owner's.
template <class Buffer>
struct saved_gated_mlp {
  Buffer a;  // module Act
  Buffer b;  // module Fc2
};

struct gated_mlp_parameters {
  const parameter &fc1, &fc2;
};

/// Forward and backward in two halves each, between which the owner commits or restores the input.
template <class Device, class Kernels, tidepool::fixed_string Act, tidepool::fixed_string Fc2>
class gated_mlp : layer_part<Device, Kernels> {
  using part = layer_part<Device, Kernels>;
  using part::matrix, part::m, part::on_, part::k_, part::m_, part::number_;

 public:
  using typename part::buffer, typename part::chunk;
  using saved = saved_gated_mlp<buffer>;

  gated_mlp(context<Device, Kernels>& on, int number, const gated_mlp_parameters& w, index ffn)
      : part(on, number),
        w_(w),
        ffn_(ffn),
        activation_again_(on.offloader.recomputes(Act.view())) {}

  /// Reads the input `h` for the last time.
  void forward_fc1(saved& s, const_operand h) {
    s.a = matrix(m_.tokens() * 2 * ffn_);
    k_.linear(m(s.a), h, w_.fc1.matrix, m_.tokens(), m_.hidden, 2 * ffn_);
  }
  void forward_fc2(chunk& c, saved& s, float* y) {
    s.b = matrix(m_.tokens() * ffn_);
    activate(s);
    c.template commit<Act>(number_, on_.stream, s.a);
    k_.linear(y, m(s.b), w_.fc2.matrix, m_.tokens(), ffn_, m_.hidden);
    if (activation_again_) {
      c.template commit_or_discard<Act>(number_, on_.stream, s.b);
    } else {
      // A plan may have it computed again instead.
      c.template commit_or_discard<Fc2>(number_, on_.stream, s.b);
    }
  }

  /// Leaves the gradient of fc1's output in the workspace, where `backward_fc1` finds it.
  void backward_fc2(chunk& c, saved& s, const float* gradient) {
    auto& w = on_.work;
    const const_operand dy = on_.narrowed(gradient, m_.tokens() * m_.hidden);
    const auto again = [&] { activate(s); };
    // What it is computed from comes back first, where it is computed.
    const bool input_first = activation_again_ || c.template will_recompute<Fc2>(number_);
    if (input_first) c.template restore<Act>(number_, on_.stream, s.a);
    if (activation_again_) {
      c.template restore_or_recompute<Act>(number_, on_.stream, again, s.b);
    } else {
      c.template restore_or_recompute<Fc2>(number_, on_.stream, again, s.b);
    }
    k_.linear_backward_weight(w_.fc2.gradient, m(s.b), dy, m_.tokens(), ffn_, m_.hidden);
    k_.linear_backward_input(w.db, dy, w_.fc2.matrix, m_.tokens(), ffn_, m_.hidden);
    on_.release(s.b);

    if (!input_first) c.template restore<Act>(number_, on_.stream, s.a);
    k_.swiglu_backward(w.da, w.dweight, w.db, m(s.a), on_.ones.data(), m_.tokens(), ffn_);
    on_.release(s.a);
  }
  void backward_fc1(float* dh, const_operand h) {
    const operand da = on_.work.da;
    k_.linear_backward_weight(w_.fc1.gradient, h, da, m_.tokens(), m_.hidden, 2 * ffn_);
    k_.linear_backward_input(dh, da, w_.fc1.matrix, m_.tokens(), m_.hidden, 2 * ffn_);
  }

 private:
  void activate(saved& s) { k_.swiglu(m(s.b), m(s.a), on_.ones.data(), m_.tokens(), ffn_); }

  gated_mlp_parameters w_;
  index ffn_;
  bool activation_again_;  // recomputed
};

}  // namespace moe
