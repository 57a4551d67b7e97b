/// Causal attention by GEMMs over blocks of queries, with the scores of one block in memory.
#pragma once

#include "kernels.cuh"

namespace bench {

// One block for each query (x) of each head (y); a query sees the keys up to its own. In place.
__global__ void softmax_kernel(bf16* scores, index keys, index first_query) {
  bf16* const row = scores + (static_cast<index>(blockIdx.y) * gridDim.x + blockIdx.x) * keys;
  const index seen = first_query + blockIdx.x + 1;
  float most = -INFINITY;
  float sum = 0;
  for (index i = threadIdx.x * 8; i < seen; i += blockDim.x * 8) {
    float score[8];
    load8(row + i, score);
    float peak = most;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (i + j >= seen) score[j] = -INFINITY;
      peak = fmaxf(peak, score[j]);
    }
    sum *= __expf(most - peak);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += __expf(score[j] - peak);
    most = peak;
  }
  const float top = reduce(most, max_of{});
  const float total = reduce(sum * __expf(most - top), sum_of{});
  const float scale = 1 / total;
  for (index i = threadIdx.x * 8; i < keys; i += blockDim.x * 8) {
    float score[8];
    load8(row + i, score);
#pragma unroll
    for (int j = 0; j < 8; ++j) score[j] = i + j < seen ? __expf(score[j] - top) * scale : 0.0F;
    store8(row + i, score);
  }
}

// Turns the gradients of the probabilities into those of the scores, in place.
__global__ void softmax_backward_kernel(bf16* gradients, const bf16* probabilities, index keys) {
  const index at = (static_cast<index>(blockIdx.y) * gridDim.x + blockIdx.x) * keys;
  float dot = 0;
  for (index i = threadIdx.x * 8; i < keys; i += blockDim.x * 8) {
    float p[8];
    float d[8];
    load8(probabilities + at + i, p);
    load8(gradients + at + i, d);
#pragma unroll
    for (int j = 0; j < 8; ++j) dot += p[j] * d[j];
  }
  dot = reduce(dot, sum_of{});
  for (index i = threadIdx.x * 8; i < keys; i += blockDim.x * 8) {
    float p[8];
    float d[8];
    load8(probabilities + at + i, p);
    load8(gradients + at + i, d);
#pragma unroll
    for (int j = 0; j < 8; ++j) d[j] = p[j] * (d[j] - dot);
    store8(gradients + at + i, d);
  }
}

inline void softmax(bf16* scores, index heads, index queries, index keys, index first_query,
                    cudaStream_t stream) {
  softmax_kernel<<<dim3(grid(queries), grid(heads)), block_size, 0, stream>>>(scores, keys,
                                                                              first_query);
  check_launch("softmax_kernel");
}

inline void softmax_backward(bf16* gradients, const bf16* probabilities, index heads, index queries,
                             index keys, cudaStream_t stream) {
  softmax_backward_kernel<<<dim3(grid(queries), grid(heads)), block_size, 0, stream>>>(
      gradients, probabilities, keys);
  check_launch("softmax_backward_kernel");
}

/// Heads over `qkv` [tokens][3][heads][head_size]; `o` is [tokens][heads][head_size].
class attention {
 public:
  attention(cuda_device& dev, cudaStream_t stream, blas& math, const model_sizes& sizes)
      : stream_(stream),
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

  cudaStream_t stream_;
  blas* math_;
  model_sizes n_;
  device_array<bf16> scores_;     ///< [heads][queries][keys] of one block
  device_array<bf16> gradients_;  ///< theirs
};

}  // namespace bench
