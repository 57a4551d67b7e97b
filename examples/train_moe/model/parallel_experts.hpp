/// Routed experts that are spread over ranks: tokens travel to them and back, in both directions.
///
/// Forward and backward are in three pieces each, between which rows are on their way. Whoever has
/// other work for the stream does it there.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "experts.hpp"

namespace moe {

/// What one layer's experts on this rank save for the tokens of all ranks, and what is on its way.
template <class Buffer>
struct saved_parallel_experts : saved_experts<Buffer> {
  Buffer weight_in;              // moe_act, with a: the probability of each row that came
  Buffer plain_xs, plain_b;      // what GEMMs read where xs and b are codes of FP8
  row_counts rows;               // to and from each rank, in forward
  std::vector<index> first_in;   // row of each rank's tokens for each expert here, and the end
  Buffer residual;               // between the pieces of forward
  std::array<Buffer, 4> travel;  // what is sent and received, between two pieces
  int exchange = 0;
};

template <class Device, class Kernels>
class parallel_experts : routed_part<Device, Kernels> {
  using part = routed_part<Device, Kernels>;
  using part::floats, part::p, part::ints, part::matrix, part::m;
  using part::on_, part::k_, part::m_, part::number_, part::norm_again_;
  using part::w_, part::shared_, part::activation_again_;
  using part::with, part::plain, part::encode, part::decode;

 public:
  using typename part::buffer, typename part::chunk;
  using saved = saved_parallel_experts<buffer>;

  parallel_experts(context<Device, Kernels>& on, int number, const experts_parameters& w)
      : part(on, number, w) {}

  /// Sends the tokens on their way. Blocks the host once, for the number of rows that come.
  void dispatch(chunk& c, saved& s, buffer x, float* balance) {
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("dispatch", stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden;

    s.x = std::move(x);
    s.h = matrix(tokens * hidden);
    s.rstd = floats(tokens);
    k_.rmsnorm(m(s.h), p(s.rstd), p(s.x), w_.gain.weight, tokens, hidden);
    s.residual = s.x.share();
    c.template commit<"mlp_norm">(number_, stream, s.x, s.rstd);

    part::choose(s, balance);
    const auto counts = on_.offloader.wait_for_peers(
        stream, [&] { return on_.exchange->counts(ints(s.counts), here()); });
    const index rows = part::lay_out(s);
    lay_out_arrivals(s, counts);

    auto& out = s.travel[0] = matrix(part::held(rows) * hidden);
    k_.gather(m(out), m(s.h), ints(s.source), rows, m_.top_k, hidden);
    auto& xs = plain(s.xs, s.plain_xs) = matrix(arrivals(s) * hidden);
    s.weight_in = floats(arrivals(s));
    start(s, s.rows, {{p(out), p(xs), words(hidden)}, {p(s.weight), p(s.weight_in), 1}});
    if (shared_) s.residual = part::add_shared(c, s, std::move(s.residual));
  }

  /// The experts here compute; their results start on the way back.
  void compute(chunk& c, saved& s) {
    const auto stream = on_.stream;
    const index hidden = m_.hidden, ffn = m_.ffn, rows = s.rows.all_received();
    finish(s, transfer::rows_forth);
    on_.release(s.travel[0], s.weight);
    const auto span = on_.offloader.trace_span("experts", stream, number_);

    encode(s.xs, s.plain_xs, arrivals(s), rows, hidden);
    const operand xs = m(plain(s.xs, s.plain_xs));
    s.a = matrix(arrivals(s) * 2 * ffn);
    each_batch(s, [&](index e, index first, index count) {
      part::multiply(m(s.a), s.xs, xs, w_.fc1, e, first, count);
    });
    on_.release(s.plain_xs);
    with([&](auto&... tensors) { c.template commit<"expert_fc1">(number_, stream, tensors...); },
         s.xs);

    plain(s.b, s.plain_b) = matrix(arrivals(s) * ffn);
    activate(s, rows);
    const operand b = m(plain(s.b, s.plain_b));
    c.template commit<"moe_act">(number_, stream, s.a, s.weight_in);

    auto& y = s.travel[0] = floats(arrivals(s) * hidden);
    each_batch(s, [&](index e, index first, index count) {
      part::multiply(p(y), s.b, b, w_.fc2, e, first, count);
    });
    on_.release(s.plain_b);
    if (fused()) {
      with(
          [&](auto& rows_here, auto&... rest) {
            c.template commit<"fused_group_mlp">(number_, stream, rows_here, s.a, s.weight_in,
                                                 rest...);
          },
          s.xs, s.b);
    } else {
      with(
          [&](auto&... tensors) {
            if (activation_again_) {
              c.template commit_or_discard<"moe_act">(number_, stream, tensors...);
            } else {
              c.template commit_or_discard<"expert_fc2">(number_, stream, tensors...);
            }
          },
          s.b);
    }

    auto& back = s.travel[1] = floats(part::held(s.first_row.back()) * hidden);
    start(s, s.rows.reversed(), {{p(y), p(back), hidden}});
  }

  /// Returns the residual stream that the next layer reads.
  buffer collect(chunk& c, saved& s) {
    const auto stream = on_.stream;
    finish(s, transfer::rows_back);
    const auto span = on_.offloader.trace_span("combine", stream, number_);
    buffer next = floats(m_.tokens() * m_.hidden);
    k_.combine(p(next), p(s.residual), p(s.travel[1]), ints(s.row), m_.tokens(), m_.top_k,
               m_.hidden);
    on_.release(s.residual, s.travel[0], s.travel[1]);
    if (norm_again_) {
      c.template commit_or_discard<"layernorm">(number_, stream, s.h);
      c.template commit<"router">(number_, stream, s.probs, s.choice, s.row, s.source, s.counts);
    } else {
      c.template commit<"router">(number_, stream, s.h, s.probs, s.choice, s.row, s.source,
                                  s.counts);
    }
    return next;
  }

  /// Sends the gradient of what `collect` returned on its way to the experts.
  void dispatch_backward(chunk& c, saved& s, const float* dx) {
    const auto stream = on_.stream;
    const auto span = on_.offloader.trace_span("dispatch backward", stream, number_);
    const index hidden = m_.hidden, rows = s.first_row.back();
    if (norm_again_) {
      c.template restore<"router">(number_, stream, s.probs, s.choice, s.row, s.source, s.counts);
    } else {
      c.template restore<"router">(number_, stream, s.h, s.probs, s.choice, s.row, s.source,
                                   s.counts);
    }
    auto& out = s.travel[0] = matrix(part::held(rows) * hidden);
    auto& dy = s.travel[1] = matrix(arrivals(s) * hidden);
    k_.gather(m(out), dx, ints(s.source), rows, m_.top_k, hidden);
    start(s, s.rows, {{p(out), p(dy), words(hidden)}});
  }

  /// The experts' backward; the gradients of their inputs start on the way back.
  void compute_backward(chunk& c, saved& s, const float* dx) {
    const auto stream = on_.stream;
    const index hidden = m_.hidden, ffn = m_.ffn, rows = s.rows.all_received();
    finish(s, transfer::gradients_forth);
    const auto span = on_.offloader.trace_span("experts backward", stream, number_);
    buffer dy = std::move(s.travel[1]);
    on_.release(s.travel[0]);

    // What is computed again needs its input first.
    const bool input_first = activation_again_ || c.template will_recompute<"expert_fc2">(number_);
    if (input_first) c.template restore<"moe_act">(number_, stream, s.a, s.weight_in);
    const auto activation = [&] { activate(s, rows); };
    if (fused()) {
      with(
          [&](auto& rows_here, auto&... rest) {
            c.template restore<"fused_group_mlp">(number_, stream, rows_here, s.a, s.weight_in,
                                                  rest...);
          },
          s.xs, s.b);
      decode(s.b, s.plain_b, arrivals(s), rows, ffn);
    } else {
      if (on_.types.saves_codes()) s.plain_b = matrix(arrivals(s) * ffn);
      with(
          [&](auto&... tensors) {
            if (activation_again_) {
              c.template restore_or_recompute<"moe_act">(number_, stream, activation, tensors...);
            } else {
              c.template restore_or_recompute<"expert_fc2">(number_, stream, activation,
                                                            tensors...);
            }
          },
          s.b);
      decode(s.b, s.plain_b, arrivals(s), rows, ffn);
    }
    const operand b = m(plain(s.b, s.plain_b));
    buffer db = floats(arrivals(s) * ffn);
    each_batch(s, [&](index e, index first, index count) {
      part::multiply_backward(p(db), m(dy), b, w_.fc2, e, first, count);
    });
    with([&](auto&... b_and_scale) { on_.release(b_and_scale...); }, s.b);
    on_.release(s.plain_b, dy);

    if (!input_first) c.template restore<"moe_act">(number_, stream, s.a, s.weight_in);
    buffer da = matrix(arrivals(s) * 2 * ffn);
    auto& dweight = s.travel[1] = floats(arrivals(s));
    if (rows > 0) {
      k_.swiglu_backward(m(da), p(dweight), p(db), m(s.a), p(s.weight_in), rows, ffn);
    }
    on_.release(s.a, s.weight_in, db);

    with([&](auto&... tensors) { c.template restore<"expert_fc1">(number_, stream, tensors...); },
         s.xs);
    decode(s.xs, s.plain_xs, arrivals(s), rows, hidden);
    const operand xs = m(plain(s.xs, s.plain_xs));
    auto& dxs = s.travel[0] = floats(arrivals(s) * hidden);
    each_batch(s, [&](index e, index first, index count) {
      part::multiply_backward(p(dxs), m(da), xs, w_.fc1, e, first, count);
    });
    with([&](auto&... xs_and_scale) { on_.release(xs_and_scale...); }, s.xs);
    on_.release(s.plain_xs, da);

    auto& back = s.travel[2] = floats(part::held(s.first_row.back()) * hidden);
    auto& dweight_back = s.travel[3] = floats(part::held(s.first_row.back()));
    start(s, s.rows.reversed(), {{p(dxs), p(back), hidden}, {p(dweight), p(dweight_back), 1}});
    if (shared_) shared_->backward_fc2(c, s.shared, dx);
  }

  /// `dx` becomes the gradient of what `dispatch` was given.
  void collect_backward(chunk& c, saved& s, float* dx) {
    const auto stream = on_.stream;
    const index tokens = m_.tokens(), hidden = m_.hidden;
    float* const dh = on_.work.dh;
    finish(s, transfer::gradients_back);
    const auto span = on_.offloader.trace_span("combine backward", stream, number_);
    if (norm_again_) {
      c.template restore<"mlp_norm">(number_, stream, s.x, s.rstd);
      c.template restore_or_recompute<"layernorm">(
          number_, stream,
          [&] { k_.rmsnorm(m(s.h), p(s.rstd), p(s.x), w_.gain.weight, tokens, hidden); }, s.h);
    }
    part::route_backward(s, p(s.travel[3]), dh);
    k_.combine(dh, dh, p(s.travel[2]), ints(s.row), tokens, m_.top_k, hidden);
    if (shared_) {
      shared_->backward_fc1(on_.work.projected, m(s.h));
      k_.add(dh, dh, on_.work.projected, tokens * hidden);
    }
    on_.release(s.travel[0], s.travel[1], s.travel[2], s.travel[3]);
    on_.release(s.h, s.probs, s.choice, s.row, s.source, s.counts);

    if (!norm_again_) c.template restore<"mlp_norm">(number_, stream, s.x, s.rstd);
    k_.rmsnorm_backward(dx, w_.gain.gradient, dh, p(s.x), p(s.rstd), w_.gain.weight, tokens,
                        hidden);
    on_.release(s.x, s.rstd);
  }

 private:
  [[nodiscard]] index here() const { return m_.experts / on_.exchange->ranks(); }
  [[nodiscard]] bool fused() const { return on_.offloader.template enabled<"fused_group_mlp">(); }
  /// Operands travel as they are, in words of four bytes.
  [[nodiscard]] index words(index width) const {
    return width * bytes_of(on_.types.operands) / index{sizeof(float)};
  }
  /// Rows that memory is made for; a few where none come, so that kernels and messages have an
  /// address.
  [[nodiscard]] index arrivals(const saved& s) const {
    if (m_.same_sizes()) return m_.experts * padded(m_.expert_capacity());
    return m_.roomy(std::max(s.rows.all_received(), row_padding));
  }

  void activate(saved& s, index rows) {
    if (rows > 0) k_.swiglu(m(plain(s.b, s.plain_b)), m(s.a), p(s.weight_in), rows, m_.ffn);
    encode(s.b, s.plain_b, arrivals(s), rows, m_.ffn);
  }

  void start(saved& s, const row_counts& rows, std::initializer_list<moving_rows> what) {
    s.exchange = on_.exchange->start(rows, {what.begin(), what.size()});
  }
  /// Each has its own size.
  enum class transfer : std::uint32_t {
    counts,
    rows_forth,
    rows_back,
    gradients_forth,
    gradients_back
  };

  void finish(saved& s, transfer what) {
    on_.offloader.wait_for_peers(
        on_.stream, [&] { on_.exchange->finish(s.exchange); }, static_cast<std::uint32_t>(what));
  }

  /// Rows come from one rank after the other, each rank's ordered by expert and padded as there.
  void lay_out_arrivals(saved& s, std::span<const std::int32_t> counts) {
    const auto each = static_cast<std::size_t>(here());
    s.rows = {};
    s.first_in.assign(1, 0);
    for (std::size_t from = 0; from * each < counts.size(); ++from) {
      s.rows.sent.push_back(s.first_row[(from + 1) * each] - s.first_row[from * each]);
      const index before = s.first_in.back();
      for (const std::int32_t count : counts.subspan(from * each, each)) {
        const index kept = std::min<index>(count, m_.expert_capacity());
        s.first_in.push_back(s.first_in.back() + padded(kept));
      }
      s.rows.received.push_back(s.first_in.back() - before);
    }
  }

  /// Calls `body(expert here, first row, rows)` for each batch of rows of one rank for one expert.
  ///
  /// The batches are those of one process with the microbatches of all ranks, one after the other:
  /// so the experts' results and gradients have its bits.
  template <class Body>
  void each_batch(const saved& s, Body body) const {
    for (std::size_t i = 0; i + 1 < s.first_in.size(); ++i) {
      const index first = s.first_in[i], count = s.first_in[i + 1] - first;
      if (count > 0) body(static_cast<index>(i) % here(), first, count);
    }
  }
};

}  // namespace moe
