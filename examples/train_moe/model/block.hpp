/// Consecutive layers of the model, forward and backward, for several microbatches in flight.
#pragma once

#include <cstdint>
#include <optional>
#include <tidepool/offloader.hpp>
#include <utility>
#include <vector>

#include "../parallel/layout.hpp"
#include "head.hpp"
#include "layer.hpp"
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
    pass& now = begin_forward(microbatch, io, std::move(x));
    while (advance(now, io)) continue;
    return end_forward(now, io);
  }

  /// Backward of a microbatch whose forward has run; adds to the gradients.
  buffer backward(int microbatch, const microbatch_io& io, buffer gradient) {
    pass& now = begin_backward(microbatch, io, std::move(gradient));
    while (advance_backward(now)) continue;
    return end_backward(now, io);
  }

  /// A microbatch at the border of a block.
  struct part {
    int microbatch;
    microbatch_io io;
    buffer border;  ///< of `forward` or `backward`: what goes in, then what comes out
  };

  /// Backward here and forward in `other`, perhaps this one, piece by piece: the rows of one travel
  /// while the stream computes the other.
  void backward_beside_forward(part& behind, block& other, part& ahead) {
    pass& back = begin_backward(behind.microbatch, behind.io, std::move(behind.border));
    pass& forth = other.begin_forward(ahead.microbatch, ahead.io, std::move(ahead.border));
    for (bool back_goes_on = true, forth_goes_on = true; back_goes_on || forth_goes_on;) {
      if (forth_goes_on) forth_goes_on = other.advance(forth, ahead.io);
      if (back_goes_on) back_goes_on = advance_backward(back);
    }
    ahead.border = other.end_forward(forth, ahead.io);
    behind.border = end_backward(back, behind.io);
  }

  /// Forward without backward: saves nothing and leaves no trace in the offloader.
  buffer evaluate(const microbatch_io& io, buffer x) {
    pass now;
    now.forward_only = true;
    make_room(now);
    now.chunk = on_.offloader.begin({.model_chunk = chunk_, .forward_only = true});
    const auto choices = on_.choices;  // those of training are counted
    enter(now, io, std::move(x));
    while (advance(now, io)) continue;
    leave(now, io);
    on_.choices = choices;
    now.chunk.finish();
    return std::move(now.x);
  }

 private:
  /// One microbatch between its forward and its backward.
  struct pass {
    tidepool::chunk<Device, saving_modules> chunk;
    std::vector<saved_layer<buffer>> layers;
    saved_head<buffer> head;
    std::vector<saved_mtp<buffer>> mtp;
    bool forward_only = false;
    std::size_t piece = 0;  ///< the next one
    buffer x, gradient;     ///< from layer to layer
    float* dx = nullptr;    ///< where the gradient lies
  };

  void make_room(pass& now) const {
    now.layers.resize(layers_.size());
    now.mtp.resize(mtp_.size());
  }

  pass& begin_forward(int microbatch, const microbatch_io& io, buffer x) {
    pass& now = pass_of(microbatch);
    now.chunk = on_.offloader.begin({.microbatch = microbatch, .model_chunk = chunk_});
    enter(now, io, std::move(x));
    return now;
  }
  buffer end_forward(pass& now, const microbatch_io& io) {
    leave(now, io);
    now.chunk.end_forward();
    return std::move(now.x);
  }

  /// What comes before the layers.
  void enter(pass& now, const microbatch_io& io, buffer x) {
    if (range_.embedding) {
      x = floats(tokens() * on_.sizes.hidden);
      on_.kernels.embed(p(x), weights_.embedding().weight, weights_.positions().weight, io.token,
                        tokens(), on_.sizes.seq, on_.sizes.hidden);
    }
    now.x = std::move(x);
    now.piece = 0;
  }
  /// One piece of the forward: a layer's experts, or what lies between those of two layers. Returns
  /// whether there is another.
  bool advance(pass& now, const microbatch_io& io) {
    const std::size_t l = now.piece / 2;
    if (now.piece++ % 2 == 1) {
      layers_[l].compute(now.chunk, now.layers[l]);
      return true;
    }
    if (l > 0) {
      now.x = layers_[l - 1].collect(now.chunk, now.layers[l - 1]);
      if (now.forward_only) now.layers[l - 1] = {};  // nothing of it is needed again
    }
    if (l == layers_.size()) return false;
    float* const balance = io.losses + 1 + range_.first + static_cast<index>(l);
    layers_[l].dispatch(now.chunk, now.layers[l], std::move(now.x), balance);
    return true;
  }
  /// What comes behind the layers.
  void leave(pass& now, const microbatch_io& io) {
    if (!range_.head) return;
    buffer hidden = mtp_.empty() ? buffer() : now.x.share();
    head_->forward(now.chunk, now.head, std::move(now.x), io.token + tokens(), io.losses);
    for (std::size_t d = 0; d < mtp_.size(); ++d) {
      hidden = mtp_[d].forward(now.chunk, now.mtp[d], std::move(hidden), io);
      if (now.forward_only) now.mtp[d] = {};
    }
    on_.release(hidden);
  }

  pass& begin_backward(int microbatch, const microbatch_io& io, buffer gradient) {
    pass& now = pass_of(microbatch);
    // A gradient that leaves needs memory of its own; that of a whole model never leaves.
    if (range_.head && !range_.embedding) gradient = floats(tokens() * on_.sizes.hidden);
    now.dx = gradient.size() > 0 ? p(gradient) : on_.work.dx;
    now.gradient = std::move(gradient);
    now.piece = 0;
    if (range_.head) {
      on_.kernels.fill(now.dx, tokens() * on_.sizes.hidden, 0);
      for (std::size_t d = mtp_.size(); d-- > 0;) {
        mtp_[d].backward(now.chunk, now.mtp[d], now.dx, io);
      }
      head_->backward(now.chunk, now.head, now.dx);
    }
    return now;
  }
  /// As `advance`, from the last layer to the first.
  bool advance_backward(pass& now) {
    const std::size_t done = now.piece / 2;
    const auto layer_after = [&](std::size_t count) { return layers_.size() - 1 - count; };
    if (now.piece++ % 2 == 1) {
      const std::size_t l = layer_after(done);
      layers_[l].compute_backward(now.chunk, now.layers[l], now.dx);
      return true;
    }
    if (done > 0) {
      const std::size_t l = layer_after(done - 1);
      layers_[l].collect_backward(now.chunk, now.layers[l], now.dx);
    }
    if (done == layers_.size()) return false;
    const std::size_t l = layer_after(done);
    layers_[l].dispatch_backward(now.chunk, now.layers[l], now.dx);
    return true;
  }
  buffer end_backward(pass& now, const microbatch_io& io) {
    if (range_.embedding) {
      on_.kernels.embed_backward(weights_.embedding().gradient, weights_.positions().gradient,
                                 now.dx, io.token, tokens(), on_.sizes.seq, on_.sizes.hidden);
      on_.release(now.gradient);
    }
    now.chunk.finish();
    return std::move(now.gradient);
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
