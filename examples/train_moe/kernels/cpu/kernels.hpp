/// The kernels for a machine without a GPU: plain loops and OpenBLAS, run by the virtual device.
///
/// Each call states what it would cost on the imaginary accelerator; the virtual clock charges that
/// and the loops really run when the simulation gets there.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "routing.hpp"

namespace moe {

class cpu_kernels : public cpu_routing {
 public:
  cpu_kernels(device& dev, stream_ref stream, const settings& run)
      : cpu_routing(dev, stream, run.speed) {}

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

  void rmsnorm(operand y, float* rstd, const float* x, const float* gain, index rows, index width) {
    launch("rmsnorm", 4 * rows * width, rows * width + floats_in(y, rows * width), [=] {
      with_elements(y, [&]<class T>(T* to) {
        for (index t = 0; t < rows; ++t) {
          const float* in = x + t * width;
          T* out = to + t * width;
          const float mean = dot(in, in, width) / static_cast<float>(width);
          rstd[t] = 1 / std::sqrt(mean + epsilon);
          for (index c = 0; c < width; ++c) out[c] = T(in[c] * rstd[t] * gain[c]);
        }
      });
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

  void swiglu(operand b, const_operand a, const float* weight, index rows, index ffn) {
    launch("swiglu", 8 * rows * ffn, floats_in(b, 3 * rows * ffn), [=] {
      with_elements(b, [&]<class T>(T* to) {
        const T* const from = a.as<T>();
        for (index r = 0; r < rows; ++r) {
          for (index c = 0; c < ffn; ++c) {
            const auto gate = static_cast<float>(from[r * 2 * ffn + c]);
            const auto value = static_cast<float>(from[r * 2 * ffn + ffn + c]);
            to[r * ffn + c] = T(gate * sigmoid(gate) * value * weight[r]);
          }
        }
      });
    });
  }

  void swiglu_backward(operand da, float* dweight, const float* db, const_operand a,
                       const float* weight, index rows, index ffn) {
    launch("swiglu_backward", 16 * rows * ffn, rows * ffn + floats_in(a, 4 * rows * ffn), [=] {
      with_elements(da, [&]<class T>(T* to) {
        const T* const from = a.as<T>();
        for (index r = 0; r < rows; ++r) {
          const float* up = db + r * ffn;
          T* dgate = to + r * 2 * ffn;
          T* dvalue = dgate + ffn;
          float sum = 0;
          for (index c = 0; c < ffn; ++c) {
            const auto gate = static_cast<float>(from[r * 2 * ffn + c]);
            const auto value = static_cast<float>(from[r * 2 * ffn + ffn + c]);
            const float s = sigmoid(gate);
            const float silu = gate * s;
            sum += up[c] * silu * value;
            dgate[c] = T(up[c] * weight[r] * value * (s + silu * (1 - s)));
            dvalue[c] = T(up[c] * weight[r] * silu);
          }
          dweight[r] = sum;
        }
      });
    });
  }

  void cross_entropy(float* loss, operand dlogits, const float* logits, const std::int32_t* target,
                     index rows, index width, float scale) {
    launch("cross_entropy", 5 * rows * width, rows * width + floats_in(dlogits, rows * width), [=] {
      double sum = 0;
      std::vector<float> memory;
      for (index t = 0; t < rows; ++t) {
        const float* in = logits + t * width;
        const operand out = dlogits + t * width;
        float* p = floats_for(out, width, memory);
        const float top = *std::max_element(in, in + width);
        const float right = in[target[t]] - top;
        float total = 0;
        for (index c = 0; c < width; ++c) total += p[c] = std::exp(in[c] - top);
        sum += std::log(total) - right;
        for (index c = 0; c < width; ++c) p[c] *= scale / static_cast<float>(rows) / total;
        p[target[t]] -= scale / static_cast<float>(rows);
        store(out, p, width);
      }
      *loss = static_cast<float>(sum / static_cast<double>(rows));
    });
  }

  void adamw(float* w, float* g, float* m, float* v, index count, adamw_step s) {
    launch("adamw", 12 * count, 7 * count, [=] {
      for (index i = 0; i < count; ++i) {
        const float gradient = g[i] * s.unscale;
        m[i] = s.beta1 * m[i] + (1 - s.beta1) * gradient;
        v[i] = s.beta2 * v[i] + (1 - s.beta2) * gradient * gradient;
        const float step = m[i] / s.correction1 / (std::sqrt(v[i] / s.correction2) + s.epsilon);
        w[i] -= s.learning_rate * (step + s.decay * w[i]);
        g[i] = 0;
      }
    });
  }

 private:
  static constexpr float epsilon = 1e-5F;

  static float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
};

static_assert(kernel_set<cpu_kernels>);

}  // namespace moe
