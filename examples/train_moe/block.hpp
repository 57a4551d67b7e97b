/// Consecutive layers of the model, forward and backward, for several microbatches in flight.
#pragma once

#include <cstdint>
#include <tidepool/offloader.hpp>
#include <utility>
#include <vector>

#include "layer.hpp"
#include "layout.hpp"
#include "parameters.hpp"

namespace moe {

/// Where one microbatch finds its text and leaves its losses, all on the device.
struct microbatch_io {
  const std::int32_t* token;
  const std::int32_t* target;
  float* losses;  ///< [0]: cross-entropy; [1 + l]: load balance of layer l
};

/// What comes in and goes out is the residual stream, or its gradient, in a buffer: empty where the
/// embedding or the head is the border.
template <class Device, class Kernels>
class block {
 public:
  using buffer = tidepool::buffer<Device>;

  /// `chunk` numbers the blocks of one rank; at most `depth` microbatches are in flight.
  block(context<Device, Kernels>& on, parameters<Device>& weights, const layer_range& range,
        int chunk, int depth)
      : on_(on),
        weights_(weights),
        range_(range),
        chunk_(chunk),
        passes_(static_cast<std::size_t>(depth)) {
    for (index l = range.first; l < range.end; ++l) {
      layers_.emplace_back(on_, static_cast<int>(l), weights.layer(l));
    }
    for (pass& each : passes_) each.layers.resize(layers_.size());
  }

  /// Forward of one microbatch; everything it saves waits for `backward`.
  buffer forward(int microbatch, const microbatch_io& io, buffer x) {
    pass& now = pass_of(microbatch);
    now.chunk = on_.offloader.begin({.microbatch = microbatch, .model_chunk = chunk_});
    x = run_forward(now, io, std::move(x));
    now.chunk.end_forward();
    return x;
  }

  /// Backward of a microbatch whose forward has run; adds to the gradients.
  buffer backward(int microbatch, const microbatch_io& io, buffer gradient) {
    pass& now = pass_of(microbatch);
    // A gradient that leaves needs memory of its own; that of a whole model never leaves.
    if (range_.head && !range_.embedding) gradient = floats(tokens() * on_.sizes.hidden);
    float* const dx = gradient.size() > 0 ? p(gradient) : on_.work.dx;
    if (range_.head) head_backward(now, dx);
    for (std::size_t l = layers_.size(); l-- > 0;) {
      layers_[l].backward(now.chunk, now.layers[l], dx);
    }
    if (range_.embedding) {
      on_.kernels.embed_backward(weights_.embedding().gradient, weights_.positions().gradient, dx,
                                 io.token, tokens(), on_.sizes.seq, on_.sizes.hidden);
      on_.release(gradient);
    }
    now.chunk.finish();
    return gradient;
  }

  /// Forward without backward: saves nothing and leaves no trace in the offloader.
  buffer evaluate(const microbatch_io& io, buffer x) {
    pass now;
    now.forward_only = true;
    now.layers.resize(layers_.size());
    now.chunk = on_.offloader.begin({.model_chunk = chunk_, .forward_only = true});
    x = run_forward(now, io, std::move(x));
    now.chunk.finish();
    return x;
  }

 private:
  /// One microbatch between its forward and its backward.
  struct pass {
    tidepool::chunk<Device, saving_modules> chunk;
    std::vector<saved_layer<buffer>> layers;
    saved_head<buffer> head;
    bool forward_only = false;
  };

  buffer run_forward(pass& now, const microbatch_io& io, buffer x) {
    if (range_.embedding) {
      x = floats(tokens() * on_.sizes.hidden);
      on_.kernels.embed(p(x), weights_.embedding().weight, weights_.positions().weight, io.token,
                        tokens(), on_.sizes.seq, on_.sizes.hidden);
    }
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      float* const balance = io.losses + 1 + range_.first + static_cast<index>(l);
      x = layers_[l].forward(now.chunk, now.layers[l], std::move(x), balance);
      if (now.forward_only) now.layers[l] = {};  // nothing of it is needed again
    }
    if (range_.head) head_forward(now, std::move(x), io);
    return x;
  }

  void head_forward(pass& now, buffer x, const microbatch_io& io) {
    const auto span = on_.offloader.trace_span("head", on_.stream);
    auto& s = now.head;
    const index hidden = on_.sizes.hidden;
    s.x = std::move(x);
    s.h = floats(tokens() * hidden);
    s.rstd = floats(tokens());
    s.dlogits = floats(tokens() * vocabulary);
    on_.kernels.rmsnorm(p(s.h), p(s.rstd), p(s.x), weights_.final_gain().weight, tokens(), hidden);
    on_.kernels.linear(p(s.dlogits), p(s.h), weights_.head().weight, tokens(), hidden, vocabulary);
    on_.kernels.cross_entropy(io.losses, p(s.dlogits), io.target, tokens(), vocabulary,
                              1 / static_cast<float>(on_.microbatches));
    now.chunk.template commit<"final_norm">(number(), on_.stream, s.x, s.rstd, s.h, s.dlogits);
  }

  void head_backward(pass& now, float* dx) {
    const auto span = on_.offloader.trace_span("head backward", on_.stream);
    auto& s = now.head;
    auto& k = on_.kernels;
    const index hidden = on_.sizes.hidden;
    now.chunk.template restore<"final_norm">(number(), on_.stream, s.x, s.rstd, s.h, s.dlogits);
    k.linear_backward_weight(weights_.head().gradient, p(s.h), p(s.dlogits), tokens(), hidden,
                             vocabulary);
    k.linear_backward_input(on_.work.dh, p(s.dlogits), weights_.head().weight, tokens(), hidden,
                            vocabulary);
    k.fill(dx, tokens() * hidden, 0);
    k.rmsnorm_backward(dx, weights_.final_gain().gradient, on_.work.dh, p(s.x), p(s.rstd),
                       weights_.final_gain().weight, tokens(), hidden);
    on_.release(s.x, s.rstd, s.h, s.dlogits);
  }

  /// A schedule ends the backward of a microbatch before it starts the `depth`-th forward after it.
  pass& pass_of(int microbatch) {
    return passes_[static_cast<std::size_t>(microbatch) % passes_.size()];
  }
  /// The head counts as one layer more.
  [[nodiscard]] int number() const { return static_cast<int>(on_.sizes.layers); }
  [[nodiscard]] index tokens() const { return on_.sizes.tokens(); }
  buffer floats(index count) { return on_.template allocate<float>(count); }
  static float* p(const buffer& b) { return b.template as<float>(); }

  context<Device, Kernels>& on_;
  parameters<Device>& weights_;
  layer_range range_;
  int chunk_;
  std::vector<layer<Device, Kernels>> layers_;
  std::vector<pass> passes_;
};

}  // namespace moe
