/// Attention, the first part of a layer, forward and backward.
///
/// This is where Tidepool meets the model. For each module there are two lines: a `commit` when its
/// forward is over, and a `restore` before its backward. All else is what the trainer does anyway.
#pragma once

#include <utility>

#include "layer_part.hpp"

namespace moe {

/// What attention saves in forward for its backward, by the module that saves it.
template <class Buffer>
struct saved_attention {
  Buffer x, rstd;      // attn_norm
  Buffer h;            // qkv_linear
  Buffer qkv, o, lse;  // core_attn
  Buffer proj_input;   // attn_proj: the same memory as o
};

/// The tensors of attention.
struct attention_parameters {
  const parameter &gain, &qkv, &proj;
};

template <class Device, class Kernels>
class attention : layer_part<Device, Kernels> {
  using part = layer_part<Device, Kernels>;
  using part::floats, part::p, part::matrix, part::m;
  using part::on_, part::k_, part::m_, part::number_, part::norm_again_;

 public:
  using typename part::buffer, typename part::chunk;
  using saved = saved_attention<buffer>;

  attention(context<Device, Kernels>& on, int number, const attention_parameters& w)
      : part(on, number), w_(w) {}

  /// `x` is the residual stream; returns what the next part of the layer reads.
  buffer forward(chunk& c, saved& s, buffer x) {
    s.x = std::move(x);
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("attention", stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden;

    s.h = matrix(tokens * hidden);
    s.rstd = floats(tokens);
    normalise(s);
    buffer residual = s.x.share();  // a second owner, so that x may leave before the residual add
    // The first line that Tidepool adds. x and rstd start for the host now; if they leave, the two
    // handles are empty afterwards, if not (module disabled, tensor too small), nothing happened.
    c.template commit<"attn_norm">(number_, stream, s.x, s.rstd);

    s.qkv = matrix(tokens * 3 * hidden);
    k_.linear(m(s.qkv), m(s.h), w_.qkv.matrix, tokens, hidden, 3 * hidden);
    if (norm_again_) {
      // What backward can compute again need not be kept, and need not leave either.
      c.template commit_or_discard<"layernorm">(number_, stream, s.h);
    } else {
      // As commit, but a plan may find that computing it again is cheaper than moving it.
      c.template commit_or_discard<"qkv_linear">(number_, stream, s.h);
    }

    s.o = matrix(tokens * hidden);
    s.lse = floats(tokens * m_.heads);
    k_.attention(m(s.o), p(s.lse), m(s.qkv), shape());
    s.proj_input = s.o.share();  // two modules save the same memory: it is copied once
    c.template commit<"core_attn">(number_, stream, s.qkv, s.o, s.lse);

    k_.linear(on_.work.projected, m(s.proj_input), w_.proj.matrix, tokens, hidden, hidden);
    c.template commit<"attn_proj">(number_, stream, s.proj_input);

    buffer next = floats(tokens * hidden);
    k_.add(p(next), p(residual), on_.work.projected, tokens * hidden);
    residual.reset(stream);
    return next;
  }

  /// `dx` is the gradient of what `forward` returned and becomes that of its input.
  void backward(chunk& c, saved& s, float* dx) {
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("attention backward", stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden;
    const operand dqkv = on_.work.dqkv;
    const operand dout = on_.work.dout;
    float* const dh = on_.work.dh;

    c.template restore<"attn_proj">(number_, stream, s.proj_input);
    const const_operand dy = on_.narrowed(dx, tokens * hidden);
    k_.linear_backward_weight(w_.proj.gradient, m(s.proj_input), dy, tokens, hidden, hidden);
    k_.linear_backward_input(dout, dy, w_.proj.matrix, tokens, hidden, hidden);
    on_.release(s.proj_input);

    c.template restore<"core_attn">(number_, stream, s.qkv, s.o, s.lse);
    k_.attention_backward(dqkv, dout, m(s.qkv), m(s.o), p(s.lse), shape());
    on_.release(s.qkv, s.o, s.lse);

    // What it is computed from comes first where it is computed again.
    const auto again = [&] { normalise(s); };
    const bool input_first = norm_again_ || c.template will_recompute<"qkv_linear">(number_);
    if (input_first) c.template restore<"attn_norm">(number_, stream, s.x, s.rstd);
    if (norm_again_) {
      c.template restore_or_recompute<"layernorm">(number_, stream, again, s.h);
    } else {
      c.template restore_or_recompute<"qkv_linear">(number_, stream, again, s.h);
    }
    k_.linear_backward_weight(w_.qkv.gradient, m(s.h), dqkv, tokens, hidden, 3 * hidden);
    k_.linear_backward_input(dh, dqkv, w_.qkv.matrix, tokens, hidden, 3 * hidden);
    on_.release(s.h);

    // The second line that Tidepool adds: the same handles, full again, perhaps at other addresses.
    // The stream waits for their reload, the host does not.
    if (!input_first) c.template restore<"attn_norm">(number_, stream, s.x, s.rstd);
    k_.rmsnorm_backward(dx, w_.gain.gradient, dh, p(s.x), p(s.rstd), w_.gain.weight, tokens,
                        hidden);
    on_.release(s.x, s.rstd);
  }

 private:
  void normalise(saved& s) {
    k_.rmsnorm(m(s.h), p(s.rstd), p(s.x), w_.gain.weight, m_.tokens(), m_.hidden);
  }
  attention_shape shape() const { return {m_.batch, m_.seq, m_.heads, m_.head_size()}; }

  attention_parameters w_;
};

}  // namespace moe
