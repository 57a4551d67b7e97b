/// One layer of the model, forward and backward: attention, then routed experts or an MLP.
#pragma once

#include <optional>
#include <utility>

#include "attention.hpp"
#include "dense_mlp.hpp"
#include "experts.hpp"
#include "parallel_experts.hpp"

namespace moe {

/// What one layer saves in forward for its backward.
template <class Buffer>
struct saved_layer {
  saved_attention<Buffer> attention;
  saved_parallel_experts<Buffer> experts;  // or
  saved_dense_mlp<Buffer> mlp;
  Buffer next;  // between the pieces of forward
};

/// Forward and backward are in three pieces each. Where experts are on other ranks, rows are on
/// their way between two pieces, and the stream is free for other work.
template <class Device, class Kernels>
class layer {
 public:
  using buffer = tidepool::buffer<Device>;
  using chunk = tidepool::chunk<Device, saving_modules>;
  using saved = saved_layer<buffer>;

  layer(context<Device, Kernels>& on, int number, const parameters_of& w)
      : attention_(on, number, {w["attn_gain"], w["qkv"], w["proj"]}) {
    if (!w.has("router")) {
      mlp_.emplace(on, number, dense_mlp_parameters{w["mlp_gain"], {w["mlp_fc1"], w["mlp_fc2"]}});
    } else if (on.exchange != nullptr) {
      parallel_.emplace(on, number, experts_parameters_of(w));
    } else {
      experts_.emplace(on, number, experts_parameters_of(w));
    }
  }

  /// The three in a row. Returns the residual stream that the next layer reads.
  buffer forward(chunk& c, saved& s, buffer x, float* balance) {
    dispatch(c, s, std::move(x), balance);
    compute(c, s);
    return collect(c, s);
  }
  void backward(chunk& c, saved& s, float* dx) {
    dispatch_backward(c, s, dx);
    compute_backward(c, s, dx);
    collect_backward(c, s, dx);
  }

  /// `balance` receives the load-balancing loss of routed experts.
  void dispatch(chunk& c, saved& s, buffer x, float* balance) {
    x = attention_.forward(c, s.attention, std::move(x));
    if (parallel_) {
      parallel_->dispatch(c, s.experts, std::move(x), balance);
    } else if (mlp_) {
      s.next = mlp_->forward(c, s.mlp, std::move(x));
    } else {
      s.next = experts_->forward(c, s.experts, std::move(x), balance);
    }
  }
  void compute(chunk& c, saved& s) {
    if (parallel_) parallel_->compute(c, s.experts);
  }
  /// Returns the residual stream that the next layer reads.
  buffer collect(chunk& c, saved& s) {
    return parallel_ ? parallel_->collect(c, s.experts) : std::move(s.next);
  }

  /// `dx` is the gradient of what `collect` returned.
  void dispatch_backward(chunk& c, saved& s, float* dx) {
    if (parallel_) {
      parallel_->dispatch_backward(c, s.experts, dx);
    } else if (mlp_) {
      mlp_->backward(c, s.mlp, dx);
    } else {
      experts_->backward(c, s.experts, dx);
    }
  }
  void compute_backward(chunk& c, saved& s, const float* dx) {
    if (parallel_) parallel_->compute_backward(c, s.experts, dx);
  }
  /// `dx` becomes the gradient of what `dispatch` was given.
  void collect_backward(chunk& c, saved& s, float* dx) {
    if (parallel_) parallel_->collect_backward(c, s.experts, dx);
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
  // One of them is there.
  std::optional<experts<Device, Kernels>> experts_;
  std::optional<parallel_experts<Device, Kernels>> parallel_;
  std::optional<dense_mlp<Device, Kernels>> mlp_;
};

}  // namespace moe
