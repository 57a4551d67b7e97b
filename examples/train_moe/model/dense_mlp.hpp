/// The MLP of a dense layer, its second part, forward and backward.
#pragma once

#include <utility>

#include "gated_mlp.hpp"

namespace moe {

/// What the second part of a dense layer saves in forward for its backward.
template <class Buffer>
struct saved_dense_mlp {
  Buffer x, rstd;               // mlp_norm
  Buffer h;                     // mlp_fc1
  saved_gated_mlp<Buffer> mlp;  // mlp_act, mlp_fc2
};

struct dense_mlp_parameters {
  const parameter& gain;
  gated_mlp_parameters mlp;
};

template <class Device, class Kernels>
class dense_mlp : layer_part<Device, Kernels> {
  using part = layer_part<Device, Kernels>;
  using part::floats, part::p, part::matrix, part::m;
  using part::on_, part::k_, part::m_, part::number_, part::norm_again_;

 public:
  using typename part::buffer, typename part::chunk;
  using saved = saved_dense_mlp<buffer>;

  dense_mlp(context<Device, Kernels>& on, int number, const dense_mlp_parameters& w)
      : part(on, number), gain_(w.gain), mlp_(on, number, w.mlp, on.sizes.dense_ffn) {}

  /// Returns the residual stream that the next layer reads.
  buffer forward(chunk& c, saved& s, buffer x) {
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("mlp", stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden;
    s.x = std::move(x);
    s.h = matrix(tokens * hidden);
    s.rstd = floats(tokens);
    normalise(s);
    buffer residual = s.x.share();
    c.template commit<"mlp_norm">(number_, stream, s.x, s.rstd);

    mlp_.forward_fc1(s.mlp, m(s.h));
    if (norm_again_) {
      c.template commit_or_discard<"layernorm">(number_, stream, s.h);
    } else {
      c.template commit_or_discard<"mlp_fc1">(number_, stream, s.h);
    }
    mlp_.forward_fc2(c, s.mlp, on_.work.projected);

    buffer next = floats(tokens * hidden);
    k_.add(p(next), p(residual), on_.work.projected, tokens * hidden);
    residual.reset(stream);
    return next;
  }

  /// `dx` is the gradient of what `forward` returned and becomes that of its input.
  void backward(chunk& c, saved& s, float* dx) {
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("mlp backward", stream, number_);
    float* const dh = on_.work.dh;
    mlp_.backward_fc2(c, s.mlp, dx);

    const auto again = [&] { normalise(s); };
    const bool input_first = norm_again_ || c.template will_recompute<"mlp_fc1">(number_);
    if (input_first) c.template restore<"mlp_norm">(number_, stream, s.x, s.rstd);
    if (norm_again_) {
      c.template restore_or_recompute<"layernorm">(number_, stream, again, s.h);
    } else {
      c.template restore_or_recompute<"mlp_fc1">(number_, stream, again, s.h);
    }
    mlp_.backward_fc1(dh, m(s.h));
    on_.release(s.h);

    if (!input_first) c.template restore<"mlp_norm">(number_, stream, s.x, s.rstd);
    k_.rmsnorm_backward(dx, gain_.gradient, dh, p(s.x), p(s.rstd), gain_.weight, m_.tokens(),
                        m_.hidden);
    on_.release(s.x, s.rstd);
  }

 private:
  void normalise(saved& s) {
    k_.rmsnorm(m(s.h), p(s.rstd), p(s.x), gain_.weight, m_.tokens(), m_.hidden);
  }

  const parameter& gain_;
  gated_mlp<Device, Kernels, "mlp_act", "mlp_fc2"> mlp_;
};

}  // namespace moe
