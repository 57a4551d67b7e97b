/// The kernels on the virtual device.
#pragma once

#include <algorithm>
#include <cstring>

#include "../train_moe/kernels/cpu/kernels.hpp"
#include "kernels.hpp"

namespace graph_moe {

class cpu_kernels : public moe::cpu_kernels {
 public:
  using moe::cpu_kernels::cpu_kernels;

  void rank(std::int32_t* rank_of, std::int32_t* counts, const std::int32_t* choice,
            routing_shape s) {
    launch("rank", 0, 2 * s.tokens * s.top_k, [=] {
      std::fill_n(counts, s.experts, 0);
      for (index i = 0; i < s.tokens * s.top_k; ++i) rank_of[i] = counts[choice[i]]++;
    });
  }
  void lay_out(std::int32_t* row, const std::int32_t* choice, index choices, index stride) {
    launch("lay_out", 0, 2 * choices, [=] {
      for (index i = 0; i < choices; ++i) {
        row[i] = static_cast<std::int32_t>(row[i] < stride ? choice[i] * stride + row[i] : -1);
      }
    });
  }
  void clear_rest(operand x, const std::int32_t* count, index rows, index width) {
    const index row_bytes = width * bytes_of(x.type);
    launch("clear_rest", 0, rows * row_bytes / 4, [=] {
      const index first = std::min<index>(*count, rows);
      std::memset(x.as<char>() + first * row_bytes, 0,
                  static_cast<std::size_t>((rows - first) * row_bytes));
    });
  }
  void largest(std::int32_t* most, const std::int32_t* counts, index count) {
    launch("largest", 0, count, [=] { *most = *std::max_element(counts, counts + count); });
  }
  void update(float* w, float* g, float* m, index count, const std::int32_t* most, sgd_step s) {
    launch("update", 4 * count, 6 * count, [=] {
      const bool wrong = *most > s.limit;
      for (index i = 0; i < count; ++i) {
        const float gradient = g[i];
        g[i] = 0;
        if (wrong) continue;
        m[i] = s.momentum * m[i] + gradient;
        w[i] -= s.learning_rate * m[i];
      }
    });
  }
};

static_assert(kernel_set<cpu_kernels>);

}  // namespace graph_moe
