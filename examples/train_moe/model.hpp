/// The whole model: embedding, layers, logits and loss, for several microbatches in flight.
#pragma once

#include <cstdint>
#include <tidepool/offloader.hpp>
#include <utility>
#include <vector>

#include "layer.hpp"
#include "parameters.hpp"

namespace moe {

/// Where one microbatch finds its text and leaves its losses, all on the device.
struct microbatch_io {
  const std::int32_t* token;
  const std::int32_t* target;
  float* losses;  ///< [0]: cross-entropy; [1 + l]: load balance of layer l
};

template <class Device, class Kernels>
class model {
 public:
  using offloader = tidepool::offloader<Device, saving_modules>;
  using buffer = tidepool::buffer<Device>;

  model(Device& dev, offloader& off, Kernels& kernels, typename Device::stream_ref stream,
        parameters<Device>& weights, const settings& run)
      : weights_(weights),
        on_{dev,
            off,
            kernels,
            stream,
            run.model,
            run.microbatches,
            {dev, run.model},
            {dev, run.model.experts, "routing counts"}},
        passes_(static_cast<std::size_t>(run.in_flight)) {
    for (int l = 0; l < run.model.layers; ++l) layers_.emplace_back(on_, l, weights.layer(l));
    for (pass& each : passes_) each.layers.resize(layers_.size());
  }

  /// Forward of one microbatch; everything it saves waits for `backward`.
  void forward(int microbatch, const microbatch_io& io) {
    pass& now = pass_of(microbatch);
    now.chunk = on_.offloader.begin({.microbatch = microbatch});
    run_forward(now, io);
    now.chunk.end_forward();
  }

  /// Backward of a microbatch whose forward has run; adds to the gradients.
  void backward(int microbatch, const microbatch_io& io) {
    pass& now = pass_of(microbatch);
    head_backward(now);
    for (std::size_t l = layers_.size(); l-- > 0;) {
      layers_[l].backward(now.chunk, now.layers[l], on_.work.dx);
    }
    on_.kernels.embed_backward(weights_.embedding().gradient, weights_.positions().gradient,
                               on_.work.dx, io.token, tokens(), on_.sizes.seq, on_.sizes.hidden);
    now.chunk.finish();
  }

  /// Forward without backward: saves nothing and leaves no trace in the offloader.
  void evaluate(const microbatch_io& io) {
    pass now;
    now.forward_only = true;
    now.layers.resize(layers_.size());
    now.chunk = on_.offloader.begin({.forward_only = true});
    run_forward(now, io);
    now.chunk.finish();
  }

 private:
  /// One microbatch between its forward and its backward.
  struct pass {
    tidepool::chunk<Device, saving_modules> chunk;
    std::vector<saved_layer<buffer>> layers;
    saved_head<buffer> head;
    bool forward_only = false;
  };

  void run_forward(pass& now, const microbatch_io& io) {
    buffer x = floats(tokens() * on_.sizes.hidden);
    on_.kernels.embed(p(x), weights_.embedding().weight, weights_.positions().weight, io.token,
                      tokens(), on_.sizes.seq, on_.sizes.hidden);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      x = layers_[l].forward(now.chunk, now.layers[l], std::move(x), io.losses + 1 + l);
      if (now.forward_only) now.layers[l] = {};  // nothing of it is needed again
    }
    head_forward(now, std::move(x), io);
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

  void head_backward(pass& now) {
    const auto span = on_.offloader.trace_span("head backward", on_.stream);
    auto& s = now.head;
    auto& k = on_.kernels;
    const index hidden = on_.sizes.hidden;
    now.chunk.template restore<"final_norm">(number(), on_.stream, s.x, s.rstd, s.h, s.dlogits);
    k.linear_backward_weight(weights_.head().gradient, p(s.h), p(s.dlogits), tokens(), hidden,
                             vocabulary);
    k.linear_backward_input(on_.work.dh, p(s.dlogits), weights_.head().weight, tokens(), hidden,
                            vocabulary);
    k.fill(on_.work.dx, tokens() * hidden, 0);
    k.rmsnorm_backward(on_.work.dx, weights_.final_gain().gradient, on_.work.dh, p(s.x), p(s.rstd),
                       weights_.final_gain().weight, tokens(), hidden);
    on_.release(s.x, s.rstd, s.h, s.dlogits);
  }

  /// 1F1B ends the backward of a microbatch before it starts the `in_flight`-th forward after it.
  pass& pass_of(int microbatch) {
    return passes_[static_cast<std::size_t>(microbatch) % passes_.size()];
  }
  /// The head counts as one layer more.
  [[nodiscard]] int number() const { return static_cast<int>(layers_.size()); }
  [[nodiscard]] index tokens() const { return on_.sizes.tokens(); }
  buffer floats(index count) { return on_.template allocate<float>(count); }
  static float* p(const buffer& b) { return b.template as<float>(); }

  parameters<Device>& weights_;
  context<Device, Kernels> on_;
  std::vector<layer<Device, Kernels>> layers_;
  std::vector<pass> passes_;
};

}  // namespace moe
