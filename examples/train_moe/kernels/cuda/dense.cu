/// CUDA kernels that a GEMM dominates: linear layers on cuBLASLt, and attention on cuBLAS.
#include <algorithm>
#include <cmath>

#include "kernels.hpp"
#include "tools.cuh"

namespace moe {
namespace {

// Row i of one head's scores gives probabilities of the columns up to i, and 0 right of them. They
// may lie in place of the scores.
template <class T>
__global__ void softmax_kernel(T* probs, const float* scores, float* lse, index seq, index heads,
                               index first_token, index first_head) {
  const index i = blockIdx.x, head = blockIdx.y;
  const float* p = scores + (head * seq + i) * seq;
  T* to = probs + (head * seq + i) * seq;
  float top = -INFINITY;
  for (index j = threadIdx.x; j <= i; j += blockDim.x) top = fmaxf(top, p[j]);
  top = reduce(top, max_of{});
  float sum = 0;
  for (index j = threadIdx.x; j <= i; j += blockDim.x) sum += expf(p[j] - top);
  sum = reduce(sum, sum_of{});
  for (index j = threadIdx.x; j < seq; j += blockDim.x) {
    put(to[j], j <= i ? expf(p[j] - top) / sum : 0);
  }
  if (threadIdx.x == 0) lse[(first_token + i) * heads + first_head + head] = top + logf(sum);
}

// Scores give probabilities again, and the gradient of these that of the scores; both may lie in
// place of what they are computed from.
template <class T>
__global__ void softmax_backward_kernel(T* probs, T* dscores, const float* scores,
                                        const float* dprobs, const T* dout, const T* o,
                                        const float* lse, index first_token, index first_head,
                                        attention_shape s, float scale) {
  const index i = blockIdx.x, head = blockIdx.y;
  const index token = first_token + i;
  const index at = token * s.width() + (first_head + head) * s.head_size;
  float sum = 0;
  for (index c = threadIdx.x; c < s.head_size; c += blockDim.x) {
    sum += to_float(dout[at + c]) * to_float(o[at + c]);
  }
  const float delta = reduce(sum, sum_of{});
  const float norm = lse[token * s.heads + first_head + head];
  const index row = (head * s.seq + i) * s.seq;
  for (index j = threadIdx.x; j < s.seq; j += blockDim.x) {
    const float p = j <= i ? expf(scores[row + j] - norm) : 0;
    put(dscores[row + j], j <= i ? p * (dprobs[row + j] - delta) * scale : 0);
    put(probs[row + j], p);
  }
}

}  // namespace

cuda_kernels::cuda_kernels(device& dev, stream_ref stream, const settings& run)
    : device_(dev),
      stream_(stream.get()),
      blas_memory_(dev, blas_bytes / index{sizeof(float)}, "cuBLAS workspace"),
      products_(stream_, blas_memory_.data(), static_cast<std::size_t>(blas_bytes)),
      scores_(dev, heads_at_once * run.model.seq * run.model.seq, "attention scores"),
      dscores_(dev, heads_at_once * run.model.seq * run.model.seq, "attention scores"),
      partial_(dev,
               std::max({run.model.tokens(), parts_of(run.model.tokens()) * run.model.hidden,
                         index{blocks_of_maximum}}),
               "partial sums") {
  if (run.fp8_gemm != fp8_products::none) check_multiplies_codes(dev, run.scaling);
  check(cublasCreate(&blas_), "cublasCreate");
  check(cublasSetStream(blas_, stream_), "cublasSetStream");
  check(cublasSetWorkspace(blas_, blas_memory_.data(), static_cast<std::size_t>(blas_bytes)),
        "cublasSetWorkspace");
  // No TF32; and partial sums of narrow operands stay fp32 as well.
  const auto mode = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                              CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  const bool narrow = run.precision != precision_kind::fp32;
  check(cublasSetMathMode(blas_, narrow ? mode : CUBLAS_DEFAULT_MATH), "cublasSetMathMode");
  check(cublasSetAtomicsMode(blas_, CUBLAS_ATOMICS_NOT_ALLOWED), "cublasSetAtomicsMode");
  if (narrow) {
    narrow_scores_.emplace(dev, (scores_.size() + 1) / 2, "attention scores");
    narrow_dscores_.emplace(dev, (scores_.size() + 1) / 2, "attention scores");
  }
  if (run.fp8_gemm != fp8_products::none) {
    const index most_rows = summed_rows(run.model.tokens());
    turned_scales_.emplace(dev, most_rows * scale_blocks(std::max(run.model.hidden, run.model.ffn)),
                           "scales of rows");
    if (run.fp8_gemm != fp8_products::both) return;
    const index in = std::max(run.model.hidden, run.model.ffn);
    const index out = std::max(run.model.hidden, 2 * run.model.ffn);
    dy_codes_.emplace(dev, most_rows * out, most_rows * scale_blocks(out));
    turned_dy_.emplace(dev, most_rows * out, scale_blocks(most_rows) * out);
    turned_x_.emplace(dev, most_rows * in, scale_blocks(most_rows) * in);
  }
}

cuda_kernels::~cuda_kernels() { cublasDestroy(blas_); }

// cuBLAS counts columns first, so that it sees every matrix transposed: cᵀ = bᵀ·aᵀ.
void cuda_kernels::gemm(index m, index n, index k, float alpha, const matrix& a, const matrix& b,
                        operand c, index ldc, index c_stride, index batch) {
  constexpr float beta = 0;
  const auto i = [](index value) { return static_cast<int>(value); };
  const auto op = [](const matrix& x) { return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  if (a.data.type == number_type::fp32) {
    check(
        cublasSgemmStridedBatched(blas_, op(b), op(a), i(n), i(m), i(k), &alpha, b.data.as<float>(),
                                  i(b.ld), b.stride, a.data.as<float>(), i(a.ld), a.stride, &beta,
                                  c.as<float>(), i(ldc), c_stride, i(batch)),
        "cublasSgemmStridedBatched");
    return;
  }
  check(cublasGemmStridedBatchedEx(blas_, op(b), op(a), i(n), i(m), i(k), &alpha, b.data.data,
                                   type_of(b.data), i(b.ld), b.stride, a.data.data, type_of(a.data),
                                   i(a.ld), a.stride, &beta, c.data, type_of(c), i(ldc), c_stride,
                                   i(batch), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmStridedBatchedEx");
}

void cuda_kernels::linear(operand y, const_operand x, const_operand w, index rows, index in,
                          index out) {
  products_.multiply(y, {x}, {w}, {rows, out, in}, {products::size_class(rows), out, in});
}

void cuda_kernels::linear_backward_input(operand dx, const_operand dy, const_operand w, index rows,
                                         index in, index out) {
  products_.multiply(dx, {dy}, {w, true}, {rows, in, out}, {products::size_class(rows), in, out});
}

void cuda_kernels::linear_backward_weight(float* dw, const_operand x, const_operand dy, index rows,
                                          index in, index out) {
  products_.multiply(dw, {x, true}, {dy}, {in, out, rows}, {in, out, products::size_class(rows)},
                     1);
}

template <class Body>
void cuda_kernels::each_group_of_heads(attention_shape s, Body body) {
  for (index b = 0; b < s.batch; ++b) {
    for (index head = 0; head < s.heads; head += heads_at_once) {
      body(b * s.seq, head, std::min(heads_at_once, s.heads - head));
    }
  }
}

operand cuda_kernels::as_operand(const device_array<device, float>& scores,
                                 const std::optional<device_array<device, float>>& narrow,
                                 const_operand like) {
  return {like.type == number_type::fp32 ? scores.data() : narrow->data(), like.type};
}

void cuda_kernels::attention(operand o, float* lse, const_operand qkv, attention_shape s) {
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_size));
  const index ld = 3 * s.width(), d = s.head_size, square = s.seq * s.seq;
  each_group_of_heads(s, [&](index token, index head, index heads) {
    const const_operand q = qkv + (token * ld + head * d);
    const const_operand key = q + s.width();
    const const_operand value = key + s.width();
    float* const scores = scores_.data();
    const operand p = as_operand(scores_, narrow_scores_, qkv);
    gemm(s.seq, s.seq, d, scale, {q, ld, false, d}, {key, ld, true, d}, scores, s.seq, square,
         heads);
    const dim3 grid(static_cast<unsigned>(s.seq), static_cast<unsigned>(heads));
    with_numbers(p, [&](auto* probs) {
      softmax_kernel<<<grid, block_size, 0, stream_>>>(probs, scores, lse, s.seq, s.heads, token,
                                                       head);
    });
    check_launch("softmax");
    gemm(s.seq, d, s.seq, 1, {p, s.seq, false, square}, {value, ld, false, d},
         o + (token * s.width() + head * d), s.width(), d, heads);
  });
}

void cuda_kernels::attention_backward(operand dqkv, const_operand dout, const_operand qkv,
                                      const_operand o, const float* lse, attention_shape s) {
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_size));
  const index ld = 3 * s.width(), d = s.head_size, square = s.seq * s.seq;
  each_group_of_heads(s, [&](index token, index head, index heads) {
    const const_operand q = qkv + (token * ld + head * d);
    const const_operand key = q + s.width();
    const const_operand value = key + s.width();
    const operand dq = dqkv + (token * ld + head * d);
    const const_operand up = dout + (token * s.width() + head * d);
    float* const scores = scores_.data();
    float* const dprobs = dscores_.data();
    const operand p = as_operand(scores_, narrow_scores_, qkv);
    const operand dp = as_operand(dscores_, narrow_dscores_, qkv);
    gemm(s.seq, s.seq, d, scale, {q, ld, false, d}, {key, ld, true, d}, scores, s.seq, square,
         heads);
    gemm(s.seq, s.seq, d, 1, {up, s.width(), false, d}, {value, ld, true, d}, dprobs, s.seq, square,
         heads);
    const dim3 grid(static_cast<unsigned>(s.seq), static_cast<unsigned>(heads));
    with_numbers(p, [&]<class T>(T* probs) {
      softmax_backward_kernel<<<grid, block_size, 0, stream_>>>(
          probs, dp.as<T>(), scores, dprobs, dout.as<T>(), o.as<T>(), lse, token, head, s, scale);
    });
    check_launch("softmax_backward");
    gemm(s.seq, d, s.seq, 1, {dp, s.seq, false, square}, {key, ld, false, d}, dq, ld, d, heads);
    gemm(s.seq, d, s.seq, 1, {dp, s.seq, true, square}, {q, ld, false, d}, dq + s.width(), ld, d,
         heads);
    gemm(s.seq, d, s.seq, 1, {p, s.seq, true, square}, {up, s.width(), false, d},
         dq + 2 * s.width(), ld, d, heads);
  });
}

}  // namespace moe
