/// A mixture of experts over bytes, of which a whole step is one piece of work without a wait:
/// embedding, layers of experts, cross-entropy, backward, update.
#pragma once

#include <algorithm>
#include <deque>

#include "../train_moe/training/data.hpp"
#include "layer.hpp"

namespace graph_moe {

template <class Kernels>
class model {
  using shared = context<Kernels>;

 public:
  using device = typename Kernels::device;
  using stream_ref = typename device::stream_ref;
  using offloader = typename shared::offloader;

  model(device& dev, stream_ref stream, const moe::settings& run, row_limits limits, index limit)
      : m_(run.model),
        run_(run),
        limit_(limit),
        k_(dev, stream, run),
        weights_(dev, k_, run),
        floats_(dev, rows_ * (1 + m_.experts + moe::vocabulary) + 2, "workspace"),
        counts_(dev, m_.layers * m_.experts + 1, "counts"),
        tokens_(dev, 2 * rows_, "text"),
        host_tokens_(dev, 2 * rows_, "text"),
        host_counts_(dev, m_.experts + 1, "counts"),
        host_loss_(dev, 1, "loss"),
        on_{dev,
            stream,
            k_,
            m_,
            operand_type(run),
            limits,
            floats_.data(),
            floats_.data() + rows_,
            host_counts_.data() + 1} {
    for (int l = 0; l < static_cast<int>(m_.layers); ++l) {
      layers_.emplace_back(on_, l, weights_.layers[static_cast<std::size_t>(l)],
                           counts_.data() + 1 + l * m_.experts);
    }
  }

  /// Uploads the bytes of a step, and behind each the byte that follows it. With `skewed` all
  /// are 0, whose embedding is stronger than the positions', so that few experts get all rows.
  void read(const moe::corpus& text, std::uint64_t seed, bool skewed) {
    text.sample(seed, false, m_, host_tokens_.data());
    if (skewed) std::fill_n(host_tokens_.data(), rows_, 0);
    on_.dev.copy(tokens_.data(), host_tokens_.data(),
                 {.width = static_cast<std::size_t>(2 * rows_) * sizeof(std::int32_t)},
                 tidepool::copy_direction::host_to_device, on_.stream);
  }

  /// A whole step. With counts that the host does not know, it does not wait for anything.
  void step(offloader& off, rows_known known) {
    on_.off = &off;
    on_.known = known;
    auto chunk = off.begin();
    auto x = on_.floats(rows_ * m_.hidden);
    k_.embed(x.template as<float>(), weights_.embedding.weight, weights_.positions.weight,
             tokens_.data(), rows_, m_.seq, m_.hidden);
    for (auto& each : layers_) x = each.forward(chunk, std::move(x));
    chunk.end_forward();
    auto dx = head(x);
    for (auto each = layers_.rbegin(); each != layers_.rend(); ++each) {
      each->backward(chunk, dx.template as<float>());
    }
    k_.embed_backward(weights_.embedding.gradient, weights_.positions.gradient,
                      dx.template as<float>(), tokens_.data(), rows_, m_.seq, m_.hidden);
    dx.reset(on_.stream);
    chunk.finish();
    off.end_step();

    // The update reads the counts, and does nothing if one is too large.
    k_.largest(counts_.data(), counts_.data() + 1, m_.layers * m_.experts);
    weights_.update(counts_.data(), {run_.learning_rate, 0.9F, limit(known)});
    k_.publish(host_counts_.data(), counts_.data(), 1);
    k_.publish(host_loss_.data(), loss_, 1);
  }

  /// Most rows of an expert in the last step; waits for the stream.
  [[nodiscard]] index most_rows() {
    on_.dev.synchronize(on_.stream);
    return *host_counts_.data();
  }
  /// The loss of the last step; waits for the stream.
  [[nodiscard]] float loss() {
    on_.dev.synchronize(on_.stream);
    return *host_loss_.data();
  }
  /// Rows that a step of this kind has for an expert.
  [[nodiscard]] index limit(rows_known known) const {
    return known == rows_known::to_device ? limit_ : rows_;
  }

 private:
  using buffer = typename offloader::buffer;

  /// Computes the loss, and the gradient with which backward begins.
  buffer head(buffer& x) {
    const index width = m_.hidden;
    const parameter &gain = weights_.gain, &head = weights_.head;
    buffer h = on_.numbers(rows_ * width), dlogits = on_.numbers(rows_ * moe::vocabulary);
    buffer dh = on_.floats(rows_ * width), dx = on_.floats(rows_ * width);
    k_.rmsnorm(on_.at(h), on_.rstd, x.template as<float>(), gain.weight, rows_, width);
    k_.linear(logits_, on_.at(h), head.matrix, rows_, width, moe::vocabulary);
    k_.cross_entropy(loss_, on_.at(dlogits), logits_, tokens_.data() + rows_, rows_,
                     moe::vocabulary, 1);
    k_.linear_backward_weight(head.gradient, on_.at(h), on_.at(dlogits), rows_, width,
                              moe::vocabulary);
    k_.linear_backward_input(dh.template as<float>(), on_.at(dlogits), head.matrix, rows_, width,
                             moe::vocabulary);
    k_.fill(dx.template as<float>(), rows_ * width, 0);
    k_.rmsnorm_backward(dx.template as<float>(), gain.gradient, dh.template as<float>(),
                        x.template as<float>(), on_.rstd, gain.weight, rows_, width);
    for (buffer* each : {&x, &h, &dlogits, &dh}) each->reset(on_.stream);
    return dx;
  }

  moe::model_sizes m_;
  moe::settings run_;
  index limit_, rows_ = m_.tokens();
  Kernels k_;
  weights<Kernels> weights_;
  moe::device_array<device, float> floats_;
  moe::device_array<device, std::int32_t> counts_, tokens_;  ///< counts: the largest, then all
  moe::device_array<device, std::int32_t, moe::side::host> host_tokens_, host_counts_;
  moe::device_array<device, float, moe::side::host> host_loss_;
  float* logits_ = floats_.data() + rows_ * (1 + m_.experts);
  float* loss_ = logits_ + rows_ * moe::vocabulary;
  shared on_;
  std::deque<layer<Kernels>> layers_;
};

}  // namespace graph_moe
