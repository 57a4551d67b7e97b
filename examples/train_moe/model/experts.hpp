/// Routed experts, and a shared one beside them: the second part of a layer, forward and backward.
#pragma once

#include <utility>

#include "routed_part.hpp"

namespace moe {

/// What routed experts save in forward for their backward, by the module that saves it.
template <class Buffer>
struct saved_experts : saved_routing<Buffer> {
  saved_matrix<Buffer> xs;  // expert_fc1   ⎫
  Buffer a;                 // moe_act      ⎬ or all three: fused_group_mlp
  saved_matrix<Buffer> b;   // expert_fc2   ⎭
};

template <class Device, class Kernels>
class experts : routed_part<Device, Kernels> {
  using part = routed_part<Device, Kernels>;
  using part::allocate, part::fill, part::read, part::with;
  using part::floats, part::p, part::ints, part::matrix, part::m;
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

    s.h = matrix(tokens * hidden);
    s.rstd = floats(tokens);
    k_.rmsnorm(m(s.h), p(s.rstd), p(s.x), w_.gain.weight, tokens, hidden);
    buffer residual = s.x.share();
    c.template commit<"mlp_norm">(number_, stream, s.x, s.rstd);

    if (shared_) residual = part::add_shared(c, s, std::move(residual));

    part::choose(s, balance);
    on_.device.synchronize(stream);  // the one wait of the host: how many rows has each expert?
    const index rows = part::lay_out(s);

    allocate(s.xs, part::held(rows), hidden);
    const operand xs = fill_rows(s, rows);
    s.a = matrix(part::held(rows) * 2 * ffn);
    each_expert(s, [&](index e, index first, index count) {
      part::multiply(m(s.a), s.xs, xs, w_.fc1, e, first, count);
    });
    with(
        [&](auto&... xs_and_scale) {
          if (rows_again_) {
            c.template commit_or_discard<"moe_permute">(number_, stream, xs_and_scale...);
          } else {
            c.template commit_or_discard<"expert_fc1">(number_, stream, xs_and_scale...);
          }
        },
        s.xs);

    allocate(s.b, part::held(rows), ffn);
    const operand b = fill_activation(s, rows);
    c.template commit<"moe_act">(number_, stream, s.a);

    float* const y = on_.work.expert_rows;
    each_expert(s, [&](index e, index first, index count) {
      part::multiply(y, s.b, b, w_.fc2, e, first, count);
    });
    if (on_.offloader.template enabled<"fused_group_mlp">()) {
      // The three as one group: one event and one place in the window instead of three.
      with(
          [&](auto& rows_of_experts, auto&... rest) {
            c.template commit<"fused_group_mlp">(number_, stream, rows_of_experts, s.a, rest...);
          },
          s.xs, s.b);
    } else {
      with(
          [&](auto&... b_and_scale) {
            if (activation_again_) {
              c.template commit_or_discard<"moe_act">(number_, stream, b_and_scale...);
            } else {
              c.template commit_or_discard<"expert_fc2">(number_, stream, b_and_scale...);
            }
          },
          s.b);
    }

    buffer next = floats(tokens * hidden);
    k_.combine(p(next), p(residual), y, ints(s.row), tokens, m_.top_k, hidden);
    residual.reset(stream);
    if (norm_again_) {
      c.template commit_or_discard<"layernorm">(number_, stream, s.h);
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
    k_.gather(w.drows, dx, ints(s.source), rows, m_.top_k, hidden);

    // What is computed again needs its input first.
    const bool input_first = activation_again_ || c.template will_recompute<"expert_fc2">(number_);
    if (input_first) c.template restore<"moe_act">(number_, stream, s.a);
    const auto activation = [&] { fill_activation(s, rows); };
    if (fused) {
      with(
          [&](auto& rows_of_experts, auto&... rest) {
            c.template restore<"fused_group_mlp">(number_, stream, rows_of_experts, s.a, rest...);
          },
          s.xs, s.b);
    } else {
      with(
          [&](auto&... b_and_scale) {
            if (activation_again_) {
              c.template restore_or_recompute<"moe_act">(number_, stream, activation,
                                                         b_and_scale...);
            } else {
              c.template restore_or_recompute<"expert_fc2">(number_, stream, activation,
                                                            b_and_scale...);
            }
          },
          s.b);
    }
    const operand b = read(s.b, rows, ffn);
    each_expert(s, [&](index e, index first, index count) {
      part::multiply_backward(w.db, w.drows, b, w_.fc2, e, first, count);
    });
    with([&](auto&... b_and_scale) { on_.release(b_and_scale...); }, s.b);

    if (!input_first) c.template restore<"moe_act">(number_, stream, s.a);
    k_.swiglu_backward(w.da, w.dweight, w.db, m(s.a), p(s.weight), rows, ffn);
    on_.release(s.a);

    if (norm_again_) {
      c.template restore<"mlp_norm">(number_, stream, s.x, s.rstd);
      c.template restore_or_recompute<"layernorm">(
          number_, stream,
          [&] { k_.rmsnorm(m(s.h), p(s.rstd), p(s.x), w_.gain.weight, tokens, hidden); }, s.h);
    }
    with(
        [&](auto&... xs_and_scale) {
          const auto permutation = [&] { fill_rows(s, rows); };
          if (rows_again_) {
            c.template restore_or_recompute<"moe_permute">(number_, stream, permutation,
                                                           xs_and_scale...);
          } else {
            c.template restore_or_recompute<"expert_fc1">(number_, stream, permutation,
                                                          xs_and_scale...);
          }
        },
        s.xs);
    const operand xs = read(s.xs, rows, hidden);
    each_expert(s, [&](index e, index first, index count) {
      part::multiply_backward(w.expert_rows, w.da, xs, w_.fc1, e, first, count);
    });
    with([&](auto&... xs_and_scale) { on_.release(xs_and_scale...); }, s.xs);

    part::route_backward(s, w.dweight, w.dh);
    k_.combine(w.dh, w.dh, w.expert_rows, ints(s.row), tokens, m_.top_k, hidden);
    if (shared_) {
      shared_->backward_fc2(c, s.shared, dx);
      shared_->backward_fc1(w.projected, m(s.h));
      k_.add(w.dh, w.dh, w.projected, tokens * hidden);
    }
    on_.release(s.h, s.probs, s.choice, s.row, s.source, s.weight, s.counts);

    if (!norm_again_) c.template restore<"mlp_norm">(number_, stream, s.x, s.rstd);
    k_.rmsnorm_backward(dx, w_.gain.gradient, w.dh, p(s.x), p(s.rstd), w_.gain.weight, tokens,
                        hidden);
    on_.release(s.x, s.rstd);
  }

 private:
  /// The rows of each expert, from the tokens.
  operand fill_rows(saved& s, index rows) {
    return fill(s.xs, rows, m_.hidden, [&](operand xs) {
      k_.gather(xs, m(s.h), ints(s.source), rows, m_.top_k, m_.hidden);
    });
  }
  operand fill_activation(saved& s, index rows) {
    return fill(s.b, rows, m_.ffn,
                [&](operand b) { k_.swiglu(b, m(s.a), p(s.weight), rows, m_.ffn); });
  }
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
