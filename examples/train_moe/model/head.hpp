/// The end of the model, forward and backward: the last norm, the head and the loss.
#pragma once

#include <cstdint>
#include <utility>

#include "layer_part.hpp"

namespace moe {

/// What the end of the model saves: module final_norm.
template <class Buffer>
struct saved_head {
  Buffer x, rstd, h;
  Buffer dlogits;
};

struct head_parameters {
  const parameter &gain, &head;
};

template <class Device, class Kernels>
class head : layer_part<Device, Kernels> {
  using part = layer_part<Device, Kernels>;
  using part::floats, part::p, part::matrix, part::m;
  using part::on_, part::k_, part::m_, part::number_;

 public:
  using typename part::buffer, typename part::chunk;
  using saved = saved_head<buffer>;

  /// The gradient is that of `scale` times the loss.
  head(context<Device, Kernels>& on, int number, const head_parameters& w, float scale)
      : part(on, number), w_(w), scale_(scale) {}

  void forward(chunk& c, saved& s, buffer x, const std::int32_t* target, float* loss) {
    const auto span = on_.offloader.trace_span("head", on_.stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden;
    s.x = std::move(x);
    s.h = matrix(tokens * hidden);
    s.rstd = floats(tokens);
    s.dlogits = matrix(tokens * vocabulary);
    // Logits are fp32 in every precision, and need memory of their own where their gradient is not.
    float* const logits = on_.work.head_logits != nullptr ? on_.work.head_logits : p(s.dlogits);
    k_.rmsnorm(m(s.h), p(s.rstd), p(s.x), w_.gain.weight, tokens, hidden);
    k_.linear(logits, m(s.h), w_.head.matrix, tokens, hidden, vocabulary);
    k_.cross_entropy(loss, m(s.dlogits), logits, target, tokens, vocabulary,
                     scale_ * on_.loss_scale);
    c.template commit<"final_norm">(number_, on_.stream, s.x, s.rstd, s.h, s.dlogits);
  }

  /// Adds to `dx`, since others may read the same `x`.
  void backward(chunk& c, saved& s, float* dx) {
    const auto span = on_.offloader.trace_span("head backward", on_.stream, number_);
    const index tokens = m_.tokens(), hidden = m_.hidden;
    c.template restore<"final_norm">(number_, on_.stream, s.x, s.rstd, s.h, s.dlogits);
    k_.linear_backward_weight(w_.head.gradient, m(s.h), m(s.dlogits), tokens, hidden, vocabulary);
    k_.linear_backward_input(on_.work.dh, m(s.dlogits), w_.head.matrix, tokens, hidden, vocabulary);
    k_.rmsnorm_backward(dx, w_.gain.gradient, on_.work.dh, p(s.x), p(s.rstd), w_.gain.weight,
                        tokens, hidden);
    on_.release(s.x, s.rstd, s.h, s.dlogits);
  }

 private:
  head_parameters w_;
  float scale_;
};

}  // namespace moe
