/// Weights with their gradients, and the routing, which never change.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "declared.hpp"

namespace bench {

struct parameter {
  device_array<bf16> value;
  device_array<bf16> gradient;
};

struct layer_weights {
  parameter qkv;   ///< [hidden][3 * heads * head_size]
  parameter proj;  ///< [heads * head_size][hidden]
  parameter fc1;   ///< [experts][hidden][2 * ffn], gate and value
  parameter fc2;   ///< [experts][ffn][hidden]
};

inline std::vector<layer_weights> make_weights(cuda_device& dev, const declared_stream& stream,
                                               const model_sizes& n) {
  std::uint64_t seed = 10;
  // So scaled that a product of `inputs` terms is about as large as what went in.
  const auto make = [&](index count, index inputs) {
    parameter fresh{{dev, count}, {dev, count}};
    fill_random(fresh.value.data(), count, seed++, 1 / std::sqrt(static_cast<double>(inputs)),
                stream);
    dev.fill_bytes(fresh.gradient.data(), 0, fresh.gradient.bytes(), stream);
    return fresh;
  };
  std::vector<layer_weights> all(static_cast<std::size_t>(n.weight_sets()));
  for (auto& w : all) {
    if (n.attention) {
      w.qkv = make(n.hidden * 3 * n.attention_width(), n.hidden);
      w.proj = make(n.attention_width() * n.hidden, n.attention_width());
    }
    w.fc1 = make(n.experts * n.hidden * 2 * n.ffn, n.hidden);
    w.fc2 = make(n.experts * n.ffn * n.hidden, n.ffn);
  }
  return all;
}

/// Which token each row of the experts reads. Random, but balanced: the experts take turns in an
/// order shuffled again and again, so each gets the same number of rows.
struct routing {
  device_array<int> source;    ///< [rows] the token of a row; rows of one expert lie together
  device_array<int> row_of;    ///< [tokens][top_k] the rows of a token
  device_array<float> weight;  ///< [rows] the router's; those of a token sum to one

  routing(cuda_device& dev, const declared_stream& stream, const model_sizes& n)
      : source(dev, n.rows()), row_of(dev, n.rows()), weight(dev, n.rows()) {
    std::mt19937_64 random(7);
    const auto tokens = static_cast<int>(n.tokens);
    const auto top_k = static_cast<std::size_t>(n.top_k);
    std::vector<std::size_t> turns(static_cast<std::size_t>(n.experts));
    std::iota(turns.begin(), turns.end(), 0);
    std::vector<std::vector<int>> tokens_of(turns.size());
    auto turn = turns.size();
    for (int t = 0; t < tokens; ++t) {
      for (std::size_t k = 0; k < top_k; ++k, ++turn) {
        if (turn == turns.size()) {
          std::shuffle(turns.begin(), turns.end(), random);
          turn = 0;
        }
        tokens_of[turns[turn]].push_back(t);
      }
    }

    std::vector<int> sources;
    std::vector<std::vector<int>> rows(static_cast<std::size_t>(tokens));
    for (const auto& mine : tokens_of) {
      for (const int t : mine) {
        rows[static_cast<std::size_t>(t)].push_back(static_cast<int>(sources.size()));
        sources.push_back(t);
      }
    }
    std::vector<int> rows_of;
    std::vector<float> weights(sources.size());
    std::uniform_real_distribution<float> some(0.2F, 1.0F);
    for (const auto& mine : rows) {
      float sum = 0;
      for (const int r : mine) sum += weights[static_cast<std::size_t>(r)] = some(random);
      for (const int r : mine) weights[static_cast<std::size_t>(r)] /= sum;
      rows_of.insert(rows_of.end(), mine.begin(), mine.end());
    }
    upload(source, sources, stream);
    upload(row_of, rows_of, stream);
    upload(weight, weights, stream);
    dev.synchronize(stream);
  }

 private:
  template <class T>
  static void upload(const device_array<T>& to, const std::vector<T>& from,
                     const declared_stream& on) {
    check(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyHostToDevice, on.get()),
          "cudaMemcpyAsync");
    on.writes("upload", to.data(), to.count());
  }
};

}  // namespace bench
