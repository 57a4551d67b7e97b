/// A GPT in the style of llm.c: one allocation for all parameters, one for all activations,
/// pointers by offset, kernels by hand. The arrays of layers come from `Arrays`: `plain_arrays` is
/// that trainer as it was, `saved_arrays` has them by `layers.hpp`.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <tidepool/tidepool.hpp>
#include <utility>
#include <vector>

#include "kernels.hpp"

namespace gpt {

struct shape {
  int layers = 2, width = 32, heads = 4, length = 32, batch = 2;

  [[nodiscard]] std::size_t c() const { return static_cast<std::size_t>(width); }
  [[nodiscard]] std::size_t rows() const {
    return static_cast<std::size_t>(batch) * static_cast<std::size_t>(length);
  }
  [[nodiscard]] std::size_t hidden() const { return rows() * c(); }
  [[nodiscard]] std::size_t scores() const {
    return rows() * static_cast<std::size_t>(length) * static_cast<std::size_t>(heads);
  }
};

/// Pointers into memory for all parameters, or for their gradients.
struct parameters {
  struct layer {
    float *norm1, *bias1, *qkv, *qkv_bias, *out, *out_bias, *norm2, *bias2, *up, *up_bias, *down,
        *down_bias;
  };
  float *words, *places, *norm, *bias;
  std::vector<layer> layers;

  /// The number of elements; with `memory`, the pointers too. `seen` gets each tensor.
  template <class Seen>
  std::size_t lay_out(const shape& s, float* memory, const Seen& seen) {
    const auto c = s.c();
    std::size_t used = 0;
    const auto take = [&](float*& pointer, std::size_t count, char kind) {
      if (memory != nullptr) pointer = memory + used;
      seen(used, count, kind);
      used += count;
    };
    layers.resize(static_cast<std::size_t>(s.layers));
    take(words, 256 * c, 'w');
    take(places, static_cast<std::size_t>(s.length) * c, 'w');
    for (auto& l : layers) {
      take(l.norm1, c, '1'), take(l.bias1, c, '0');
      take(l.qkv, 3 * c * c, 'w'), take(l.qkv_bias, 3 * c, '0');
      take(l.out, c * c, 'w'), take(l.out_bias, c, '0');
      take(l.norm2, c, '1'), take(l.bias2, c, '0');
      take(l.up, 4 * c * c, 'w'), take(l.up_bias, 4 * c, '0');
      take(l.down, 4 * c * c, 'w'), take(l.down_bias, c, '0');
    }
    take(norm, c, '1'), take(bias, c, '0');
    return used;
  }
};

/// Arrays of one layer's size after another, in one allocation.
template <class Device>
struct plain_arrays {
  using stream_ref = typename Device::stream_ref;
  struct group {
    void done(int, stream_ref) {}
    void release(int, stream_ref) {}
  };
  struct array {
    float* base;
    std::size_t size;
    float* fresh(int l, std::size_t, stream_ref) const { return at(l); }
    float* back(int l, stream_ref) const { return at(l); }
    float* at(int l) const { return base + static_cast<std::size_t>(l) * size; }
  };
  plain_arrays(Device& device, const shape& s) : dev(&device) {
    const auto h = s.hidden(), r = s.rows();
    array* const all[]{&x,     &mean1, &scale1, &ln1,    &qkv, &share,
                       &mixed, &x2,    &mean2,  &scale2, &ln2, &up};
    const std::size_t sizes[]{h, r, r, h, 3 * h, s.scores(), h, h, r, r, h, 4 * h};
    // The final norm has an input, a mean and a deviation, too.
    const auto layers = static_cast<std::size_t>(s.layers);
    const auto count = [&](std::size_t i) { return layers + (i < 3 ? 1 : 0); };
    std::size_t total = 0;
    for (std::size_t i = 0; i < std::size(sizes); ++i) total += sizes[i] * count(i);
    memory = static_cast<float*>(dev->allocate(total * sizeof(float)));
    auto* next = memory;
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      *all[i] = {next, sizes[i]};
      next += sizes[i] * count(i);
    }
  }
  plain_arrays(const plain_arrays&) = delete;
  plain_arrays& operator=(const plain_arrays&) = delete;
  ~plain_arrays() { dev->deallocate(memory); }
  void begin() {}
  void end_forward() {}
  void finish() {}

  Device* dev;
  float* memory = nullptr;
  group attn_norm, qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act;
  array x{}, mean1{}, scale1{}, ln1{}, qkv{}, share{}, mixed{}, x2{}, mean2{}, scale2{}, ln2{},
      up{};
};

/// The same arrays by `layers.hpp`: a line for each array, and these.
template <class Device>
struct saved_arrays {
  using offloader = tidepool::offloader<Device, tidepool::all_modules>;
  using group = tidepool::layer_group<offloader>;
  using array = tidepool::saved_layers<float, offloader>;

  explicit saved_arrays(offloader& by) : off(&by) {}
  void begin() { pass = off->begin(); }
  void end_forward() { pass.end_forward(); }
  void finish() {
    pass.finish();
    off->end_step();
  }

  offloader* off;
  typename offloader::chunk pass;
  group attn_norm{*off, pass, "attn_norm"}, qkv_linear{*off, pass, "qkv_linear"},
      core_attn{*off, pass, "core_attn"}, attn_proj{*off, pass, "attn_proj"},
      mlp_norm{*off, pass, "mlp_norm"}, expert_fc1{*off, pass, "expert_fc1"},
      moe_act{*off, pass, "moe_act"};
  array x{attn_norm}, mean1{attn_norm}, scale1{attn_norm}, ln1{qkv_linear}, qkv{core_attn},
      share{core_attn}, mixed{attn_proj}, x2{mlp_norm}, mean2{mlp_norm}, scale2{mlp_norm},
      ln2{expert_fc1}, up{moe_act};
};

template <class Device>
class model {
 public:
  using stream_ref = typename Device::stream_ref;

  model(Device& dev, stream_ref stream, const shape& of)
      : dev_(&dev), stream_(stream), s_(of), run_(dev, stream) {
    const auto nothing = [](std::size_t, std::size_t, char) {};
    count_ = weights_.lay_out(s_, nullptr, nothing);
    const auto h = s_.hidden(), wide = std::max({4 * h, s_.scores(), std::size_t{256} * s_.rows()});
    // weights, gradients, Adam's two; then what a step needs beside its arrays of layers
    const auto total = 4 * count_ + 5 * h + 3 * h + 2 * wide + 256 * s_.rows() + 2 * s_.rows();
    memory_ = static_cast<float*>(dev.allocate(total * sizeof(float)));
    tokens_ = static_cast<unsigned char*>(dev.allocate(2 * s_.rows()));
    std::uint32_t seed = 1;
    weights_.lay_out(s_, memory_, [&](std::size_t begin, std::size_t count, char kind) {
      if (kind == 'w') return run_.each_of(count, scatter{memory_ + begin, 0.035F, seed++});
      run_.each_of(count, set_all{memory_ + begin, kind == '1' ? 1.F : 0.F});
    });
    grads_.lay_out(s_, memory_ + count_, nothing);
    run_.each_of(3 * count_, set_all{memory_ + count_, 0});
    auto* next = memory_ + 4 * count_;
    const auto take = [&](std::size_t count) { return std::exchange(next, next + count); };
    grad_ = take(h), normed_ = take(h), side_ = take(h), products_ = take(h), heads_ = take(h);
    three_ = take(3 * h), wide_ = take(wide), wide2_ = take(wide);
    logits_ = take(256 * s_.rows()), losses_ = take(s_.rows()), ones_ = take(s_.rows());
    run_.each_of(s_.rows(), set_all{ones_, 1});
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;
  ~model() {
    dev_->deallocate(memory_);
    dev_->deallocate(tokens_);
  }

  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] float* weights() { return memory_; }
  [[nodiscard]] float* gradients() { return memory_ + count_; }

  /// The tokens of a batch, and after them those that come next.
  void give(const std::vector<unsigned char>& host) {
    dev_->copy(tokens_, host.data(), {.width = 2 * s_.rows()},
               tidepool::copy_direction::host_to_device, stream_);
    dev_->synchronize();
  }

  template <class Arrays>
  void forward(Arrays& a) {
    const auto h = s_.hidden(), r = s_.rows();
    a.begin();
    auto* x = a.x.fresh(0, h, stream_);
    run_.each_of(h, embed{x, tokens_, weights_.words, weights_.places, s_.c(), length()});
    for (int l = 0; l < s_.layers; ++l) x = forward_layer(a, l, x);
    normalize(normed_, a.mean1.fresh(s_.layers, r, stream_), a.scale1.fresh(s_.layers, r, stream_),
              x, weights_.norm, weights_.bias);
    a.attn_norm.done(s_.layers, stream_);
    a.end_forward();
    linear(logits_, normed_, weights_.words, s_.width, 256);
    run_.rows(r, cross_entropy{losses_, logits_, tokens_ + r, 1 / static_cast<float>(r)});
  }

  template <class Arrays>
  void backward(Arrays& a) {
    const auto h = s_.hidden(), c = s_.c();
    run_.each_of(count_, set_all{gradients(), 0});
    run_.each_of(h, set_all{grad_, 0});
    linear_back(side_, grads_.words, nullptr, logits_, normed_, weights_.words, s_.width, 256);
    normalize_back(a.x.back(s_.layers, stream_), a.mean1.back(s_.layers, stream_),
                   a.scale1.back(s_.layers, stream_), weights_.norm, grads_.norm, grads_.bias);
    a.attn_norm.release(s_.layers, stream_);
    for (int l = s_.layers; l-- > 0;) backward_layer(a, l);
    a.finish();
    run_.each_of(256 * s_.rows(), one_hot{logits_, tokens_});
    run_.multiply(grads_.words, logits_, grad_, {256, s_.width, rows(), true, false, 1, 1});
    run_.each_of(length() * c, places_back{grads_.places, grad_, c, length(),
                                           static_cast<std::size_t>(s_.batch)});
  }

  void update(float rate, int step) {
    const auto left = [&](float beta) { return 1 - std::pow(beta, static_cast<float>(step)); };
    run_.each_of(count_, adam{memory_, gradients(), memory_ + 2 * count_, memory_ + 3 * count_,
                              rate, left(0.9F), left(0.95F)});
  }

  /// The mean loss of the rows. Waits for the device.
  [[nodiscard]] double loss() {
    double sum = 0;
    for (const float each : read_back(*dev_, stream_, losses_, s_.rows())) sum += double{each};
    return sum / static_cast<double>(s_.rows());
  }

 private:
  [[nodiscard]] int rows() const { return s_.batch * s_.length; }
  [[nodiscard]] std::size_t length() const { return static_cast<std::size_t>(s_.length); }
  [[nodiscard]] heads_shape heads() const {
    return {static_cast<std::size_t>(s_.batch), length(), static_cast<std::size_t>(s_.heads),
            s_.c() / static_cast<std::size_t>(s_.heads)};
  }

  void normalize(float* to, float* mean, float* scale, const float* from, const float* weight,
                 const float* bias) {
    run_.rows(s_.rows(), norm{to, mean, scale, from, weight, bias, s_.c()});
  }
  // From the gradient of the output, in side_; adds to grad_.
  void normalize_back(const float* from, const float* mean, const float* scale, const float* weight,
                      float* dweight, float* dbias) {
    run_.rows(s_.rows(), norm_back{grad_, products_, side_, from, mean, scale, weight, s_.c()});
    run_.multiply(dweight, ones_, products_, {1, s_.width, rows(), false, false, 1, 1});
    run_.multiply(dbias, ones_, side_, {1, s_.width, rows(), false, false, 1, 1});
  }
  // Weights lie as (out, in).
  void linear(float* to, const float* from, const float* weight, int in, int out,
              const float* bias = nullptr) {
    run_.multiply(to, from, weight, {rows(), out, in, false, true});
    if (bias != nullptr) {
      const auto columns = static_cast<std::size_t>(out);
      run_.each_of(s_.rows() * columns, add_row{to, bias, columns});
    }
  }
  void linear_back(float* dfrom, float* dweight, float* dbias, const float* dto, const float* from,
                   const float* weight, int in, int out) {
    run_.multiply(dweight, dto, from, {out, in, rows(), true, false, 1, 1});
    if (dbias != nullptr) run_.multiply(dbias, ones_, dto, {1, out, rows(), false, false, 1, 1});
    run_.multiply(dfrom, dto, weight, {rows(), in, out});
  }

  template <class Arrays>
  float* forward_layer(Arrays& a, int l, const float* x) {
    const auto& w = weights_.layers[static_cast<std::size_t>(l)];
    const auto h = s_.hidden(), r = s_.rows();
    const int c = s_.width, many = s_.batch * s_.heads, head = c / s_.heads, t = s_.length;
    auto* ln1 = a.ln1.fresh(l, h, stream_);
    normalize(ln1, a.mean1.fresh(l, r, stream_), a.scale1.fresh(l, r, stream_), x, w.norm1,
              w.bias1);
    linear(three_, ln1, w.qkv, c, 3 * c, w.qkv_bias);
    a.qkv_linear.done(l, stream_);

    auto* q = a.qkv.fresh(l, 3 * h, stream_);
    run_.each_of(3 * h, split_heads{q, three_, heads(), 3});
    auto* share = a.share.fresh(l, s_.scores(), stream_);
    run_.multiply(share, q, q + h,
                  {t, t, head, false, true, 1 / std::sqrt(static_cast<float>(head)), 0, many});
    run_.rows(s_.scores() / length(), softmax{share, length()});
    run_.multiply(heads_, share, q + 2 * h, {t, head, t, false, false, 1, 0, many});
    a.core_attn.done(l, stream_);

    auto* mixed = a.mixed.fresh(l, h, stream_);
    run_.each_of(h, join_heads{mixed, heads_, heads(), 1});
    linear(side_, mixed, w.out, c, c, w.out_bias);
    a.attn_proj.done(l, stream_);
    auto* x2 = a.x2.fresh(l, h, stream_);
    run_.each_of(h, add{x2, x, side_});
    a.attn_norm.done(l, stream_);

    auto* ln2 = a.ln2.fresh(l, h, stream_);
    normalize(ln2, a.mean2.fresh(l, r, stream_), a.scale2.fresh(l, r, stream_), x2, w.norm2,
              w.bias2);
    auto* up = a.up.fresh(l, 4 * h, stream_);
    linear(up, ln2, w.up, c, 4 * c, w.up_bias);
    a.expert_fc1.done(l, stream_);
    run_.each_of(4 * h, gelu{wide_, up});
    a.moe_act.done(l, stream_);
    linear(side_, wide_, w.down, 4 * c, c, w.down_bias);
    auto* next = a.x.fresh(l + 1, h, stream_);
    run_.each_of(h, add{next, x2, side_});
    a.mlp_norm.done(l, stream_);
    return next;
  }

  template <class Arrays>
  void backward_layer(Arrays& a, int l) {
    const auto& w = weights_.layers[static_cast<std::size_t>(l)];
    const auto& g = grads_.layers[static_cast<std::size_t>(l)];
    const auto h = s_.hidden();
    const int c = s_.width, many = s_.batch * s_.heads, head = c / s_.heads, t = s_.length;
    const auto* up = a.up.back(l, stream_);
    run_.each_of(4 * h, gelu{wide_, up});
    linear_back(wide2_, g.down, g.down_bias, grad_, wide_, w.down, 4 * c, c);
    run_.each_of(4 * h, gelu_back{wide2_, up});
    a.moe_act.release(l, stream_);
    linear_back(side_, g.up, g.up_bias, wide2_, a.ln2.back(l, stream_), w.up, c, 4 * c);
    a.expert_fc1.release(l, stream_);
    normalize_back(a.x2.back(l, stream_), a.mean2.back(l, stream_), a.scale2.back(l, stream_),
                   w.norm2, g.norm2, g.bias2);
    a.mlp_norm.release(l, stream_);

    linear_back(side_, g.out, g.out_bias, grad_, a.mixed.back(l, stream_), w.out, c, c);
    a.attn_proj.release(l, stream_);
    run_.each_of(h, split_heads{heads_, side_, heads(), 1});
    const auto* q = a.qkv.back(l, stream_);
    const auto* share = a.share.back(l, stream_);
    const float scale = 1 / std::sqrt(static_cast<float>(head));
    run_.multiply(wide_, heads_, q + 2 * h, {t, t, head, false, true, 1, 0, many});
    run_.multiply(wide2_ + 2 * h, share, heads_, {t, head, t, true, false, 1, 0, many});
    run_.rows(s_.scores() / length(), softmax_back{wide_, share, length()});
    run_.multiply(wide2_, wide_, q + h, {t, head, t, false, false, scale, 0, many});
    run_.multiply(wide2_ + h, wide_, q, {t, head, t, true, false, scale, 0, many});
    run_.each_of(3 * h, join_heads{three_, wide2_, heads(), 3});
    a.core_attn.release(l, stream_);

    linear_back(side_, g.qkv, g.qkv_bias, three_, a.ln1.back(l, stream_), w.qkv, c, 3 * c);
    a.qkv_linear.release(l, stream_);
    normalize_back(a.x.back(l, stream_), a.mean1.back(l, stream_), a.scale1.back(l, stream_),
                   w.norm1, g.norm1, g.bias1);
    a.attn_norm.release(l, stream_);
  }

  Device* dev_;
  stream_ref stream_;
  shape s_;
  ops<Device> run_;
  parameters weights_{}, grads_{};
  std::size_t count_ = 0;
  float* memory_ = nullptr;
  unsigned char* tokens_ = nullptr;
  float *grad_, *normed_, *side_, *products_, *heads_, *three_, *wide_, *wide2_, *logits_, *losses_,
      *ones_;
};

}  // namespace gpt
