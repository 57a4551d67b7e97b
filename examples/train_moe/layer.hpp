/// One layer of the model, forward and backward: attention, then routed experts or an MLP.
#pragma once

#include <optional>
#include <utility>

#include "attention.hpp"
#include "dense_mlp.hpp"
#include "experts.hpp"

namespace moe {

/// What one layer saves in forward for its backward.
template <class Buffer>
struct saved_layer {
  saved_attention<Buffer> attention;
  saved_experts<Buffer> experts;  // or
  saved_dense_mlp<Buffer> mlp;
};

template <class Device, class Kernels>
class layer {
 public:
  using buffer = tidepool::buffer<Device>;
  using chunk = tidepool::chunk<Device, saving_modules>;
  using saved = saved_layer<buffer>;

  layer(context<Device, Kernels>& on, int number, const parameters_of& w)
      : attention_(on, number, {w["attn_gain"], w["qkv"], w["proj"]}) {
    if (w.has("router")) {
      experts_.emplace(on, number, experts_parameters_of(w));
    } else {
      mlp_.emplace(on, number, dense_mlp_parameters{w["mlp_gain"], {w["mlp_fc1"], w["mlp_fc2"]}});
    }
  }

  /// Returns the residual stream that the next layer reads; `balance` receives the load-balancing
  /// loss of routed experts.
  buffer forward(chunk& c, saved& s, buffer x, float* balance) {
    x = attention_.forward(c, s.attention, std::move(x));
    if (mlp_) return mlp_->forward(c, s.mlp, std::move(x));
    return experts_->forward(c, s.experts, std::move(x), balance);
  }

  /// `dx` is the gradient of what `forward` returned and becomes that of its input.
  void backward(chunk& c, saved& s, float* dx) {
    if (mlp_) {
      mlp_->backward(c, s.mlp, dx);
    } else {
      experts_->backward(c, s.experts, dx);
    }
    attention_.backward(c, s.attention, dx);
  }

 private:
  static experts_parameters experts_parameters_of(const parameters_of& w) {
    experts_parameters routed{w["mlp_gain"], w["router"], w["fc1"], w["fc2"], {}};
    if (w.has("shared_fc1"))
      routed.shared.emplace(gated_mlp_parameters{w["shared_fc1"], w["shared_fc2"]});
    return routed;
  }

  attention<Device, Kernels> attention_;
  std::optional<experts<Device, Kernels>> experts_;
  std::optional<dense_mlp<Device, Kernels>> mlp_;
};

}  // namespace moe
