/// What routed experts have in common, whether they are all here or spread over ranks: the choice
/// of the experts and the layout of the rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gated_mlp.hpp"

namespace moe {

/// What is saved of the tokens themselves: the part of what routed experts save that is the same
/// wherever these are.
template <class Buffer>
struct saved_routing {
  Buffer x, rstd;                  // mlp_norm
  Buffer h, probs;                 // router, with where the tokens went:
  Buffer choice;                   //   experts of each token
  Buffer row;                      //   row of each token's choices
  Buffer source, weight;           //   token and probability of each row
  Buffer counts;                   //   tokens that chose each expert
  saved_gated_mlp<Buffer> shared;  // shared_act, shared_fc2; what it reads is the router's
  std::vector<index> first_row;    // of each expert, and the end; known to the host
};

/// The tensors of routed experts.
struct experts_parameters {
  const parameter &gain, &router, &fc1, &fc2;
  std::optional<gated_mlp_parameters> shared;
};

template <class Device, class Kernels>
class routed_part : protected layer_part<Device, Kernels> {
  using part = layer_part<Device, Kernels>;

 public:
  using typename part::buffer, typename part::chunk;

 protected:
  using part::floats, part::p, part::ints, part::m;
  using part::on_, part::k_, part::m_;

  routed_part(context<Device, Kernels>& on, int number, const experts_parameters& w)
      : part(on, number), w_(w), activation_again_(on.offloader.recomputes("moe_act")) {
    if (w.shared) shared_.emplace(on, number, *w.shared, on.sizes.shared_ffn());
  }

  /// Returns the residual stream with what the shared expert adds to it.
  buffer add_shared(chunk& c, saved_routing<buffer>& s, buffer residual) {
    const index count = m_.tokens() * m_.hidden;
    shared_->forward_fc1(s.shared, m(s.h));
    shared_->forward_fc2(c, s.shared, on_.work.projected);
    buffer sum = floats(count);
    k_.add(p(sum), p(residual), on_.work.projected, count);
    residual.reset(on_.stream);
    return sum;
  }

  /// Chooses the experts of each token; `balance` receives the load-balancing loss. What the host
  /// must know, the tokens of each expert, is on its way to `host_counts` afterwards.
  void choose(saved_routing<buffer>& s, float* balance) {
    const routing_shape shape = routing();
    s.probs = floats(shape.tokens * shape.experts);
    s.choice = on_.template allocate<std::int32_t>(shape.tokens * shape.top_k);
    s.row = on_.template allocate<std::int32_t>(shape.tokens * shape.top_k);
    s.counts = on_.template allocate<std::int32_t>(shape.experts);
    k_.linear(on_.work.logits, m(s.h), w_.router.matrix, shape.tokens, m_.hidden, shape.experts);
    k_.route(p(s.probs), ints(s.choice), on_.work.logits, shape);
    k_.assign(ints(s.row), ints(s.counts), ints(s.choice), shape);
    k_.balance(balance, p(s.probs), ints(s.counts), shape);
    k_.publish(on_.host_counts.data(), ints(s.counts), shape.experts);
  }

  /// Rows that memory is made for.
  [[nodiscard]] index held(index rows) const {
    return m_.same_sizes() ? m_.max_rows() : std::min(m_.roomy(rows), m_.max_rows());
  }

  /// Lays the rows out, once `host_counts` is there; returns how many there are.
  index lay_out(saved_routing<buffer>& s) {
    const routing_shape shape = routing();
    s.first_row.assign(1, 0);
    for (index e = 0; e < shape.experts; ++e) {
      const index count = on_.host_counts.data()[e];
      const index kept = std::min(count, shape.capacity);
      on_.choices.all += static_cast<std::uint64_t>(count);
      on_.choices.dropped += static_cast<std::uint64_t>(count - kept);
      s.first_row.push_back(s.first_row.back() + padded(kept));
    }
    const index rows = s.first_row.back();
    s.source = on_.template allocate<std::int32_t>(held(rows));
    s.weight = floats(held(rows));
    k_.place(ints(s.source), p(s.weight), ints(s.row), ints(s.choice), p(s.probs), rows, shape);
    return rows;
  }

  /// The gradients of the router and of its input from those of the choices' weights.
  void route_backward(const saved_routing<buffer>& s, const float* dweight, float* dh) {
    auto& w = on_.work;
    const index tokens = m_.tokens(), hidden = m_.hidden;
    k_.route_backward(w.logits, dweight, ints(s.row), ints(s.choice), p(s.probs), ints(s.counts),
                      on_.loss_scale * (balance_weight /
                                        static_cast<float>(m_.routed_layers() * on_.microbatches)),
                      routing());
    const const_operand dlogits = on_.narrowed(w.logits, tokens * m_.experts);
    k_.linear_backward_weight(w_.router.gradient, m(s.h), dlogits, tokens, hidden, m_.experts);
    k_.linear_backward_input(dh, dlogits, w_.router.matrix, tokens, hidden, m_.experts);
  }

  [[nodiscard]] routing_shape routing() const {
    return {m_.tokens(), m_.experts, m_.top_k, m_.expert_capacity()};
  }

  experts_parameters w_;
  std::optional<gated_mlp<Device, Kernels, "shared_act", "shared_fc2">> shared_;
  bool activation_again_;  // recomputed
};

}  // namespace moe
