/// Consecutive layers of the model, forward and backward, for several microbatches in flight.
#pragma once

#include <cstdint>
#include <optional>
#include <tidepool/offloader.hpp>
#include <utility>
#include <vector>

#include "head.hpp"
#include "layer.hpp"
#include "layout.hpp"
#include "microbatch_io.hpp"
#include "mtp.hpp"
#include "parameters.hpp"

namespace moe {

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
    if (range.head) {
      // It counts as one layer more.
      head_.emplace(on_, static_cast<int>(on_.sizes.layers),
                    head_parameters{weights.final_gain(), weights.head()},
                    1 / static_cast<float>(on_.microbatches));
      for (index k = 1; k <= on_.sizes.mtp; ++k) mtp_.emplace_back(on_, weights, k);
    }
    for (pass& each : passes_) make_room(each);
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
    if (range_.head) {
      on_.kernels.fill(dx, tokens() * on_.sizes.hidden, 0);
      for (std::size_t d = mtp_.size(); d-- > 0;) {
        mtp_[d].backward(now.chunk, now.mtp[d], dx, io);
      }
      head_->backward(now.chunk, now.head, dx);
    }
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
    make_room(now);
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
    std::vector<saved_mtp<buffer>> mtp;
    bool forward_only = false;
  };

  void make_room(pass& now) const {
    now.layers.resize(layers_.size());
    now.mtp.resize(mtp_.size());
  }

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
    if (!range_.head) return x;
    buffer hidden = mtp_.empty() ? buffer() : x.share();
    head_->forward(now.chunk, now.head, std::move(x), io.token + tokens(), io.losses);
    for (std::size_t d = 0; d < mtp_.size(); ++d) {
      hidden = mtp_[d].forward(now.chunk, now.mtp[d], std::move(hidden), io);
      if (now.forward_only) now.mtp[d] = {};
    }
    on_.release(hidden);
    return {};
  }

  /// A schedule ends the backward of a microbatch before it starts the `depth`-th forward after it.
  pass& pass_of(int microbatch) {
    return passes_[static_cast<std::size_t>(microbatch) % passes_.size()];
  }
  [[nodiscard]] index tokens() const { return on_.sizes.tokens(); }
  buffer floats(index count) { return on_.template allocate<float>(count); }
  static float* p(const buffer& b) { return b.template as<float>(); }

  context<Device, Kernels>& on_;
  parameters<Device>& weights_;
  layer_range range_;
  int chunk_;
  std::vector<layer<Device, Kernels>> layers_;
  std::optional<head<Device, Kernels>> head_;
  std::vector<mtp_module<Device, Kernels>> mtp_;
  std::vector<pass> passes_;
};

}  // namespace moe
