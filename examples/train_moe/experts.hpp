/// Routed experts, and a shared one beside them: the second part of a layer, forward and backward.
#pragma once

#include <utility>

#include "routed_part.hpp"

namespace moe {

/// What routed experts save in forward for their backward, by the module that saves it.
template <class Buffer>
struct saved_experts : saved_routing<Buffer> {
  Buffer xs;  // expert_fc1   ⎫
  Buffer a;   // moe_act      ⎬ or all three: fused_group_mlp
  Buffer b;   // expert_fc2   ⎭
};

template <class Device, class Kernels>
class experts : routed_part<Device, Kernels> {
  using part = routed_part<Device, Kernels>;
  using part::floats, part::p, part::ints;
  using part::on_, part::k_, part::m_, part::number_, part::norm_again_;
  using part::w_, part::shared_, part::activation_again_;

 public:
  using typename part::buffer, typename part::chunk;
  using saved = saved_experts<buffer>;

  experts(context<Device, Kernels>& on, int number, const experts_parameters& w)
      : part(on, number, w), rows_again_(on.offloader.recomputes("moe_permute")) {}

  /// Returns the residual stream that the next layer reads; `balance` receives the load-balancing
  /// loss. Blocks the host once, for the number of tokens that each expert got.
  buffer forward(chunk& c, saved& s, buffer x, float* balance) {
    s.x = std::move(x);
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("experts", stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden, ffn = m_.ffn;

    s.h = floats(tokens * hidden);
    s.rstd = floats(tokens);
    k_.rmsnorm(p(s.h), p(s.rstd), p(s.x), w_.gain.weight, tokens, hidden);
    buffer residual = s.x.share();
    c.template commit<"mlp_norm">(number_, stream, s.x, s.rstd);

    if (shared_) residual = part::add_shared(c, s, std::move(residual));

    part::choose(s, balance);
    on_.device.synchronize(stream);  // the one wait of the host: how many rows has each expert?
    const index rows = part::lay_out(s);

    s.xs = floats(rows * hidden);
    k_.gather(p(s.xs), p(s.h), ints(s.source), rows, m_.top_k, hidden);
    s.a = floats(rows * 2 * ffn);
    each_expert(s, [&](index e, index first, index count) {
      k_.linear(p(s.a) + first * 2 * ffn, p(s.xs) + first * hidden,
                w_.fc1.weight + e * hidden * 2 * ffn, count, hidden, 2 * ffn);
    });
    if (rows_again_) {
      c.template discard<"moe_permute">(number_, stream, s.xs);
    } else {
      c.template commit<"expert_fc1">(number_, stream, s.xs);
    }

    s.b = floats(rows * ffn);
    k_.swiglu(p(s.b), p(s.a), p(s.weight), rows, ffn);
    c.template commit<"moe_act">(number_, stream, s.a);

    float* const y = on_.work.expert_rows;
    each_expert(s, [&](index e, index first, index count) {
      k_.linear(y + first * hidden, p(s.b) + first * ffn, w_.fc2.weight + e * ffn * hidden, count,
                ffn, hidden);
    });
    if (on_.offloader.template enabled<"fused_group_mlp">()) {
      // The three as one group: one event and one place in the window instead of three.
      c.template commit<"fused_group_mlp">(number_, stream, s.xs, s.a, s.b);
    } else if (activation_again_) {
      c.template discard<"moe_act">(number_, stream, s.b);
    } else {
      c.template commit<"expert_fc2">(number_, stream, s.b);
    }

    buffer next = floats(tokens * hidden);
    k_.combine(p(next), p(residual), y, ints(s.row), tokens, m_.top_k, hidden);
    residual.reset(stream);
    if (norm_again_) {
      c.template discard<"layernorm">(number_, stream, s.h);
      c.template commit<"router">(number_, stream, s.probs, s.choice, s.row, s.source, s.weight,
                                  s.counts);
    } else {
      c.template commit<"router">(number_, stream, s.h, s.probs, s.choice, s.row, s.source,
                                  s.weight, s.counts);
    }
    return next;
  }

  /// `dx` is the gradient of what `forward` returned and becomes that of its input.
  void backward(chunk& c, saved& s, float* dx) {
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("experts backward", stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden, ffn = m_.ffn;
    const index rows = s.first_row.back();
    auto& w = on_.work;
    const bool fused = on_.offloader.template enabled<"fused_group_mlp">();

    if (norm_again_) {
      c.template restore<"router">(number_, stream, s.probs, s.choice, s.row, s.source, s.weight,
                                   s.counts);
    } else {
      c.template restore<"router">(number_, stream, s.h, s.probs, s.choice, s.row, s.source,
                                   s.weight, s.counts);
    }
    k_.gather(w.expert_rows, dx, ints(s.source), rows, m_.top_k, hidden);

    if (fused) {
      c.template restore<"fused_group_mlp">(number_, stream, s.xs, s.a, s.b);
    } else if (activation_again_) {
      c.template restore<"moe_act">(number_, stream, s.a);
      c.template recompute<"moe_act">(
          number_, stream, [&] { k_.swiglu(p(s.b), p(s.a), p(s.weight), rows, ffn); }, s.b);
    } else {
      c.template restore<"expert_fc2">(number_, stream, s.b);
    }
    each_expert(s, [&](index e, index first, index count) {
      const float* const dy = w.expert_rows + first * hidden;
      k_.linear_backward_weight(w_.fc2.gradient + e * ffn * hidden, p(s.b) + first * ffn, dy, count,
                                ffn, hidden);
      k_.linear_backward_input(w.db + first * ffn, dy, w_.fc2.weight + e * ffn * hidden, count, ffn,
                               hidden);
    });
    on_.release(s.b);

    if (!activation_again_) c.template restore<"moe_act">(number_, stream, s.a);
    k_.swiglu_backward(w.da, w.dweight, w.db, p(s.a), p(s.weight), rows, ffn);
    on_.release(s.a);

    if (norm_again_) {
      c.template restore<"mlp_norm">(number_, stream, s.x, s.rstd);
      c.template recompute<"layernorm">(
          number_, stream,
          [&] { k_.rmsnorm(p(s.h), p(s.rstd), p(s.x), w_.gain.weight, tokens, hidden); }, s.h);
    }
    if (rows_again_) {
      c.template recompute<"moe_permute">(
          number_, stream,
          [&] { k_.gather(p(s.xs), p(s.h), ints(s.source), rows, m_.top_k, hidden); }, s.xs);
    } else {
      c.template restore<"expert_fc1">(number_, stream, s.xs);
    }
    each_expert(s, [&](index e, index first, index count) {
      const float* const da = w.da + first * 2 * ffn;
      k_.linear_backward_weight(w_.fc1.gradient + e * hidden * 2 * ffn, p(s.xs) + first * hidden,
                                da, count, hidden, 2 * ffn);
      k_.linear_backward_input(w.expert_rows + first * hidden, da,
                               w_.fc1.weight + e * hidden * 2 * ffn, count, hidden, 2 * ffn);
    });
    on_.release(s.xs);

    part::route_backward(s, w.dweight, w.dh);
    k_.combine(w.dh, w.dh, w.expert_rows, ints(s.row), tokens, m_.top_k, hidden);
    if (shared_) {
      shared_->backward_fc2(c, s.shared, dx);
      shared_->backward_fc1(w.projected, p(s.h));
      k_.add(w.dh, w.dh, w.projected, tokens * hidden);
    }
    on_.release(s.h, s.probs, s.choice, s.row, s.source, s.weight, s.counts);

    if (!norm_again_) c.template restore<"mlp_norm">(number_, stream, s.x, s.rstd);
    k_.rmsnorm_backward(dx, w_.gain.gradient, w.dh, p(s.x), p(s.rstd), w_.gain.weight, tokens,
                        hidden);
    on_.release(s.x, s.rstd);
  }

 private:
  /// Calls `body(expert, its first row, its rows)` for every expert that has any.
  template <class Body>
  void each_expert(const saved& s, Body body) const {
    for (index e = 0; e < m_.experts; ++e) {
      const auto at = static_cast<std::size_t>(e);
      const index first = s.first_row[at];
      const index count = s.first_row[at + 1] - first;
      if (count > 0) body(e, first, count);
    }
  }

  bool rows_again_;  // recomputed
};

}  // namespace moe
