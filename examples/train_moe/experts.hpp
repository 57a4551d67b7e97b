/// Routed experts, and a shared one beside them: the second part of a layer, forward and backward.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gated_mlp.hpp"

namespace moe {

/// What routed experts save in forward for their backward, by the module that saves it.
template <class Buffer>
struct saved_experts {
  Buffer x, rstd;                  // mlp_norm
  Buffer h, probs;                 // router, with where the tokens went:
  Buffer choice;                   //   experts of each token
  Buffer row;                      //   row of each token's choices
  Buffer source, weight;           //   token and probability of each row
  Buffer counts;                   //   tokens of each expert
  Buffer xs;                       // expert_fc1   ⎫
  Buffer a;                        // moe_act      ⎬ or all three: fused_group_mlp
  Buffer b;                        // expert_fc2   ⎭
  saved_gated_mlp<Buffer> shared;  // shared_act, shared_fc2; what it reads is the router's
  std::vector<index> first_row;    // of each expert, and the end; known to the host
};

/// The tensors of routed experts.
struct experts_parameters {
  const parameter &gain, &router, &fc1, &fc2;
  std::optional<gated_mlp_parameters> shared;
};

template <class Device, class Kernels>
class experts : layer_part<Device, Kernels> {
  using part = layer_part<Device, Kernels>;
  using part::floats, part::p, part::ints;
  using part::on_, part::k_, part::m_, part::number_, part::norm_again_;

 public:
  using typename part::buffer, typename part::chunk;
  using saved = saved_experts<buffer>;

  experts(context<Device, Kernels>& on, int number, const experts_parameters& w)
      : part(on, number),
        w_(w),
        activation_again_(on.offloader.recomputes("moe_act")),
        rows_again_(on.offloader.recomputes("moe_permute")) {
    if (w.shared) shared_.emplace(on, number, *w.shared, on.sizes.shared_ffn());
  }

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

    if (shared_) residual = add_shared(c, s, std::move(residual));

    const index rows = route(s, balance);

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

    k_.route_backward(w.logits, w.dweight, ints(s.row), ints(s.choice), p(s.probs), ints(s.counts),
                      balance_weight / static_cast<float>(m_.routed_layers() * on_.microbatches),
                      routing());
    k_.linear_backward_weight(w_.router.gradient, p(s.h), w.logits, tokens, hidden, m_.experts);
    k_.linear_backward_input(w.dh, w.logits, w_.router.weight, tokens, hidden, m_.experts);
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
  /// Returns the residual stream with what the shared expert adds to it.
  buffer add_shared(chunk& c, saved& s, buffer residual) {
    const index count = m_.tokens() * m_.hidden;
    shared_->forward_fc1(s.shared, p(s.h));
    shared_->forward_fc2(c, s.shared, on_.work.projected);
    buffer sum = floats(count);
    k_.add(p(sum), p(residual), on_.work.projected, count);
    residual.reset(on_.stream);
    return sum;
  }

  /// Chooses the experts of each token and lays the rows out; returns how many rows there are.
  index route(saved& s, float* balance) {
    const auto stream = on_.stream;
    const routing_shape shape = routing();
    s.probs = floats(shape.tokens * shape.experts);
    s.choice = on_.template allocate<std::int32_t>(shape.tokens * shape.top_k);
    s.row = on_.template allocate<std::int32_t>(shape.tokens * shape.top_k);
    s.counts = on_.template allocate<std::int32_t>(shape.experts);
    k_.linear(on_.work.logits, p(s.h), w_.router.weight, shape.tokens, m_.hidden, shape.experts);
    k_.route(p(s.probs), ints(s.choice), on_.work.logits, shape);
    k_.assign(ints(s.row), ints(s.counts), ints(s.choice), shape);
    k_.balance(balance, p(s.probs), ints(s.counts), shape);
    k_.publish(on_.host_counts.data(), ints(s.counts), shape.experts);
    on_.device.synchronize(stream);  // the one wait of the host: how many rows has each expert?

    s.first_row.assign(1, 0);
    for (index e = 0; e < shape.experts; ++e) {
      const index count = on_.host_counts.data()[e];
      s.first_row.push_back(s.first_row.back() + padded(count));
    }
    const index rows = s.first_row.back();
    s.source = on_.template allocate<std::int32_t>(rows);
    s.weight = floats(rows);
    k_.place(ints(s.source), p(s.weight), ints(s.row), ints(s.choice), p(s.probs), rows, shape);
    return rows;
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
  routing_shape routing() const { return {m_.tokens(), m_.experts, m_.top_k}; }

  experts_parameters w_;
  std::optional<gated_mlp<Device, Kernels, "shared_act", "shared_fc2">> shared_;
  bool activation_again_, rows_again_;  // recomputed
};

}  // namespace moe
