/// One layer of the model, forward and backward: attention, then routed experts.
///
/// This is where Tidepool meets the model. For each module there are two lines: a `commit` when its
/// forward is over, and a `restore` before its backward. All else is what the trainer does anyway.
#pragma once

#include <tidepool/chunk.hpp>
#include <utility>
#include <vector>

#include "model_parts.hpp"
#include "parameters.hpp"

namespace moe {

template <class Device, class Kernels>
class layer {
 public:
  using buffer = tidepool::buffer<Device>;
  using chunk = tidepool::chunk<Device, saving_modules>;
  using saved = saved_layer<buffer>;

  layer(context<Device, Kernels>& on, int number, const layer_parameters& w)
      : on_(on),
        k_(on.kernels),
        m_(on.sizes),
        number_(number),
        w_(w),
        norm_again_(on.offloader.recomputes("layernorm")),
        activation_again_(on.offloader.recomputes("moe_act")),
        rows_again_(on.offloader.recomputes("moe_permute")) {}

  /// Returns the residual stream that the next layer reads; `balance` receives the load-balancing
  /// loss. Blocks the host once, for the number of tokens that each expert got.
  buffer forward(chunk& c, saved& s, buffer x, float* balance) {
    s.x = std::move(x);
    attention_forward(c, s);
    return experts_forward(c, s, balance);
  }

  /// `dx` is the gradient of what `forward` returned and becomes that of its input.
  void backward(chunk& c, saved& s, float* dx) {
    experts_backward(c, s, dx);
    attention_backward(c, s, dx);
  }

 private:
  void attention_forward(chunk& c, saved& s) {
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("attention", stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden;

    s.h1 = floats(tokens * hidden);
    s.rstd1 = floats(tokens);
    k_.rmsnorm(p(s.h1), p(s.rstd1), p(s.x), w_.attn_gain.weight, tokens, hidden);
    buffer residual = s.x.share();  // a second owner, so that x may leave before the residual add
    // The first line that Tidepool adds. x and rstd1 start for the host now; if they leave, the two
    // handles are empty afterwards, if not (module disabled, tensor too small), nothing happened.
    c.template commit<"attn_norm">(number_, stream, s.x, s.rstd1);

    s.qkv = floats(tokens * 3 * hidden);
    k_.linear(p(s.qkv), p(s.h1), w_.qkv.weight, tokens, hidden, 3 * hidden);
    if (norm_again_) {
      // What backward can compute again need not be kept, and need not leave either.
      c.template discard<"layernorm">(number_, stream, s.h1);
    } else {
      c.template commit<"qkv_linear">(number_, stream, s.h1);
    }

    s.o = floats(tokens * hidden);
    s.lse = floats(tokens * m_.heads);
    k_.attention(p(s.o), p(s.lse), p(s.qkv), heads());
    s.proj_input = s.o.share();  // two modules save the same memory: it is copied once
    c.template commit<"core_attn">(number_, stream, s.qkv, s.o, s.lse);

    k_.linear(on_.work.projected, p(s.proj_input), w_.proj.weight, tokens, hidden, hidden);
    c.template commit<"attn_proj">(number_, stream, s.proj_input);

    s.x1 = floats(tokens * hidden);
    k_.add(p(s.x1), p(residual), on_.work.projected, tokens * hidden);
    residual.reset(stream);
  }

  void attention_backward(chunk& c, saved& s, float* dx) {
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("attention backward", stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden;
    float* const dqkv = on_.work.dqkv;
    float* const dh = on_.work.dh;

    c.template restore<"attn_proj">(number_, stream, s.proj_input);
    k_.linear_backward_weight(w_.proj.gradient, p(s.proj_input), dx, tokens, hidden, hidden);
    k_.linear_backward_input(dh, dx, w_.proj.weight, tokens, hidden, hidden);
    on_.release(s.proj_input);

    c.template restore<"core_attn">(number_, stream, s.qkv, s.o, s.lse);
    k_.attention_backward(dqkv, dh, p(s.qkv), p(s.o), p(s.lse), heads());
    on_.release(s.qkv, s.o, s.lse);

    if (norm_again_) {
      // First what it is computed from, then the tensor itself.
      c.template restore<"attn_norm">(number_, stream, s.x, s.rstd1);
      c.template recompute<"layernorm">(
          number_, stream,
          [&] { k_.rmsnorm(p(s.h1), p(s.rstd1), p(s.x), w_.attn_gain.weight, tokens, hidden); },
          s.h1);
    } else {
      c.template restore<"qkv_linear">(number_, stream, s.h1);
    }
    k_.linear_backward_weight(w_.qkv.gradient, p(s.h1), dqkv, tokens, hidden, 3 * hidden);
    k_.linear_backward_input(dh, dqkv, w_.qkv.weight, tokens, hidden, 3 * hidden);
    on_.release(s.h1);

    // The second line that Tidepool adds: the same handles, full again, perhaps at other addresses.
    // The stream waits for their reload, the host does not.
    if (!norm_again_) c.template restore<"attn_norm">(number_, stream, s.x, s.rstd1);
    k_.rmsnorm_backward(dx, w_.attn_gain.gradient, dh, p(s.x), p(s.rstd1), w_.attn_gain.weight,
                        tokens, hidden);
    on_.release(s.x, s.rstd1);
  }

  buffer experts_forward(chunk& c, saved& s, float* balance) {
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("experts", stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden, ffn = m_.ffn;

    s.h2 = floats(tokens * hidden);
    s.rstd2 = floats(tokens);
    k_.rmsnorm(p(s.h2), p(s.rstd2), p(s.x1), w_.mlp_gain.weight, tokens, hidden);
    buffer residual = s.x1.share();
    c.template commit<"mlp_norm">(number_, stream, s.x1, s.rstd2);

    const index rows = route(s, balance);

    s.xs = floats(rows * hidden);
    k_.gather(p(s.xs), p(s.h2), ints(s.source), rows, m_.top_k, hidden);
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
      c.template discard<"layernorm">(number_, stream, s.h2);
      c.template commit<"router">(number_, stream, s.probs, s.choice, s.row, s.source, s.weight,
                                  s.counts);
    } else {
      c.template commit<"router">(number_, stream, s.h2, s.probs, s.choice, s.row, s.source,
                                  s.weight, s.counts);
    }
    return next;
  }

  void experts_backward(chunk& c, saved& s, float* dx) {
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
      c.template restore<"router">(number_, stream, s.h2, s.probs, s.choice, s.row, s.source,
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
      c.template restore<"mlp_norm">(number_, stream, s.x1, s.rstd2);
      c.template recompute<"layernorm">(
          number_, stream,
          [&] { k_.rmsnorm(p(s.h2), p(s.rstd2), p(s.x1), w_.mlp_gain.weight, tokens, hidden); },
          s.h2);
    }
    if (rows_again_) {
      c.template recompute<"moe_permute">(
          number_, stream,
          [&] { k_.gather(p(s.xs), p(s.h2), ints(s.source), rows, m_.top_k, hidden); }, s.xs);
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
                      balance_weight / static_cast<float>(m_.layers * on_.microbatches), routing());
    k_.linear_backward_weight(w_.router.gradient, p(s.h2), w.logits, tokens, hidden, m_.experts);
    k_.linear_backward_input(w.dh, w.logits, w_.router.weight, tokens, hidden, m_.experts);
    k_.combine(w.dh, w.dh, w.expert_rows, ints(s.row), tokens, m_.top_k, hidden);
    on_.release(s.h2, s.probs, s.choice, s.row, s.source, s.weight, s.counts);

    if (!norm_again_) c.template restore<"mlp_norm">(number_, stream, s.x1, s.rstd2);
    k_.rmsnorm_backward(dx, w_.mlp_gain.gradient, w.dh, p(s.x1), p(s.rstd2), w_.mlp_gain.weight,
                        tokens, hidden);
    on_.release(s.x1, s.rstd2);
  }

  /// Chooses the experts of each token and lays the rows out; returns how many rows there are.
  index route(saved& s, float* balance) {
    const auto stream = on_.stream;
    const routing_shape shape = routing();
    s.probs = floats(shape.tokens * shape.experts);
    s.choice = on_.template allocate<std::int32_t>(shape.tokens * shape.top_k);
    s.row = on_.template allocate<std::int32_t>(shape.tokens * shape.top_k);
    s.counts = on_.template allocate<std::int32_t>(shape.experts);
    k_.linear(on_.work.logits, p(s.h2), w_.router.weight, shape.tokens, m_.hidden, shape.experts);
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

  buffer floats(index count) { return on_.template allocate<float>(count); }
  static float* p(const buffer& b) { return b.template as<float>(); }
  static std::int32_t* ints(const buffer& b) { return b.template as<std::int32_t>(); }
  attention_shape heads() const { return {m_.batch, m_.seq, m_.heads, m_.head_size()}; }
  routing_shape routing() const { return {m_.tokens(), m_.experts, m_.top_k}; }

  context<Device, Kernels>& on_;
  Kernels& k_;
  const model_sizes& m_;
  int number_;
  layer_parameters w_;
  bool norm_again_, activation_again_, rows_again_;  // recomputed
};

}  // namespace moe
