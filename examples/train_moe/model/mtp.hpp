/// Multi-token prediction as in DeepSeek-V3, one depth of it: beside the next token, each place
/// predicts the one that is `depth` further ahead.
///
/// A depth reads the hidden state of the depth before it (the first one what the last layer gives)
/// and the embedding of the token `depth` ahead, normalises both, projects the two to one, and has
/// a layer of its own and the model's head. It follows the model's own head on the same rank.
#pragma once

#include <cstdint>
#include <utility>

#include "head.hpp"
#include "layer.hpp"
#include "microbatch_io.hpp"

namespace moe {

/// What one depth saves in forward for its backward.
template <class Buffer>
struct saved_mtp {
  Buffer x, rstd, h;      // mtp_proj: the hidden state, which the head before saves too
  Buffer e, e_rstd, e_h;  //   and the embedding
  saved_layer<Buffer> layer;
  saved_head<Buffer> head;
};

template <class Device, class Kernels>
class mtp_module : layer_part<Device, Kernels> {
  using part = layer_part<Device, Kernels>;
  using part::floats, part::p, part::matrix, part::m;
  using part::on_, part::k_, part::m_, part::number_, part::norm_again_;

 public:
  using typename part::buffer, typename part::chunk;
  using saved = saved_mtp<buffer>;

  /// `depth` counts from 1. To Tidepool it is a layer behind the head, which is one itself.
  mtp_module(context<Device, Kernels>& on, const parameters<Device>& weights, index depth)
      : part(on, static_cast<int>(on.sizes.layers + depth)),
        depth_(depth),
        embedding_(weights.mtp_embedding()),
        hidden_gain_(weights.mtp(depth - 1)["hidden_gain"]),
        embedding_gain_(weights.mtp(depth - 1)["embedding_gain"]),
        proj_(weights.mtp(depth - 1)["mtp_proj"]),
        layer_(on, number_, weights.mtp(depth - 1)),
        head_(on, number_, {weights.mtp(depth - 1)["final_gain"], weights.head()},
              mtp_weight / static_cast<float>(on.sizes.mtp * on.microbatches)) {}

  /// Returns the hidden state for the next depth.
  buffer forward(chunk& c, saved& s, buffer hidden_state, const microbatch_io& io) {
    const auto stream = on_.stream;
    const index tokens = m_.tokens(), hidden = m_.hidden;
    s.x = std::move(hidden_state);
    s.rstd = floats(tokens);
    s.h = matrix(tokens * hidden);
    s.e = floats(tokens * hidden);
    s.e_rstd = floats(tokens);
    s.e_h = matrix(tokens * hidden);
    k_.embed(p(s.e), embedding_.weight, nullptr, token(io), tokens, m_.seq, hidden);
    normalise(s);

    // The projection of both in a row is the sum of the projections of each.
    buffer y = floats(tokens * hidden);
    k_.linear(p(y), m(s.h), proj_.matrix, tokens, hidden, hidden);
    k_.linear(on_.work.projected, m(s.e_h), second_half(proj_.matrix), tokens, hidden, hidden);
    k_.add(p(y), p(y), on_.work.projected, tokens * hidden);
    if (norm_again_) {
      c.template commit<"mtp_proj">(number_, stream, s.x, s.rstd, s.e, s.e_rstd);
      c.template commit_or_discard<"layernorm">(number_, stream, s.h, s.e_h);
    } else {
      c.template commit<"mtp_proj">(number_, stream, s.x, s.rstd, s.h, s.e, s.e_rstd, s.e_h);
    }

    float* const balance = io.losses + m_.layers + depth_;
    y = layer_.forward(c, s.layer, std::move(y), balance);
    buffer next = y.share();
    head_.forward(c, s.head, std::move(y), token(io) + tokens, io.losses + mtp_loss(m_, depth_));
    return next;
  }

  /// `dx` is the gradient that the next depth has for what `forward` returned, and becomes that of
  /// the hidden state that `forward` read.
  void backward(chunk& c, saved& s, float* dx, const microbatch_io& io) {
    const auto stream = on_.stream;
    const index tokens = m_.tokens(), hidden = m_.hidden;
    head_.backward(c, s.head, dx);
    layer_.backward(c, s.layer, dx);

    if (norm_again_) {
      c.template restore<"mtp_proj">(number_, stream, s.x, s.rstd, s.e, s.e_rstd);
      c.template restore_or_recompute<"layernorm">(
          number_, stream, [&] { normalise(s); }, s.h, s.e_h);
    } else {
      c.template restore<"mtp_proj">(number_, stream, s.x, s.rstd, s.h, s.e, s.e_rstd, s.e_h);
    }
    float* const dh = on_.work.dh;
    float* const de = on_.work.projected;
    const const_operand dy = on_.narrowed(dx, tokens * hidden);
    k_.linear_backward_weight(proj_.gradient, m(s.h), dy, tokens, hidden, hidden);
    k_.linear_backward_weight(second_half(proj_.gradient), m(s.e_h), dy, tokens, hidden, hidden);

    k_.linear_backward_input(dh, dy, second_half(proj_.matrix), tokens, hidden, hidden);
    k_.fill(de, tokens * hidden, 0);
    k_.rmsnorm_backward(de, embedding_gain_.gradient, dh, p(s.e), p(s.e_rstd),
                        embedding_gain_.weight, tokens, hidden);
    k_.embed_backward(embedding_.gradient, nullptr, de, token(io), tokens, m_.seq, hidden);

    k_.linear_backward_input(dh, dy, proj_.matrix, tokens, hidden, hidden);
    k_.fill(dx, tokens * hidden, 0);
    k_.rmsnorm_backward(dx, hidden_gain_.gradient, dh, p(s.x), p(s.rstd), hidden_gain_.weight,
                        tokens, hidden);
    on_.release(s.x, s.rstd, s.h, s.e, s.e_rstd, s.e_h);
  }

 private:
  void normalise(saved& s) {
    const index tokens = m_.tokens(), hidden = m_.hidden;
    k_.rmsnorm(m(s.h), p(s.rstd), p(s.x), hidden_gain_.weight, tokens, hidden);
    k_.rmsnorm(m(s.e_h), p(s.e_rstd), p(s.e), embedding_gain_.weight, tokens, hidden);
  }
  /// The token `depth` ahead of each place; the one to predict lies behind it.
  [[nodiscard]] const std::int32_t* token(const microbatch_io& io) const {
    return io.token + depth_ * m_.tokens();
  }
  template <class Matrix>
  [[nodiscard]] Matrix second_half(Matrix of_proj) const {
    return of_proj + m_.hidden * m_.hidden;
  }

  index depth_;
  const parameter &embedding_, &hidden_gain_, &embedding_gain_, &proj_;
  layer<Device, Kernels> layer_;
  head<Device, Kernels> head_;
};

}  // namespace moe
