/// The CPU kernels that a GEMM dominates: linear layers and attention, on OpenBLAS.
#pragma once

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "numbers.hpp"

namespace moe {

class cpu_dense : public cpu_numbers {
 public:
  cpu_dense(device& dev, stream_ref stream, const accelerator& speed)
      : cpu_numbers(dev, stream, speed) {
    openblas_set_num_threads(1);  // the number of threads would change the order of sums
  }

  void linear(operand y, const_operand x, const_operand w, index rows, index in, index out) {
    const index moved = floats_in(x, rows * in + in * out) + floats_in(y, rows * out);
    launch("linear", 2 * rows * in * out, moved, [=, this] {
      float* const to = floats_for(y, rows * out, y_);
      gemm(CblasNoTrans, CblasNoTrans, rows, out, in, 1, floats_of(x, rows * in, a_), in,
           floats_of(w, in * out, b_), out, 0, to, out);
      store(y, to, rows * out);
    });
  }

  void linear_of_codes(operand y, coded_operand x, coded_operand w, index rows, index in, index out,
                       fp8_scaling scaling) {
    const index moved = floats_in(x.codes, rows * in + in * out) + floats_in(y, rows * out);
    launch("linear_of_codes", 2 * rows * in * out, moved, [=, this] {
      float* const to = floats_for(y, rows * out, y_);
      float* const a = reserve(a_, rows * in);
      float* const b = reserve(b_, in * out);
      decode_rows(a, x, rows, in, scaling);
      decode_weight(b, w, in, out, scaling);
      gemm(CblasNoTrans, CblasTrans, rows, out, in, 1, a, in, b, in, 0, to, out);
      store(y, to, rows * out);
    });
  }

  void linear_backward_of_codes(float* dx, float* dw, const_operand x, const_operand dy,
                                coded_operand w, index rows, index in, index out,
                                fp8_scaling scaling) {
    const index moved = floats_in(dy, 2 * rows * out + rows * in) + rows * in + 2 * in * out;
    launch("linear_backward_of_codes", 4 * rows * in * out, moved, [=, this] {
      float* const a = reserve(a_, rows * out);
      float* const b = reserve(b_, std::max(in * out, rows * in));
      round_to_codes<e5m2>(a, dy, rows, out, scaling, false);
      decode_weight(b, w, out, in, scaling);
      gemm(CblasNoTrans, CblasTrans, rows, in, out, 1, a, out, b, out, 0, dx, in);
      round_to_codes<e5m2>(a, dy, rows, out, scaling, true);
      round_to_codes<e4m3>(b, x, rows, in, scaling, true);
      gemm(CblasTrans, CblasNoTrans, in, out, rows, 1, b, in, a, out, 1, dw, out);
    });
  }

  void linear_backward_input(operand dx, const_operand dy, const_operand w, index rows, index in,
                             index out) {
    const index moved = floats_in(dy, rows * out + in * out) + floats_in(dx, rows * in);
    launch("linear_backward_input", 2 * rows * in * out, moved, [=, this] {
      float* const to = floats_for(dx, rows * in, y_);
      gemm(CblasNoTrans, CblasTrans, rows, in, out, 1, floats_of(dy, rows * out, a_), out,
           floats_of(w, in * out, b_), out, 0, to, in);
      store(dx, to, rows * in);
    });
  }

  void linear_backward_weight(float* dw, const_operand x, const_operand dy, index rows, index in,
                              index out) {
    const index moved = floats_in(x, rows * in + rows * out) + in * out;
    launch("linear_backward_weight", 2 * rows * in * out, moved, [=, this] {
      gemm(CblasTrans, CblasNoTrans, in, out, rows, 1, floats_of(x, rows * in, a_), in,
           floats_of(dy, rows * out, b_), out, 1, dw, out);
    });
  }

  void attention(operand o, float* lse, const_operand qkv, attention_shape s) {
    const index wide = s.batch * s.seq * s.width();
    launch("attention", 2 * wide * s.seq, floats_in(qkv, 4 * wide), [=, this] {
      float* const out = floats_for(o, wide, y_);
      const float* const in = floats_of(qkv, 3 * wide, a_);
      each_head(s, [&](index first, index head) {
        head_forward(out, lse, in, s, first, head, qkv.type);
      });
      store(o, out, wide);
    });
  }

  void attention_backward(operand dqkv, const_operand dout, const_operand qkv, const_operand o,
                          const float* lse, attention_shape s) {
    const index wide = s.batch * s.seq * s.width();
    launch("attention_backward", 5 * wide * s.seq, floats_in(qkv, 8 * wide), [=, this] {
      float* const to = floats_for(dqkv, 3 * wide, y_);
      const float* const in = floats_of(qkv, 3 * wide, a_);
      const float* const up = floats_of(dout, wide, b_);
      const float* const out = floats_of(o, wide, o_);
      each_head(s, [&](index first, index head) {
        head_backward(to, up, in, out, lse, s, first, head, qkv.type);
      });
      store(dqkv, to, 3 * wide);
    });
  }

 private:
  /// What an accelerator would put between two GEMMs in its operands' type is rounded as there.
  static void round_to(number_type type, float* p, index count) {
    with_elements(operand(p, type), [&]<class T>(T*) {
      if constexpr (!std::is_same_v<T, float>) {
        for (index i = 0; i < count; ++i) p[i] = static_cast<float>(T(p[i]));
      }
    });
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
                    index head, number_type type) {
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
    round_to(type, p_.data(), s.seq * s.seq);
    gemm(CblasNoTrans, CblasNoTrans, s.seq, s.head_size, s.seq, 1, p_.data(), s.seq,
         q + 2 * s.width(), ld, 0, o + first * s.width() + head * s.head_size, s.width());
  }

  void head_backward(float* dqkv, const float* dout, const float* qkv, const float* o,
                     const float* lse, attention_shape s, index first, index head,
                     number_type type) {
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
    round_to(type, p_.data(), s.seq * s.seq);
    round_to(type, dp_.data(), s.seq * s.seq);
    gemm(CblasNoTrans, CblasNoTrans, s.seq, s.head_size, s.seq, 1, dp_.data(), s.seq, q + s.width(),
         ld, 0, dq, ld);
    gemm(CblasTrans, CblasNoTrans, s.seq, s.head_size, s.seq, 1, dp_.data(), s.seq, q, ld, 0,
         dq + s.width(), ld);
    gemm(CblasTrans, CblasNoTrans, s.seq, s.head_size, s.seq, 1, p_.data(), s.seq, up, s.width(), 0,
         dq + 2 * s.width(), ld);
  }

  std::vector<float> p_, dp_;         // scores and their gradients, of one head of one sequence
  std::vector<float> a_, b_, o_, y_;  // operands and results as floats, where they are none
};

}  // namespace moe
