/// The weights, their gradients and the moments of AdamW.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "activations.hpp"

namespace gpt {

/// Some of the weights. `matrix` is what products read: a copy where operands are narrow.
struct parameter {
  float *weight, *gradient;
  operand matrix;
  index count;
  float range;  ///< of the initial values, uniform around 0; 0: all of them 1
};

struct layer_parameters {
  parameter attn_gain, qkv, proj, mlp_gain, fc1, fc2;
};

/// Weights, gradients and both moments: four arrays, with pointers into them.
template <class Kernels>
class parameters {
 public:
  using device = typename Kernels::device;

  parameters(device& dev, Kernels& k, const settings& run)
      : k_(k),
        type_(operand_type(run)),
        total_(count(run.model)),
        arrays_{array(dev, "weights"), array(dev, "gradients"), array(dev, "AdamW momentum"),
                array(dev, "AdamW variance")} {
    if (type_ != moe::number_type::fp32) copy_.emplace(dev, total_, "copies of weights");
    const auto& m = run.model;
    const auto of = [](index inputs) { return 1 / std::sqrt(static_cast<float>(inputs)); };
    const float into_sum = of(2 * m.layers);  // layers add their outputs up
    embedding = take(vocabulary * m.hidden, 0.1F);
    positions = take(m.seq * m.hidden, 0.1F);
    for (index l = 0; l < m.layers; ++l) {
      layers.push_back({take(m.hidden, 0), take(3 * m.hidden * m.hidden, of(m.hidden)),
                        take(m.hidden * m.hidden, of(m.hidden) * into_sum), take(m.hidden, 0),
                        take(2 * m.hidden * m.dense_ffn, of(m.hidden)),
                        take(m.hidden * m.dense_ffn, of(m.dense_ffn) * into_sum)});
    }
    gain = take(m.hidden, 0);
    head = take(m.hidden * vocabulary, of(m.hidden));
    for (const floats& each : arrays_) k.fill(each.data(), total_, 0);
    for (const parameter& p : all) initialise(p, run.seed);
    refresh_copies();
  }

  void update(const moe::adamw_step& step) {
    k_.adamw(arrays_[0].data(), arrays_[1].data(), arrays_[2].data(), arrays_[3].data(), total_,
             step);
    refresh_copies();
  }

  std::vector<parameter> all;
  std::vector<layer_parameters> layers;
  parameter embedding, positions, gain, head;

 private:
  using floats = moe::device_array<device, float>;

  static index padded(index n) { return (n + 63) / 64 * 64; }
  static index count(const moe::model_sizes& m) {
    const index layer = 2 * padded(m.hidden) + padded(3 * m.hidden * m.hidden) +
                        padded(m.hidden * m.hidden) + padded(2 * m.hidden * m.dense_ffn) +
                        padded(m.hidden * m.dense_ffn);
    return 2 * padded(vocabulary * m.hidden) + padded(m.seq * m.hidden) + m.layers * layer +
           padded(m.hidden);
  }
  floats array(device& dev, const char* name) { return {dev, total_, name}; }

  parameter take(index n, float range) {
    float* const weight = arrays_[0].data() + used_;
    const operand matrix = copy_ ? operand(copy_->data() + used_, type_) : operand(weight);
    all.push_back({weight, arrays_[1].data() + used_, matrix, n, range});
    used_ += padded(n);
    return all.back();
  }
  void initialise(const parameter& p, std::uint64_t seed) {
    const auto first = static_cast<std::uint64_t>(p.weight - arrays_[0].data());
    if (p.range > 0) {
      k_.randomize(p.weight, p.count, p.range, moe::mix(seed) + first);
    } else {
      k_.fill(p.weight, p.count, 1);
    }
  }
  void refresh_copies() {
    if (copy_) k_.convert({copy_->data(), type_}, arrays_[0].data(), total_);
  }

  Kernels& k_;
  moe::number_type type_;
  index total_, used_ = 0;
  std::array<floats, 4> arrays_;
  std::optional<moe::device_array<device, std::uint16_t>> copy_;
};

}  // namespace gpt
