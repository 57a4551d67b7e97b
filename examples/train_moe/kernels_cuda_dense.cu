/// CUDA kernels that a GEMM dominates: linear layers and attention, on cuBLAS.
#include <algorithm>
#include <cmath>

#include "kernels_cuda.hpp"
#include "kernels_cuda_tools.cuh"

namespace moe {
namespace {

constexpr index blas_bytes = index{32} << 20;  // what cuBLAS itself would take on Hopper

// Row i of one head's scores becomes probabilities of the columns up to i, and 0 right of them.
__global__ void softmax_kernel(float* scores, float* lse, index seq, index heads, index first_token,
                               index first_head) {
  const index i = blockIdx.x, head = blockIdx.y;
  float* p = scores + (head * seq + i) * seq;
  float top = -INFINITY;
  for (index j = threadIdx.x; j <= i; j += blockDim.x) top = fmaxf(top, p[j]);
  top = reduce(top, max_of{});
  float sum = 0;
  for (index j = threadIdx.x; j <= i; j += blockDim.x) sum += expf(p[j] - top);
  sum = reduce(sum, sum_of{});
  for (index j = threadIdx.x; j < seq; j += blockDim.x) p[j] = j <= i ? expf(p[j] - top) / sum : 0;
  if (threadIdx.x == 0) lse[(first_token + i) * heads + first_head + head] = top + logf(sum);
}

// Scores become probabilities again, and the gradient of these that of the scores.
__global__ void softmax_backward_kernel(float* scores, float* dscores, const float* dout,
                                        const float* o, const float* lse, index first_token,
                                        index first_head, attention_shape s, float scale) {
  const index i = blockIdx.x, head = blockIdx.y;
  const index token = first_token + i;
  const index at = token * s.width() + (first_head + head) * s.head_size;
  float sum = 0;
  for (index c = threadIdx.x; c < s.head_size; c += blockDim.x) sum += dout[at + c] * o[at + c];
  const float delta = reduce(sum, sum_of{});
  const float norm = lse[token * s.heads + first_head + head];
  float* p = scores + (head * s.seq + i) * s.seq;
  float* dp = dscores + (head * s.seq + i) * s.seq;
  for (index j = threadIdx.x; j < s.seq; j += blockDim.x) {
    p[j] = j <= i ? expf(p[j] - norm) : 0;
    dp[j] = j <= i ? p[j] * (dp[j] - delta) * scale : 0;
  }
}

}  // namespace

cuda_kernels::cuda_kernels(device& dev, stream_ref stream, const settings& run)
    : stream_(stream.get()),
      blas_memory_(dev, blas_bytes / index{sizeof(float)}, "cuBLAS workspace"),
      scores_(dev, heads_at_once * run.model.seq * run.model.seq, "attention scores"),
      dscores_(dev, heads_at_once * run.model.seq * run.model.seq, "attention scores"),
      partial_(dev, std::max(run.model.tokens(), parts_of(run.model.tokens()) * run.model.hidden),
               "partial sums") {
  check(cublasCreate(&blas_), "cublasCreate");
  check(cublasSetStream(blas_, stream_), "cublasSetStream");
  check(cublasSetWorkspace(blas_, blas_memory_.data(), static_cast<std::size_t>(blas_bytes)),
        "cublasSetWorkspace");
  check(cublasSetMathMode(blas_, CUBLAS_DEFAULT_MATH), "cublasSetMathMode");  // fp32, no TF32
  check(cublasSetAtomicsMode(blas_, CUBLAS_ATOMICS_NOT_ALLOWED), "cublasSetAtomicsMode");
}

cuda_kernels::~cuda_kernels() { cublasDestroy(blas_); }

// cuBLAS counts columns first, so that it sees every matrix transposed: cᵀ = bᵀ·aᵀ.
void cuda_kernels::gemm(index m, index n, index k, float alpha, const matrix& a, const matrix& b,
                        float beta, float* c, index ldc, index c_stride, index batch) {
  const auto i = [](index value) { return static_cast<int>(value); };
  const auto op = [](const matrix& x) { return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  check(cublasSgemmStridedBatched(blas_, op(b), op(a), i(n), i(m), i(k), &alpha, b.data, i(b.ld),
                                  b.stride, a.data, i(a.ld), a.stride, &beta, c, i(ldc), c_stride,
                                  i(batch)),
        "cublasSgemmStridedBatched");
}

void cuda_kernels::linear(float* y, const float* x, const float* w, index rows, index in,
                          index out) {
  gemm(rows, out, in, 1, {x, in}, {w, out}, 0, y, out);
}

void cuda_kernels::linear_backward_input(float* dx, const float* dy, const float* w, index rows,
                                         index in, index out) {
  gemm(rows, in, out, 1, {dy, out}, {w, out, true}, 0, dx, in);
}

void cuda_kernels::linear_backward_weight(float* dw, const float* x, const float* dy, index rows,
                                          index in, index out) {
  gemm(in, out, rows, 1, {x, in, true}, {dy, out}, 1, dw, out);
}

template <class Body>
void cuda_kernels::each_group_of_heads(attention_shape s, Body body) {
  for (index b = 0; b < s.batch; ++b) {
    for (index head = 0; head < s.heads; head += heads_at_once) {
      body(b * s.seq, head, std::min(heads_at_once, s.heads - head));
    }
  }
}

void cuda_kernels::attention(float* o, float* lse, const float* qkv, attention_shape s) {
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_size));
  const index ld = 3 * s.width(), d = s.head_size, square = s.seq * s.seq;
  each_group_of_heads(s, [&](index token, index head, index heads) {
    const float* q = qkv + token * ld + head * d;
    const float* key = q + s.width();
    const float* value = key + s.width();
    float* p = scores_.data();
    gemm(s.seq, s.seq, d, scale, {q, ld, false, d}, {key, ld, true, d}, 0, p, s.seq, square, heads);
    const dim3 grid(static_cast<unsigned>(s.seq), static_cast<unsigned>(heads));
    softmax_kernel<<<grid, block_size, 0, stream_>>>(p, lse, s.seq, s.heads, token, head);
    check_launch("softmax");
    gemm(s.seq, d, s.seq, 1, {p, s.seq, false, square}, {value, ld, false, d}, 0,
         o + token * s.width() + head * d, s.width(), d, heads);
  });
}

void cuda_kernels::attention_backward(float* dqkv, const float* dout, const float* qkv,
                                      const float* o, const float* lse, attention_shape s) {
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_size));
  const index ld = 3 * s.width(), d = s.head_size, square = s.seq * s.seq;
  each_group_of_heads(s, [&](index token, index head, index heads) {
    const float* q = qkv + token * ld + head * d;
    const float* key = q + s.width();
    const float* value = key + s.width();
    float* dq = dqkv + token * ld + head * d;
    const float* up = dout + token * s.width() + head * d;
    float* p = scores_.data();
    float* dp = dscores_.data();
    gemm(s.seq, s.seq, d, scale, {q, ld, false, d}, {key, ld, true, d}, 0, p, s.seq, square, heads);
    gemm(s.seq, s.seq, d, 1, {up, s.width(), false, d}, {value, ld, true, d}, 0, dp, s.seq, square,
         heads);
    const dim3 grid(static_cast<unsigned>(s.seq), static_cast<unsigned>(heads));
    softmax_backward_kernel<<<grid, block_size, 0, stream_>>>(p, dp, dout, o, lse, token, head, s,
                                                              scale);
    check_launch("softmax_backward");
    gemm(s.seq, d, s.seq, 1, {dp, s.seq, false, square}, {key, ld, false, d}, 0, dq, ld, d, heads);
    gemm(s.seq, d, s.seq, 1, {dp, s.seq, true, square}, {q, ld, false, d}, 0, dq + s.width(), ld, d,
         heads);
    gemm(s.seq, d, s.seq, 1, {p, s.seq, true, square}, {up, s.width(), false, d}, 0,
         dq + 2 * s.width(), ld, d, heads);
  });
}

}  // namespace moe
