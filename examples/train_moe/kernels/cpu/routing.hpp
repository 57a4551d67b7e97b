/// The CPU kernels of the routed experts: choosing, laying out rows, moving them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "dense.hpp"

namespace moe {

class cpu_routing : public cpu_dense {
 public:
  using cpu_dense::cpu_dense;

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

  void gather(operand y, const_operand x, const std::int32_t* source, index rows, index top_k,
              index width) {
    launch("gather", 0, floats_in(x, rows * width) + floats_in(y, rows * width), [=] {
      with_elements(x, [&](const auto* from) {
        with_elements(y, [&]<class T>(T* to) {
          for (index r = 0; r < rows; ++r) {
            T* out = to + r * width;
            if (source[r] < 0) {
              std::fill_n(out, width, T(0.0F));
            } else {
              const auto* in = from + source[r] / top_k * width;
              for (index c = 0; c < width; ++c) out[c] = T(static_cast<float>(in[c]));
            }
          }
        });
      });
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

 private:
  static float balance_scale(routing_shape s) {
    return static_cast<float>(s.experts) / static_cast<float>(s.tokens * s.tokens * s.top_k);
  }
  static std::int32_t padded(std::int32_t count) {
    return (count + static_cast<std::int32_t>(row_padding) - 1) /
           static_cast<std::int32_t>(row_padding) * static_cast<std::int32_t>(row_padding);
  }
};

}  // namespace moe
