/// Causal attention by GEMMs over blocks of queries, with the scores of one block in memory.
#pragma once

#include "declared.hpp"

namespace bench {

/// Heads over `qkv` [tokens][3][heads][head_size]; `o` is [tokens][heads][head_size].
class attention {
 public:
  attention(cuda_device& dev, cudaStream_t stream, blas& math, const model_sizes& sizes)
      : stream_(dev, stream),
        math_(&math),
        n_(sizes),
        scores_(dev, n_.heads * std::min(n_.query_block, n_.tokens) * n_.tokens),
        gradients_(dev, scores_.count()) {}

  void forward(bf16* o, const bf16* qkv) {
    for (index first = 0; first < n_.tokens; first += n_.query_block) {
      probabilities(part_from(first), qkv);
      values(part_from(first), o, qkv);
    }
  }

  /// Nothing but qkv was saved: makes `o` again, and turns its gradient into that of qkv.
  void backward(bf16* dqkv, bf16* o, const bf16* d_o, const bf16* qkv) {
    const auto size = n_.head_size;
    const auto last = (n_.tokens - 1) / n_.query_block * n_.query_block;
    // From the last block, which sees every key and so writes all of dk and dv; the others add.
    for (index first = last; first >= 0; first -= n_.query_block) {
      const auto p = part_from(first);
      const float beta = first == last ? 0 : 1;
      probabilities(p, qkv);
      values(p, o, qkv);
      math_->multiply(p.queries, p.keys, size, row(d_o, first), {value(qkv), ld(), true, size},
                      of_block(gradients_, p), n_.heads);
      math_->multiply(p.keys, size, p.queries, read(scores_, p, true), row(d_o, first),
                      {dqkv + 2 * width(), ld(), beta, 1, size}, n_.heads);
      softmax_backward(gradients_.data(), scores_.data(), n_.heads, p.queries, p.keys, stream_);
      math_->multiply(p.queries, size, p.keys, read(gradients_, p, false),
                      {key(qkv), ld(), false, size}, {dqkv + first * ld(), ld(), 0, scale(), size},
                      n_.heads);
      math_->multiply(p.keys, size, p.queries, read(gradients_, p, true),
                      {qkv + first * ld(), ld(), false, size},
                      {dqkv + width(), ld(), beta, scale(), size}, n_.heads);
    }
  }

 private:
  struct part {
    index first;  // query
    index queries;
    index keys;  // that the last of them sees
  };
  [[nodiscard]] part part_from(index first) const {
    const auto queries = std::min(n_.query_block, n_.tokens - first);
    return {first, queries, first + queries};
  }

  void probabilities(const part& p, const bf16* qkv) {
    auto to = of_block(scores_, p);
    to.alpha = scale();
    math_->multiply(p.queries, p.keys, n_.head_size,
                    {qkv + p.first * ld(), ld(), false, n_.head_size},
                    {key(qkv), ld(), true, n_.head_size}, to, n_.heads);
    softmax(scores_.data(), n_.heads, p.queries, p.keys, p.first, stream_);
  }
  void values(const part& p, bf16* o, const bf16* qkv) {
    math_->multiply(p.queries, n_.head_size, p.keys, read(scores_, p, false),
                    {value(qkv), ld(), false, n_.head_size},
                    {o + p.first * width(), width(), 0, 1, n_.head_size}, n_.heads);
  }

  [[nodiscard]] operand row(const bf16* of, index first) const {
    return {of + first * width(), width(), false, n_.head_size};
  }
  static operand read(const device_array<bf16>& block, const part& p, bool transposed) {
    return {block.data(), p.keys, transposed, p.queries * p.keys};
  }
  static product of_block(const device_array<bf16>& block, const part& p) {
    return {block.data(), p.keys, 0, 1, p.queries * p.keys};
  }
  [[nodiscard]] const bf16* key(const bf16* qkv) const { return qkv + width(); }
  [[nodiscard]] const bf16* value(const bf16* qkv) const { return qkv + 2 * width(); }
  [[nodiscard]] index width() const { return n_.attention_width(); }
  [[nodiscard]] index ld() const { return 3 * width(); }
  [[nodiscard]] float scale() const { return 1 / std::sqrt(static_cast<float>(n_.head_size)); }

  declared_stream stream_;
  blas* math_;
  model_sizes n_;
  device_array<bf16> scores_;     ///< [heads][queries][keys] of one block
  device_array<bf16> gradients_;  ///< theirs
};

}  // namespace bench
