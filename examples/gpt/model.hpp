/// A dense GPT over bytes, on the kernels of train_moe: pre-norm, attention, SwiGLU, cross-entropy
/// and AdamW.
///
/// The model knows nothing of Tidepool. It asks its `Layers` for the memory of a layer's
/// activations: `fresh` to write a block in forward, `done` after its last use there, `back` to
/// read it in backward, and `release` after that. `plain_layers` answers with offsets.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../train_moe/training/data.hpp"
#include "parameters.hpp"

namespace gpt {

/// The weights, and the memory that all layers share.
template <class Kernels>
class model {
 public:
  using device = typename Kernels::device;
  using stream_ref = typename device::stream_ref;

  model(device& dev, stream_ref stream, const settings& run)
      : dev_(dev),
        stream_(stream),
        m_(run.model),
        type_(operand_type(run)),
        k_(dev, stream, run),
        weights_(dev, k_, run),
        tokens_(dev, 2 * rows_, "text"),
        host_tokens_(dev, 2 * rows_, "text"),
        host_loss_(dev, 1, "loss") {
    k_.fill(ones_, rows_, 1);
  }

  /// Uploads the bytes of a step, and behind each the byte that follows it.
  void read(const moe::corpus& text, std::uint64_t seed) {
    text.sample(seed, false, m_, host_tokens_.data());
    dev_.copy(tokens_.data(), host_tokens_.data(),
              {.width = static_cast<std::size_t>(2 * rows_) * sizeof(std::int32_t)},
              tidepool::copy_direction::host_to_device, stream_);
  }

  template <class Layers>
  void forward(Layers& saved) {
    k_.embed(x_, weights_.embedding.weight, weights_.positions.weight, tokens_.data(), rows_,
             m_.seq, width_);
    for (int l = 0; l < m_.layers; ++l) {
      attention_forward(saved, l, weights_.layers[static_cast<std::size_t>(l)]);
      mlp_forward(saved, l, weights_.layers[static_cast<std::size_t>(l)]);
    }
  }

  /// Computes the loss, and the gradient with which `backward` begins.
  void head() {
    const parameter &gain = weights_.gain, &head = weights_.head;
    k_.rmsnorm(dout_, rstd_, x_, gain.weight, rows_, width_);  // dout_ is free until backward
    k_.linear(logits_, dout_, head.matrix, rows_, width_, vocabulary);
    k_.cross_entropy(loss_, dlogits_, logits_, tokens_.data() + rows_, rows_, vocabulary, 1);
    k_.fill(dx_, rows_ * width_, 0);
    k_.linear_backward_weight(head.gradient, dout_, dlogits_, rows_, width_, vocabulary);
    k_.linear_backward_input(sum_, dlogits_, head.matrix, rows_, width_, vocabulary);
    k_.rmsnorm_backward(dx_, gain.gradient, sum_, x_, rstd_, gain.weight, rows_, width_);
  }

  template <class Layers>
  void backward(Layers& saved) {
    for (int l = static_cast<int>(m_.layers); l-- > 0;) {
      mlp_backward(saved, l, weights_.layers[static_cast<std::size_t>(l)]);
      attention_backward(saved, l, weights_.layers[static_cast<std::size_t>(l)]);
    }
    k_.embed_backward(weights_.embedding.gradient, weights_.positions.gradient, dx_, tokens_.data(),
                      rows_, m_.seq, width_);
  }

  /// One step of AdamW; `step` counts from 0.
  void update(int step, float learning_rate) {
    constexpr float beta1 = 0.9F, beta2 = 0.95F;
    const auto t = static_cast<float>(step + 1);
    weights_.update({learning_rate, beta1, beta2, 1e-8F, 0.01F, 1 - std::pow(beta1, t),
                     1 - std::pow(beta2, t)});
  }

  /// The loss of the last `head`; waits for the stream.
  [[nodiscard]] float loss() {
    k_.publish(host_loss_.data(), loss_, 1);
    dev_.synchronize(stream_);
    return *host_loss_.data();
  }
  [[nodiscard]] const std::vector<parameter>& weights() const { return weights_.all; }

 private:
  /// Begins a part of a layer: saves the residual in the block `norm`, and writes the normalised
  /// rows to the block `to`.
  template <class Layers>
  operand enter(Layers& saved, int l, module norm, module to, const parameter& gain) {
    const auto [x, rstd] = rows_in(saved.fresh(norm, l));
    const operand h(saved.fresh(to, l), type_);
    k_.convert(x, x_, rows_ * width_);
    k_.rmsnorm(h, rstd, x_, gain.weight, rows_, width_);
    saved.done(norm, l);
    return h;
  }
  /// Ends the backward of a part: `dy` is the gradient of the product of the rows in `to` with `w`.
  template <class Layers>
  void leave(Layers& saved, int l, module norm, module to, const parameter& gain,
             const parameter& w, const_operand dy) {
    const index out = w.count / width_;
    const operand h(saved.back(to, l), type_);
    k_.linear_backward_weight(w.gradient, h, dy, rows_, width_, out);
    saved.release(to, l);
    k_.linear_backward_input(sum_, dy, w.matrix, rows_, width_, out);
    const auto [x, rstd] = rows_in(saved.back(norm, l));
    k_.rmsnorm_backward(dx_, gain.gradient, sum_, x, rstd, gain.weight, rows_, width_);
    saved.release(norm, l);
  }

  template <class Layers>
  void attention_forward(Layers& saved, int l, const layer_parameters& w) {
    const operand h = enter(saved, l, attn_norm, qkv_linear, w.attn_gain);
    const auto [qkv, o, lse] = heads_in(saved.fresh(core_attn, l));
    k_.linear(qkv, h, w.qkv.matrix, rows_, width_, 3 * width_);
    saved.done(qkv_linear, l);
    k_.attention(o, lse, qkv, shape());
    k_.linear(sum_, o, w.proj.matrix, rows_, width_, width_);
    saved.done(core_attn, l);
    k_.add(x_, x_, sum_, rows_ * width_);
  }
  template <class Layers>
  void attention_backward(Layers& saved, int l, const layer_parameters& w) {
    const const_operand dy = as_operand(dx_);
    const auto [qkv, o, lse] = heads_in(saved.back(core_attn, l));
    k_.linear_backward_weight(w.proj.gradient, o, dy, rows_, width_, width_);
    k_.linear_backward_input(dout_, dy, w.proj.matrix, rows_, width_, width_);
    k_.attention_backward(dqkv_, dout_, qkv, o, lse, shape());
    saved.release(core_attn, l);
    leave(saved, l, attn_norm, qkv_linear, w.attn_gain, w.qkv, dqkv_);
  }

  template <class Layers>
  void mlp_forward(Layers& saved, int l, const layer_parameters& w) {
    const operand h = enter(saved, l, mlp_norm, mlp_fc1, w.mlp_gain);
    const operand a(saved.fresh(mlp_act, l), type_);
    k_.linear(a, h, w.fc1.matrix, rows_, width_, 2 * ffn_);
    saved.done(mlp_fc1, l);
    const operand b(saved.fresh(mlp_fc2, l), type_);
    k_.swiglu(b, a, ones_, rows_, ffn_);
    saved.done(mlp_act, l);
    k_.linear(sum_, b, w.fc2.matrix, rows_, ffn_, width_);
    saved.done(mlp_fc2, l);
    k_.add(x_, x_, sum_, rows_ * width_);
  }
  template <class Layers>
  void mlp_backward(Layers& saved, int l, const layer_parameters& w) {
    const const_operand dy = as_operand(dx_);
    const operand b(saved.back(mlp_fc2, l), type_);
    k_.linear_backward_weight(w.fc2.gradient, b, dy, rows_, ffn_, width_);
    saved.release(mlp_fc2, l);
    k_.linear_backward_input(db_, dy, w.fc2.matrix, rows_, ffn_, width_);
    const operand a(saved.back(mlp_act, l), type_);
    k_.swiglu_backward(da_, dones_, db_, a, ones_, rows_, ffn_);
    saved.release(mlp_act, l);
    leave(saved, l, mlp_norm, mlp_fc1, w.mlp_gain, w.fc1, da_);
  }

  struct norm_block {
    float *x, *rstd;
  };
  struct attention_block {
    operand qkv, o;
    float* lse;
  };
  [[nodiscard]] norm_block rows_in(std::byte* block) const {
    auto* const x = reinterpret_cast<float*>(block);
    return {x, x + rows_ * width_};
  }
  [[nodiscard]] attention_block heads_in(std::byte* block) const {
    const operand qkv(block, type_), o = qkv + 3 * rows_ * width_;
    return {qkv, o, (o + rows_ * width_).template as<float>()};
  }
  [[nodiscard]] moe::attention_shape shape() const {
    return {m_.batch, m_.seq, m_.heads, m_.head_size()};
  }
  /// A gradient as products read it.
  const_operand as_operand(const float* gradient) {
    if (type_ == moe::number_type::fp32) return gradient;
    k_.convert(narrow_, gradient, rows_ * width_);
    return narrow_;
  }
  operand take(index count, moe::number_type type, const char* what) {
    memory_.emplace_back(dev_, count * moe::bytes_of(type), what);
    return {memory_.back().data(), type};
  }
  float* take(index count, const char* what) {
    return take(count, moe::number_type::fp32, what).template as<float>();
  }

  device& dev_;
  stream_ref stream_;
  moe::model_sizes m_;
  moe::number_type type_;
  index rows_ = m_.tokens(), width_ = m_.hidden, ffn_ = m_.dense_ffn;
  Kernels k_;
  parameters<Kernels> weights_;
  std::vector<moe::device_array<device, std::byte>> memory_;
  float* x_ = take(rows_ * width_, "residual");
  float* dx_ = take(rows_ * width_, "gradient of the residual");
  float* sum_ = take(rows_ * width_, "what is added to the residual");
  operand narrow_ = take(rows_ * width_, type_, "gradient as operand");
  operand dqkv_ = take(3 * rows_ * width_, type_, "gradient of qkv");
  operand dout_ = take(rows_ * width_, type_, "gradient of attention");
  float* db_ = take(rows_ * ffn_, "gradient of fc2's input");
  operand da_ = take(2 * rows_ * ffn_, type_, "gradient of fc1's output");
  float* ones_ = take(rows_, "weights of rows");
  float* dones_ = take(rows_, "their gradients");
  float* rstd_ = take(rows_, "last norm");
  float* logits_ = take(rows_ * vocabulary, "logits");
  operand dlogits_ = take(rows_ * vocabulary, type_, "gradient of logits");
  float* loss_ = take(1, "loss");
  moe::device_array<device, std::int32_t> tokens_;
  moe::device_array<device, std::int32_t, moe::side::host> host_tokens_;
  moe::device_array<device, float, moe::side::host> host_loss_;
};

}  // namespace gpt
