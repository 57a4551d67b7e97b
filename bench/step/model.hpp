/// The stack: layers of attention and routed experts, forward and backward, as a trainer has them.
///
/// This is where Tidepool meets the model. For each module there are two lines: a `commit` when its
/// forward is over, and a `restore` before its backward. All else is what the trainer does anyway.
#pragma once

#include <vector>

#include "attention.hpp"
#include "session.hpp"
#include "weights.hpp"

namespace bench {

/// What one layer saves for its backward pass, in the offloader's memory.
struct saved_layer {
  buffer qkv;       ///< core_attn, when it leaves
  buffer kept_qkv;  ///< the same for when it does not: memory of its own, held for good
  buffer xs;        ///< expert_fc1: the rows that the experts read
  buffer a;         ///< moe_act: what fc1 made of them
};

/// One microbatch in flight.
struct microbatch {
  int number = 0;
  session::chunk chunk;
  std::vector<saved_layer> saved;
  // The residual stream stays on the device: before each layer and after the last, and between
  // attention and experts.
  std::vector<device_array<bf16>> x;
  std::vector<device_array<bf16>> h;
};

class model {
 public:
  model(cuda_device& dev, cudaStream_t stream, const model_sizes& sizes, int depth)
      : stream_(dev, stream),
        n_(sizes),
        keeper_(dev),
        math_(dev, stream),
        routes_(dev, stream_, sizes),
        weights_(make_weights(dev, stream_, sizes)),
        xs_like_(dev, n_.rows() * n_.hidden),
        a_like_(dev, n_.rows() * 2 * n_.ffn),
        b_(dev, n_.rows() * n_.ffn),
        db_(dev, n_.rows() * n_.ffn),
        dx_(dev, n_.tokens * n_.hidden),
        above_(dev, n_.tokens * n_.hidden) {
    fill_random(above_.data(), above_.count(), 1, 0.01, stream_);
    if (n_.attention) {
      attention_.emplace_back(dev, stream, math_, n_);
      for (auto* each : {&o_, &d_o_}) *each = {dev, n_.tokens * n_.attention_width()};
      dqkv_ = {dev, n_.tokens * 3 * n_.attention_width()};
    }
    in_flight_.resize(static_cast<std::size_t>(depth));
    for (auto& mb : in_flight_) {
      mb.saved.resize(static_cast<std::size_t>(n_.layers));
      for (index l = 0; l <= n_.layers; ++l) mb.x.emplace_back(dev, n_.tokens * n_.hidden);
      for (index l = 0; n_.attention && l < n_.layers; ++l) {
        mb.h.emplace_back(dev, n_.tokens * n_.hidden);
        mb.saved[static_cast<std::size_t>(l)].kept_qkv =
            keeper_.allocate<bf16>(qkv_elements(), stream);
      }
    }
  }

  void begin_step() { ++step_; }

  void forward(session& off, int number) {
    auto& mb = slot(number);
    mb.number = number;
    mb.chunk = off.begin(number);
    // Every microbatch of every step has an input of its own, so that stale memory shows.
    fill_random(mb.x[0].data(), mb.x[0].count(), input_seed(number), 1, stream_);
    for (int l = 0; l < n_.layers; ++l) {
      off.pace(stream_);
      if (n_.attention) attention_forward(off, mb, l);
      experts_forward(off, mb, l);
    }
    mb.chunk.end_forward();
  }

  void backward(session& off, int number) {
    auto& mb = slot(number);
    const bf16* above = above_.data();
    for (int l = static_cast<int>(n_.layers) - 1; l >= 0; --l) {
      off.pace(stream_);
      experts_backward(off, mb, l, above);
      if (n_.attention) attention_backward(off, mb, l);
      above = dx_.data();
    }
    mb.chunk.finish();
  }

  /// After a failure: gives up whatever microbatches are under way.
  void abandon() {
    for (auto& mb : in_flight_) {
      mb.chunk = {};
      for (auto& each : mb.saved) {
        for (auto* saved : {&each.qkv, &each.xs, &each.a}) *saved = {};
      }
    }
  }

  void restart() { step_ = 0; }
  [[nodiscard]] std::vector<layer_weights>& weights() { return weights_; }
  [[nodiscard]] const device_array<bf16>& input_gradient() const { return dx_; }
  [[nodiscard]] int blas_version() const { return math_.version(); }

 private:
  void attention_forward(session& off, microbatch& mb, int l) {
    const auto span = off.trace_span("attention", stream_, l, mb.number);
    auto& s = mb.saved[l];
    const auto& w = weights_of(l);
    const auto width = n_.attention_width();
    // What never leaves has memory of its own: a budget is for what may leave.
    const bool leaves = off.offloads_attention();
    if (leaves) s.qkv = off.allocate<bf16>(qkv_elements(), stream_);
    auto* const qkv = (leaves ? s.qkv : s.kept_qkv).as<bf16>();
    math_.multiply(n_.tokens, 3 * width, n_.hidden, {mb.x[l].data(), n_.hidden},
                   {w.qkv.value.data(), 3 * width}, {qkv, 3 * width});
    attention_[0].forward(o_.data(), qkv);
    if (leaves) mb.chunk.commit<"core_attn">(l, stream_, s.qkv);

    math_.multiply(n_.tokens, n_.hidden, width, {o_.data(), width},
                   {w.proj.value.data(), n_.hidden}, {mb.h[l].data(), n_.hidden});
    add(mb.h[l].data(), mb.x[l].data(), mb.x[l].count(), stream_);
  }

  /// `dx_` is the gradient of what attention added to; it becomes that of the layer's input.
  void attention_backward(session& off, microbatch& mb, int l) {
    const auto span = off.trace_span("attention backward", stream_, l, mb.number);
    auto& s = mb.saved[l];
    auto& w = weights_of(l);
    const auto width = n_.attention_width();
    const operand dy{dx_.data(), n_.hidden};
    math_.multiply(n_.tokens, width, n_.hidden, dy, {w.proj.value.data(), n_.hidden, true},
                   {d_o_.data(), width});

    const bool left = off.offloads_attention();
    if (left) mb.chunk.restore<"core_attn">(l, stream_, s.qkv);
    attention_[0].backward(dqkv_.data(), o_.data(), d_o_.data(),
                           (left ? s.qkv : s.kept_qkv).as<bf16>());
    if (left) off.release(stream_, s.qkv);

    math_.multiply(width, n_.hidden, n_.tokens, {o_.data(), width, true}, dy,
                   {w.proj.gradient.data(), n_.hidden, keeps(mb, l)});
    math_.multiply(n_.hidden, 3 * width, n_.tokens, {mb.x[l].data(), n_.hidden, true},
                   {dqkv_.data(), 3 * width}, {w.qkv.gradient.data(), 3 * width, keeps(mb, l)});
    math_.multiply(n_.tokens, n_.hidden, 3 * width, {dqkv_.data(), 3 * width},
                   {w.qkv.value.data(), 3 * width, true}, {dx_.data(), n_.hidden, 1});
  }

  void experts_forward(session& off, microbatch& mb, int l) {
    const auto span = off.trace_span("experts", stream_, l, mb.number);
    auto& s = mb.saved[l];
    const auto& w = weights_of(l);
    const auto ffn = n_.ffn;
    const auto hidden = n_.hidden;

    experts_input(off, mb, l);
    mb.chunk.commit<"expert_fc1">(l, stream_, s.xs);

    swiglu(b_.data(), s.a.as<bf16>(), routes_.weight.data(), n_.rows(), ffn, stream_);
    mb.chunk.commit<"moe_act">(l, stream_, s.a);
    if (off.recomputes_experts()) off.release(stream_, s.xs, s.a);

    each_expert([&](index e, index first, index count) {
      math_.multiply(count, hidden, ffn, {b_.data() + first * ffn, ffn},
                     {w.fc2.value.data() + e * ffn * hidden, hidden},
                     {xs_like_.data() + first * hidden, hidden});
    });
    combine(mb.x[l + 1].data(), input_of(mb, l), xs_like_.data(), routes_.row_of.data(), n_.tokens,
            n_.top_k, hidden, stream_);
  }

  /// The rows of the experts, and what fc1 makes of them.
  void experts_input(session& off, microbatch& mb, int l) {
    auto& s = mb.saved[l];
    const auto& w = weights_of(l);
    s.xs = off.allocate<bf16>(n_.rows() * n_.hidden, stream_);
    gather(s.xs.as<bf16>(), input_of(mb, l), routes_.source.data(), n_.rows(), n_.tokens, n_.hidden,
           stream_);
    s.a = off.allocate<bf16>(n_.rows() * 2 * n_.ffn, stream_);
    each_expert([&](index e, index first, index count) {
      math_.multiply(count, 2 * n_.ffn, n_.hidden, {s.xs.as<bf16>() + first * n_.hidden, n_.hidden},
                     {w.fc1.value.data() + e * n_.hidden * 2 * n_.ffn, 2 * n_.ffn},
                     {s.a.as<bf16>() + first * 2 * n_.ffn, 2 * n_.ffn});
    });
  }

  /// `above` is the gradient of the layer's output; `dx_`, which may be the same, becomes that of
  /// the experts' input.
  void experts_backward(session& off, microbatch& mb, int l, const bf16* above) {
    const auto span = off.trace_span("experts backward", stream_, l, mb.number);
    auto& s = mb.saved[l];
    auto& w = weights_of(l);
    const auto ffn = n_.ffn;
    const auto hidden = n_.hidden;
    const auto keep = keeps(mb, l);
    bf16* const dy = xs_like_.data();
    bf16* const da = a_like_.data();

    if (off.recomputes_experts()) experts_input(off, mb, l);
    gather(dy, above, routes_.source.data(), n_.rows(), n_.tokens, hidden, stream_);
    each_expert([&](index e, index first, index count) {
      math_.multiply(count, ffn, hidden, {dy + first * hidden, hidden},
                     {w.fc2.value.data() + e * ffn * hidden, hidden, true},
                     {db_.data() + first * ffn, ffn});
    });

    mb.chunk.restore<"moe_act">(l, stream_, s.a);
    swiglu_backward(b_.data(), da, db_.data(), s.a.as<bf16>(), routes_.weight.data(), n_.rows(),
                    ffn, stream_);
    off.release(stream_, s.a);
    each_expert([&](index e, index first, index count) {
      math_.multiply(ffn, hidden, count, {b_.data() + first * ffn, ffn, true},
                     {dy + first * hidden, hidden},
                     {w.fc2.gradient.data() + e * ffn * hidden, hidden, keep});
    });

    mb.chunk.restore<"expert_fc1">(l, stream_, s.xs);
    each_expert([&](index e, index first, index count) {
      math_.multiply(hidden, 2 * ffn, count, {s.xs.as<bf16>() + first * hidden, hidden, true},
                     {da + first * 2 * ffn, 2 * ffn},
                     {w.fc1.gradient.data() + e * hidden * 2 * ffn, 2 * ffn, keep});
    });
    off.release(stream_, s.xs);

    bf16* const dxs = xs_like_.data();  // dy is done with
    each_expert([&](index e, index first, index count) {
      math_.multiply(count, hidden, 2 * ffn, {da + first * 2 * ffn, 2 * ffn},
                     {w.fc1.value.data() + e * hidden * 2 * ffn, 2 * ffn, true},
                     {dxs + first * hidden, hidden});
    });
    combine(dx_.data(), above, dxs, routes_.row_of.data(), n_.tokens, n_.top_k, hidden, stream_);
  }

  /// Calls `body(expert, its first row, its rows)`.
  template <class Body>
  void each_expert(const Body& body) const {
    for (index e = 0; e < n_.experts; ++e) {
      body(e, e * n_.rows_per_expert(), n_.rows_per_expert());
    }
  }

  microbatch& slot(int number) {
    return in_flight_[static_cast<std::size_t>(number) % in_flight_.size()];
  }
  [[nodiscard]] const bf16* input_of(const microbatch& mb, int l) const {
    return n_.attention ? mb.h[l].data() : mb.x[l].data();
  }
  layer_weights& weights_of(int l) { return weights_[l % weights_.size()]; }
  /// What a step's first gradient of a weight finds is overwritten; the others add to it.
  [[nodiscard]] float keeps(const microbatch& mb, int l) const {
    return mb.number > 0 || (n_.shared_weights && l + 1 < n_.layers) ? 1.0F : 0.0F;
  }
  [[nodiscard]] std::size_t qkv_elements() const { return n_.attn_bytes() / sizeof(bf16); }
  [[nodiscard]] std::uint64_t input_seed(int number) const {
    return 1000 + static_cast<std::uint64_t>(step_) * 64 + static_cast<std::uint64_t>(number);
  }

  declared_stream stream_;
  model_sizes n_;
  engine keeper_;  ///< a pool for saved tensors that never leave
  blas math_;
  routing routes_;
  std::vector<layer_weights> weights_;
  std::vector<attention> attention_;  ///< one, or none without attention
  device_array<bf16> xs_like_;        ///< y, then dy, then dxs
  device_array<bf16> a_like_;         ///< da
  device_array<bf16> b_;
  device_array<bf16> db_;
  device_array<bf16> dx_;
  device_array<bf16> above_;  ///< the gradient of what the last layer returns
  device_array<bf16> o_;
  device_array<bf16> d_o_;
  device_array<bf16> dqkv_;
  std::vector<microbatch> in_flight_;
  int step_ = 0;
};

}  // namespace bench
