/// A layer of experts, forward and backward, that never asks how many rows an expert has.
///
/// `place_rows` decides how many rows an expert may have. Where the host is asked to wait, it reads
/// the counts, and there are as many as needed. Otherwise there is `room` for them, and copies move
/// `planned` of them, as a graph does.
#pragma once

#include <algorithm>
#include <tidepool/rows.hpp>
#include <tidepool/tidepool.hpp>
#include <utility>
#include <vector>

#include "weights.hpp"

namespace graph_moe {

/// Who knows how many rows each expert has.
enum class rows_known {
  to_device,        ///< the step can be captured, and may overflow
  to_host,          ///< products have the sizes of a captured step, or larger ones where needed
  to_host_exactly,  ///< products have the sizes that are needed: other sums, and other bits
};

/// Rows of one expert in one layer.
struct row_limits {
  index room;     ///< that tensors and products of a captured step have
  index planned;  ///< that copies of a captured step move
};

inline index padded(index rows) {
  return (std::max<index>(rows, 1) + moe::row_padding - 1) / moe::row_padding * moe::row_padding;
}

/// What all layers have in common.
template <class Kernels>
struct context {
  using device = typename Kernels::device;
  using offloader =
      tidepool::offloader<device, tidepool::modules<"mlp_norm", "expert_fc1", "moe_act">>;
  using buffer = typename offloader::buffer;

  device& dev;
  typename device::stream_ref stream;
  Kernels& k;
  moe::model_sizes m;
  moe::number_type type;
  row_limits limits;
  float *rstd, *logits;
  std::int32_t* counts_on_host;
  offloader* off = nullptr;
  rows_known known = rows_known::to_device;

  [[nodiscard]] buffer take(index count, moe::number_type of) const {
    return off->allocate(static_cast<std::size_t>(count * bytes_of(of)), stream);
  }
  [[nodiscard]] buffer floats(index count) const { return take(count, moe::number_type::fp32); }
  [[nodiscard]] buffer numbers(index count) const { return take(count, type); }
  [[nodiscard]] operand at(const buffer& x) const { return {x.data(), type}; }
};

template <class Kernels>
class layer {
  using shared = context<Kernels>;
  using device = typename Kernels::device;
  using buffer = typename shared::buffer;
  using chunk = typename shared::offloader::chunk;
  using ints = moe::device_array<device, std::int32_t>;

 public:
  layer(shared& on, int number, const layer_parameters& w, std::int32_t* counts)
      : on_(on),
        number_(number),
        w_(w),
        counts_(counts),
        probs_(on.dev, m_.tokens() * m_.experts, "probabilities"),
        choice_(on.dev, m_.tokens() * m_.top_k, "choices"),
        row_(on.dev, m_.tokens() * m_.top_k, "rows"),
        xs_(static_cast<std::size_t>(m_.experts)),
        a_(xs_.size()) {}

  /// Returns the residual stream that the next layer reads.
  buffer forward(chunk& c, buffer x) {
    x_ = std::move(x);
    buffer h = normalised();
    on_.k.linear(on_.logits, on_.at(h), w_.router.matrix, tokens_, hidden_, m_.experts);
    on_.k.route(probs_.data(), choice_.data(), on_.logits, routing());
    on_.k.rank(row_.data(), counts_, choice_.data(), routing());
    place_rows();
    on_.k.lay_out(row_.data(), choice_.data(), tokens_ * m_.top_k, stride_);
    auto [source, weight] = sources();
    buffer y = on_.floats(m_.experts * stride_ * hidden_);
    for (index e = 0; e < m_.experts; ++e) {
      expert_forward(e, on_.at(h), source.template as<std::int32_t>() + e * stride_,
                     weight.template as<float>() + e * stride_,
                     y.template as<float>() + e * stride_ * hidden_);
    }
    c.template commit<"expert_fc1">(number_, on_.stream, counted(xs_, hidden_));
    c.template commit<"moe_act">(number_, on_.stream, counted(a_, 2 * ffn_));

    buffer next = on_.floats(tokens_ * hidden_);
    on_.k.combine(next.template as<float>(), x_.template as<float>(), y.template as<float>(),
                  row_.data(), tokens_, m_.top_k, hidden_);
    c.template commit<"mlp_norm">(number_, on_.stream, x_);
    for (buffer* each : {&h, &source, &weight, &y}) each->reset(on_.stream);
    return next;
  }

  /// `dx` is the gradient of what `forward` returned, and becomes that of its input.
  void backward(chunk& c, float* dx) {
    c.template restore<"mlp_norm">(number_, on_.stream, x_);
    c.template restore<"moe_act">(number_, on_.stream, handles(a_));
    c.template restore<"expert_fc1">(number_, on_.stream, handles(xs_));
    buffer h = normalised();
    auto [source, weight] = sources();
    const index rows = m_.experts * stride_;
    buffer dy = on_.numbers(rows * hidden_), dxs = on_.floats(rows * hidden_);
    buffer dweight = on_.floats(rows), dh = on_.floats(tokens_ * hidden_);
    on_.k.gather(on_.at(dy), dx, source.template as<std::int32_t>(), rows, m_.top_k, hidden_);
    for (index e = 0; e < m_.experts; ++e) {
      const index first = e * stride_;
      expert_backward(e, on_.at(dy) + first * hidden_, weight.template as<float>() + first,
                      dweight.template as<float>() + first,
                      dxs.template as<float>() + first * hidden_);
    }
    router_backward(dh.template as<float>(), dweight.template as<float>(), on_.at(h));
    on_.k.combine(dh.template as<float>(), dh.template as<float>(), dxs.template as<float>(),
                  row_.data(), tokens_, m_.top_k, hidden_);
    on_.k.rmsnorm_backward(dx, w_.gain.gradient, dh.template as<float>(), x_.template as<float>(),
                           on_.rstd, w_.gain.weight, tokens_, hidden_);
    for (buffer* each : {&h, &source, &weight, &dy, &dxs, &dweight, &dh, &x_}) {
      each->reset(on_.stream);
    }
  }

 private:
  void place_rows() {
    const auto experts = static_cast<std::size_t>(m_.experts);
    stride_ = on_.limits.room;
    rows_.assign(experts, {stride_, std::min(on_.limits.planned, stride_)});
    if (on_.known == rows_known::to_device) return;
    on_.k.publish(on_.counts_on_host, counts_, m_.experts);
    on_.dev.synchronize(on_.stream);
    const auto most = *std::max_element(on_.counts_on_host, on_.counts_on_host + experts);
    stride_ = std::max(stride_, padded(most));
    for (std::size_t e = 0; e < experts; ++e) {
      const index needed = padded(on_.counts_on_host[e]);
      rows_[e] = {on_.known == rows_known::to_host ? stride_ : needed, needed};
    }
  }

  void expert_forward(index e, operand h, const std::int32_t* source, const float* weight,
                      float* y) {
    const auto i = static_cast<std::size_t>(e);
    const index rows = rows_[i].room;
    xs_[i] = on_.numbers(rows * hidden_);
    a_[i] = on_.numbers(rows * 2 * ffn_);
    buffer b = on_.numbers(rows * ffn_);
    on_.k.gather(on_.at(xs_[i]), h, source, rows, m_.top_k, hidden_);  // zeros behind the rows
    on_.k.linear(on_.at(a_[i]), on_.at(xs_[i]), w_.fc1[i].matrix, rows, hidden_, 2 * ffn_);
    on_.k.swiglu(on_.at(b), on_.at(a_[i]), weight, rows, ffn_);
    on_.k.linear(y, on_.at(b), w_.fc2[i].matrix, rows, ffn_, hidden_);
    b.reset(on_.stream);
  }
  void expert_backward(index e, operand dy, const float* weight, float* dweight, float* dxs) {
    const auto i = static_cast<std::size_t>(e);
    const index rows = rows_[i].room;
    // Rows that no copy moved are undefined, and products read them.
    on_.k.clear_rest(on_.at(a_[i]), counts_ + e, rows, 2 * ffn_);
    on_.k.clear_rest(on_.at(xs_[i]), counts_ + e, rows, hidden_);
    buffer b = on_.numbers(rows * ffn_), db = on_.floats(rows * ffn_);
    buffer da = on_.numbers(rows * 2 * ffn_);
    on_.k.swiglu(on_.at(b), on_.at(a_[i]), weight, rows, ffn_);
    on_.k.linear_backward_weight(w_.fc2[i].gradient, on_.at(b), dy, rows, ffn_, hidden_);
    on_.k.linear_backward_input(db.template as<float>(), dy, w_.fc2[i].matrix, rows, ffn_, hidden_);
    on_.k.swiglu_backward(on_.at(da), dweight, db.template as<float>(), on_.at(a_[i]), weight, rows,
                          ffn_);
    on_.k.linear_backward_weight(w_.fc1[i].gradient, on_.at(xs_[i]), on_.at(da), rows, hidden_,
                                 2 * ffn_);
    on_.k.linear_backward_input(dxs, on_.at(da), w_.fc1[i].matrix, rows, hidden_, 2 * ffn_);
    for (buffer* each : {&b, &db, &da, &a_[i], &xs_[i]}) each->reset(on_.stream);
  }
  void router_backward(float* dh, const float* dweight, operand h) {
    constexpr float balance = 0.02F;
    on_.k.route_backward(on_.logits, dweight, row_.data(), choice_.data(), probs_.data(), counts_,
                         balance / static_cast<float>(m_.layers), routing());
    buffer narrow = on_.numbers(tokens_ * m_.experts);
    on_.k.convert(on_.at(narrow), on_.logits, tokens_ * m_.experts);
    on_.k.linear_backward_weight(w_.router.gradient, h, on_.at(narrow), tokens_, hidden_,
                                 m_.experts);
    on_.k.linear_backward_input(dh, on_.at(narrow), w_.router.matrix, tokens_, hidden_, m_.experts);
    narrow.reset(on_.stream);
  }

  buffer normalised() {
    buffer h = on_.numbers(tokens_ * hidden_);
    on_.k.rmsnorm(on_.at(h), on_.rstd, x_.template as<float>(), w_.gain.weight, tokens_, hidden_);
    return h;
  }
  /// Token and weight of each row; nothing and 0 of a row that no token has.
  std::pair<buffer, buffer> sources() {
    buffer source = on_.floats(m_.experts * stride_), weight = on_.floats(m_.experts * stride_);
    on_.k.place(source.template as<std::int32_t>(), weight.template as<float>(), row_.data(),
                choice_.data(), probs_.data(), m_.experts * stride_, routing());
    return {std::move(source), std::move(weight)};
  }

  /// All that Tidepool must know: where the count lies, and how many rows to move.
  std::vector<tidepool::handle<device>*> counted(std::vector<buffer>& tensors, index width) {
    for (std::size_t e = 0; e < tensors.size(); ++e) {
      tensors[e].counts_rows({.count = counts_ + e,
                              .row_bytes = static_cast<std::size_t>(width * bytes_of(on_.type)),
                              .planned_rows = static_cast<std::size_t>(rows_[e].planned)});
    }
    return handles(tensors);
  }
  static std::vector<tidepool::handle<device>*> handles(std::vector<buffer>& tensors) {
    std::vector<tidepool::handle<device>*> all;
    for (buffer& each : tensors) all.push_back(&each);
    return all;
  }
  [[nodiscard]] routing_shape routing() const { return {tokens_, m_.experts, m_.top_k, tokens_}; }

  shared& on_;
  int number_;
  const layer_parameters& w_;
  std::int32_t* counts_;  ///< of this layer, on the device
  const moe::model_sizes& m_ = on_.m;
  index tokens_ = m_.tokens(), hidden_ = m_.hidden, ffn_ = m_.ffn;
  moe::device_array<device, float> probs_;
  ints choice_, row_;
  buffer x_;
  std::vector<buffer> xs_, a_;    ///< of each expert: inputs of fc1, and of the activation
  index stride_ = 0;              ///< rows between two experts
  std::vector<row_limits> rows_;  ///< of each expert
};

}  // namespace graph_moe
