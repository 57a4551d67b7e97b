/// The CPU kernels that a GEMM dominates: linear layers and attention, on OpenBLAS.
#pragma once

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels_cpu_base.hpp"

namespace moe {

class cpu_dense : public cpu_launcher {
 public:
  cpu_dense(device& dev, stream_ref stream, const accelerator& speed)
      : cpu_launcher(dev, stream, speed) {
    openblas_set_num_threads(1);  // the number of threads would change the order of sums
  }

  void linear(float* y, const float* x, const float* w, index rows, index in, index out) {
    launch_gemm("linear", rows, in, out, [=] {
      gemm(CblasNoTrans, CblasNoTrans, rows, out, in, 1, x, in, w, out, 0, y, out);
    });
  }

  void linear_backward_input(float* dx, const float* dy, const float* w, index rows, index in,
                             index out) {
    launch_gemm("linear_backward_input", rows, in, out, [=] {
      gemm(CblasNoTrans, CblasTrans, rows, in, out, 1, dy, out, w, out, 0, dx, in);
    });
  }

  void linear_backward_weight(float* dw, const float* x, const float* dy, index rows, index in,
                              index out) {
    launch_gemm("linear_backward_weight", rows, in, out, [=] {
      gemm(CblasTrans, CblasNoTrans, in, out, rows, 1, x, in, dy, out, 1, dw, out);
    });
  }

  void attention(float* o, float* lse, const float* qkv, attention_shape s) {
    const index tokens = s.batch * s.seq;
    launch("attention", 2 * tokens * s.seq * s.width(), 4 * tokens * s.width(), [=, this] {
      each_head(s, [&](index first, index head) { head_forward(o, lse, qkv, s, first, head); });
    });
  }

  void attention_backward(float* dqkv, const float* dout, const float* qkv, const float* o,
                          const float* lse, attention_shape s) {
    const index tokens = s.batch * s.seq;
    launch("attention_backward", 5 * tokens * s.seq * s.width(), 8 * tokens * s.width(), [=, this] {
      each_head(s, [&](index first, index head) {
        head_backward(dqkv, dout, qkv, o, lse, s, first, head);
      });
    });
  }

 private:
  template <class Function>
  void launch_gemm(const char* name, index rows, index in, index out, Function fn) {
    launch(name, 2 * rows * in * out, rows * in + in * out + rows * out, std::move(fn));
  }

  static void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, index m, index n, index k, float alpha,
                   const float* a, index lda, const float* b, index ldb, float beta, float* c,
                   index ldc) {
    const auto i = [](index value) { return static_cast<blasint>(value); };
    cblas_sgemm(CblasRowMajor, ta, tb, i(m), i(n), i(k), alpha, a, i(lda), b, i(ldb), beta, c,
                i(ldc));
  }

  /// Calls `body(first token, head)` for every head of every sequence.
  template <class Function>
  static void each_head(attention_shape s, Function body) {
    for (index b = 0; b < s.batch; ++b) {
      for (index head = 0; head < s.heads; ++head) body(b * s.seq, head);
    }
  }

  /// p_ = scaled q·kᵀ of one head of one sequence; entries right of the diagonal mean nothing.
  void scores(const float* q, attention_shape s) {
    p_.resize(static_cast<std::size_t>(s.seq * s.seq));
    dp_.resize(p_.size());
    gemm(CblasNoTrans, CblasTrans, s.seq, s.seq, s.head_size,
         1 / std::sqrt(static_cast<float>(s.head_size)), q, 3 * s.width(), q + s.width(),
         3 * s.width(), 0, p_.data(), s.seq);
  }

  void head_forward(float* o, float* lse, const float* qkv, attention_shape s, index first,
                    index head) {
    const index ld = 3 * s.width();
    const float* q = qkv + first * ld + head * s.head_size;
    scores(q, s);
    for (index i = 0; i < s.seq; ++i) {
      float* p = p_.data() + i * s.seq;
      const float top = *std::max_element(p, p + i + 1);
      float sum = 0;
      for (index j = 0; j <= i; ++j) sum += p[j] = std::exp(p[j] - top);
      for (index j = 0; j <= i; ++j) p[j] /= sum;
      std::fill(p + i + 1, p + s.seq, 0.0F);
      lse[(first + i) * s.heads + head] = top + std::log(sum);
    }
    gemm(CblasNoTrans, CblasNoTrans, s.seq, s.head_size, s.seq, 1, p_.data(), s.seq,
         q + 2 * s.width(), ld, 0, o + first * s.width() + head * s.head_size, s.width());
  }

  void head_backward(float* dqkv, const float* dout, const float* qkv, const float* o,
                     const float* lse, attention_shape s, index first, index head) {
    const index ld = 3 * s.width();
    const float scale = 1 / std::sqrt(static_cast<float>(s.head_size));
    const float* q = qkv + first * ld + head * s.head_size;
    const float* out = o + first * s.width() + head * s.head_size;
    const float* up = dout + first * s.width() + head * s.head_size;
    float* dq = dqkv + first * ld + head * s.head_size;
    scores(q, s);
    gemm(CblasNoTrans, CblasTrans, s.seq, s.seq, s.head_size, 1, up, s.width(), q + 2 * s.width(),
         ld, 0, dp_.data(), s.seq);
    for (index i = 0; i < s.seq; ++i) {
      float* p = p_.data() + i * s.seq;
      float* dp = dp_.data() + i * s.seq;
      const float delta = dot(up + i * s.width(), out + i * s.width(), s.head_size);
      const float norm = lse[(first + i) * s.heads + head];
      for (index j = 0; j <= i; ++j) {
        p[j] = std::exp(p[j] - norm);
        dp[j] = p[j] * (dp[j] - delta) * scale;
      }
      std::fill(p + i + 1, p + s.seq, 0.0F);
      std::fill(dp + i + 1, dp + s.seq, 0.0F);
    }
    gemm(CblasNoTrans, CblasNoTrans, s.seq, s.head_size, s.seq, 1, dp_.data(), s.seq, q + s.width(),
         ld, 0, dq, ld);
    gemm(CblasTrans, CblasNoTrans, s.seq, s.head_size, s.seq, 1, dp_.data(), s.seq, q, ld, 0,
         dq + s.width(), ld);
    gemm(CblasTrans, CblasNoTrans, s.seq, s.head_size, s.seq, 1, p_.data(), s.seq, up, s.width(), 0,
         dq + 2 * s.width(), ld);
  }

  std::vector<float> p_, dp_;  // scores and their gradients, of one head of one sequence
};

}  // namespace moe
