/// The weights, their gradients and momentum.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "../train_moe/model/device_array.hpp"
#include "kernels.hpp"

namespace graph_moe {

/// Some of the weights. `matrix` is what products read: a copy where operands are narrow.
struct parameter {
  float *weight, *gradient;
  operand matrix;
};
struct layer_parameters {
  parameter gain, router;
  std::vector<parameter> fc1, fc2;  ///< of each expert
};

inline moe::number_type operand_type(const moe::settings& run) {
  return run.precision == moe::precision_kind::bf16 ? moe::number_type::bf16
                                                    : moe::number_type::fp32;
}

/// Three arrays, and pointers into them.
template <class Kernels>
class weights {
 public:
  using device = typename Kernels::device;

  weights(device& dev, Kernels& k, const moe::settings& run)
      : k_(k),
        type_(operand_type(run)),
        seed_(run.seed),
        total_(count(run.model)),
        weights_(dev, total_, "weights"),
        gradients_(dev, total_, "gradients"),
        momentum_(dev, total_, "momentum") {
    if (type_ != moe::number_type::fp32) copy_.emplace(dev, total_, "copies of weights");
    k.fill(gradients_.data(), total_, 0);
    k.fill(momentum_.data(), total_, 0);
    const auto& m = run.model;
    const auto of = [](index inputs) { return 1 / std::sqrt(static_cast<float>(inputs)); };
    embedding = take(moe::vocabulary * m.hidden, 0.25F);
    k.randomize(embedding.weight, m.hidden, 4, run.seed);  // of byte 0: see `model::read`
    positions = take(m.seq * m.hidden, 1);  // bytes that are alike choose different experts
    for (index l = 0; l < m.layers; ++l) {
      layer_parameters w{take(m.hidden, 0), take(m.hidden * m.experts, 2 * of(m.hidden)), {}, {}};
      for (index e = 0; e < m.experts; ++e) {
        w.fc1.push_back(take(2 * m.hidden * m.ffn, of(m.hidden)));
        w.fc2.push_back(take(m.hidden * m.ffn, of(m.ffn)));
      }
      layers.push_back(std::move(w));
    }
    gain = take(m.hidden, 0);
    head = take(m.hidden * moe::vocabulary, of(m.hidden));
    refresh_copies();
  }

  void update(const std::int32_t* most, const sgd_step& step) {
    k_.update(weights_.data(), gradients_.data(), momentum_.data(), total_, most, step);
    refresh_copies();
  }

  parameter embedding, positions, gain, head;
  std::vector<layer_parameters> layers;

 private:
  static index padded(index n) { return (n + 63) / 64 * 64; }
  static index count(const moe::model_sizes& m) {
    const index expert = padded(2 * m.hidden * m.ffn) + padded(m.hidden * m.ffn);
    const index layer = padded(m.hidden) + padded(m.hidden * m.experts) + m.experts * expert;
    return 2 * padded(moe::vocabulary * m.hidden) + padded(m.seq * m.hidden) + m.layers * layer +
           padded(m.hidden);
  }
  /// `range` is that of the initial values, uniform around 0; 0: all of them are 1.
  parameter take(index n, float range) {
    float* const weight = weights_.data() + used_;
    if (range > 0) {
      k_.randomize(weight, n, range, moe::mix(seed_) + static_cast<std::uint64_t>(used_));
    } else {
      k_.fill(weight, n, 1);
    }
    const parameter taken{weight, gradients_.data() + used_,
                          copy_ ? operand(copy_->data() + used_, type_) : operand(weight)};
    used_ += padded(n);
    return taken;
  }
  void refresh_copies() {
    if (copy_) k_.convert({copy_->data(), type_}, weights_.data(), total_);
  }

  Kernels& k_;
  moe::number_type type_;
  std::uint64_t seed_;
  index total_, used_ = 0;
  moe::device_array<device, float> weights_, gradients_, momentum_;
  std::optional<moe::device_array<device, std::uint16_t>> copy_;
};

}  // namespace graph_moe
