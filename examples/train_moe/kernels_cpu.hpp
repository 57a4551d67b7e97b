/// The kernels for a machine without a GPU: plain loops and OpenBLAS, run by the virtual device.
///
/// Each call states what it would cost on the imaginary accelerator; the virtual clock charges that
/// and the loops really run when the simulation gets there.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels_cpu_dense.hpp"

namespace moe {

class cpu_kernels : public cpu_dense {
 public:
  cpu_kernels(device& dev, stream_ref stream, const settings& run)
      : cpu_dense(dev, stream, run.speed) {}

  void randomize(float* w, index count, float range, std::uint64_t seed) {
    launch("randomize", 0, count, [=] {
      for (index i = 0; i < count; ++i) {
        const auto bits = mix(seed + static_cast<std::uint64_t>(i)) >> 40;  // 24 bits: exact
        w[i] = (static_cast<float>(bits) * 0x1p-23F - 1) * range;
      }
    });
  }

  void fill(float* w, index count, float value) {
    launch("fill", 0, count, [=] { std::fill_n(w, count, value); });
  }

  template <class T>
  void publish(T* host, const T* from, index count) {
    launch("publish", 0, count, [=] { std::copy_n(from, count, host); });
  }

  void add(float* y, const float* a, const float* b, index count) {
    launch("add", count, 3 * count, [=] {
      for (index i = 0; i < count; ++i) y[i] = a[i] + b[i];
    });
  }

  void embed(float* x, const float* table, const float* positions, const std::int32_t* token,
             index rows, index seq, index width) {
    launch("embed", rows * width, 3 * rows * width, [=] {
      for (index t = 0; t < rows; ++t) {
        const float* word = table + token[t] * width;
        std::copy_n(word, width, x + t * width);
        if (positions != nullptr) accumulate(x + t * width, positions + t % seq * width, width);
      }
    });
  }

  void embed_backward(float* dtable, float* dpositions, const float* dx, const std::int32_t* token,
                      index rows, index seq, index width) {
    launch("embed_backward", 2 * rows * width, 4 * rows * width, [=] {
      for (index t = 0; t < rows; ++t) {
        accumulate(dtable + token[t] * width, dx + t * width, width);
        if (dpositions == nullptr) continue;
        accumulate(dpositions + t % seq * width, dx + t * width, width);
      }
    });
  }

  void rmsnorm(float* y, float* rstd, const float* x, const float* gain, index rows, index width) {
    launch("rmsnorm", 4 * rows * width, 2 * rows * width, [=] {
      for (index t = 0; t < rows; ++t) {
        const float* in = x + t * width;
        float* out = y + t * width;
        const float mean = dot(in, in, width) / static_cast<float>(width);
        rstd[t] = 1 / std::sqrt(mean + epsilon);
        for (index c = 0; c < width; ++c) out[c] = in[c] * rstd[t] * gain[c];
      }
    });
  }

  void rmsnorm_backward(float* dx, float* dgain, const float* dy, const float* x, const float* rstd,
                        const float* gain, index rows, index width) {
    launch("rmsnorm_backward", 8 * rows * width, 4 * rows * width, [=] {
      for (index t = 0; t < rows; ++t) {
        const float* in = x + t * width;
        const float* up = dy + t * width;
        float sum = 0;
        for (index c = 0; c < width; ++c) {
          sum += up[c] * gain[c] * in[c];
          dgain[c] += up[c] * in[c] * rstd[t];
        }
        const float shrink = sum * rstd[t] * rstd[t] / static_cast<float>(width);
        for (index c = 0; c < width; ++c) {
          dx[t * width + c] += (up[c] * gain[c] - in[c] * shrink) * rstd[t];
        }
      }
    });
  }

  void route(float* probs, std::int32_t* choice, const float* logits, routing_shape s) {
    launch("route", 5 * s.tokens * s.experts, 2 * s.tokens * s.experts, [=] {
      for (index t = 0; t < s.tokens; ++t) {
        const float* in = logits + t * s.experts;
        float* p = probs + t * s.experts;
        const float top = *std::max_element(in, in + s.experts);
        float sum = 0;
        for (index e = 0; e < s.experts; ++e) sum += p[e] = std::exp(in[e] - top);
        for (index e = 0; e < s.experts; ++e) p[e] /= sum;
        std::int32_t* chosen = choice + t * s.top_k;
        for (index k = 0; k < s.top_k; ++k) {
          index best = -1;
          for (index e = 0; e < s.experts; ++e) {
            const bool taken = std::find(chosen, chosen + k, e) != chosen + k;
            if (!taken && (best < 0 || p[e] > p[best])) best = e;
          }
          chosen[k] = static_cast<std::int32_t>(best);
        }
      }
    });
  }

  void assign(std::int32_t* row, std::int32_t* counts, const std::int32_t* choice,
              routing_shape s) {
    launch("assign", 0, 2 * s.tokens * s.top_k, [=] {
      std::fill_n(counts, s.experts, 0);
      for (index i = 0; i < s.tokens * s.top_k; ++i) row[i] = counts[choice[i]]++;
      std::vector<std::int32_t> starts(static_cast<std::size_t>(s.experts) + 1);
      std::int32_t* const first = starts.data();
      for (index e = 0; e < s.experts; ++e) {
        first[e + 1] =
            first[e] + padded(static_cast<std::int32_t>(std::min<index>(counts[e], s.capacity)));
      }
      for (index i = 0; i < s.tokens * s.top_k; ++i) {
        row[i] = row[i] < s.capacity ? row[i] + first[choice[i]] : -1;
      }
    });
  }

  void place(std::int32_t* source, float* weight, const std::int32_t* row,
             const std::int32_t* choice, const float* probs, index rows, routing_shape s) {
    launch("place", 0, 6 * rows, [=] {
      std::fill_n(source, rows, -1);
      std::fill_n(weight, rows, 0.0F);
      for (index i = 0; i < s.tokens * s.top_k; ++i) {
        if (row[i] < 0) continue;
        source[row[i]] = static_cast<std::int32_t>(i);
        weight[row[i]] = probs[i / s.top_k * s.experts + choice[i]];
      }
    });
  }

  void balance(float* loss, const float* probs, const std::int32_t* counts, routing_shape s) {
    launch("balance", s.tokens * s.experts, s.tokens * s.experts, [=] {
      double sum = 0;
      for (index e = 0; e < s.experts; ++e) {
        for (index t = 0; t < s.tokens; ++t) sum += 1.0 * probs[t * s.experts + e] * counts[e];
      }
      *loss = static_cast<float>(sum) * balance_scale(s);
    });
  }

  void route_backward(float* dlogits, const float* dweight, const std::int32_t* row,
                      const std::int32_t* choice, const float* probs, const std::int32_t* counts,
                      float scale, routing_shape s) {
    launch("route_backward", 6 * s.tokens * s.experts, 4 * s.tokens * s.experts, [=] {
      for (index t = 0; t < s.tokens; ++t) {
        const float* p = probs + t * s.experts;
        float* d = dlogits + t * s.experts;
        for (index e = 0; e < s.experts; ++e) {
          d[e] = scale * balance_scale(s) * static_cast<float>(counts[e]);
        }
        for (index i = t * s.top_k; i < (t + 1) * s.top_k; ++i) {
          if (row[i] >= 0) d[choice[i]] += dweight[row[i]];
        }
        const float mean = dot(d, p, s.experts);
        for (index e = 0; e < s.experts; ++e) d[e] = p[e] * (d[e] - mean);
      }
    });
  }

  void gather(float* y, const float* x, const std::int32_t* source, index rows, index top_k,
              index width) {
    launch("gather", 0, 2 * rows * width, [=] {
      for (index r = 0; r < rows; ++r) {
        if (source[r] < 0) {
          std::fill_n(y + r * width, width, 0.0F);
        } else {
          std::copy_n(x + source[r] / top_k * width, width, y + r * width);
        }
      }
    });
  }

  void combine(float* y, const float* residual, const float* x, const std::int32_t* row,
               index tokens, index top_k, index width) {
    launch("combine", tokens * top_k * width, tokens * (top_k + 2) * width, [=] {
      for (index t = 0; t < tokens; ++t) {
        if (y != residual) std::copy_n(residual + t * width, width, y + t * width);
        for (index k = 0; k < top_k; ++k) {
          const index from = row[t * top_k + k];
          if (from >= 0) accumulate(y + t * width, x + from * width, width);
        }
      }
    });
  }

  void swiglu(float* b, const float* a, const float* weight, index rows, index ffn) {
    launch("swiglu", 8 * rows * ffn, 3 * rows * ffn, [=] {
      for (index r = 0; r < rows; ++r) {
        const float* gate = a + r * 2 * ffn;
        const float* value = gate + ffn;
        for (index c = 0; c < ffn; ++c) {
          b[r * ffn + c] = gate[c] * sigmoid(gate[c]) * value[c] * weight[r];
        }
      }
    });
  }

  void swiglu_backward(float* da, float* dweight, const float* db, const float* a,
                       const float* weight, index rows, index ffn) {
    launch("swiglu_backward", 16 * rows * ffn, 5 * rows * ffn, [=] {
      for (index r = 0; r < rows; ++r) {
        const float* gate = a + r * 2 * ffn;
        const float* value = gate + ffn;
        const float* up = db + r * ffn;
        float* dgate = da + r * 2 * ffn;
        float* dvalue = dgate + ffn;
        float sum = 0;
        for (index c = 0; c < ffn; ++c) {
          const float s = sigmoid(gate[c]);
          const float silu = gate[c] * s;
          sum += up[c] * silu * value[c];
          dgate[c] = up[c] * weight[r] * value[c] * (s + silu * (1 - s));
          dvalue[c] = up[c] * weight[r] * silu;
        }
        dweight[r] = sum;
      }
    });
  }

  void cross_entropy(float* loss, float* logits, const std::int32_t* target, index rows,
                     index width, float scale) {
    launch("cross_entropy", 5 * rows * width, 2 * rows * width, [=] {
      double sum = 0;
      for (index t = 0; t < rows; ++t) {
        float* p = logits + t * width;
        const float top = *std::max_element(p, p + width);
        const float right = p[target[t]] - top;
        float total = 0;
        for (index c = 0; c < width; ++c) total += p[c] = std::exp(p[c] - top);
        sum += std::log(total) - right;
        for (index c = 0; c < width; ++c) p[c] *= scale / static_cast<float>(rows) / total;
        p[target[t]] -= scale / static_cast<float>(rows);
      }
      *loss = static_cast<float>(sum / static_cast<double>(rows));
    });
  }

  void adamw(float* w, float* g, float* m, float* v, index count, adamw_step s) {
    launch("adamw", 12 * count, 7 * count, [=] {
      for (index i = 0; i < count; ++i) {
        m[i] = s.beta1 * m[i] + (1 - s.beta1) * g[i];
        v[i] = s.beta2 * v[i] + (1 - s.beta2) * g[i] * g[i];
        const float step = m[i] / s.correction1 / (std::sqrt(v[i] / s.correction2) + s.epsilon);
        w[i] -= s.learning_rate * (step + s.decay * w[i]);
        g[i] = 0;
      }
    });
  }

 private:
  static constexpr float epsilon = 1e-5F;

  static float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
  static float balance_scale(routing_shape s) {
    return static_cast<float>(s.experts) / static_cast<float>(s.tokens * s.tokens * s.top_k);
  }
  static std::int32_t padded(std::int32_t count) {
    return (count + static_cast<std::int32_t>(row_padding) - 1) /
           static_cast<std::int32_t>(row_padding) * static_cast<std::int32_t>(row_padding);
  }
};

static_assert(kernel_set<cpu_kernels>);

}  // namespace moe
