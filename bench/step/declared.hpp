/// The kernels on a stream that tells its device what each of them reads and writes.
#pragma once

#include "kernels.hpp"

namespace bench {

// What each of these does is said in `kernels.hpp`.

inline void fill_random(bf16* to, index count, std::uint64_t seed, double deviation,
                        const declared_stream& on) {
  fill_random(to, count, seed, deviation, on.get());
  on.writes("fill_random", to, count);
}

/// `from` has `tokens` rows.
inline void gather(bf16* to, const bf16* from, const int* source, index rows, index tokens,
                   index width, const declared_stream& on) {
  gather(to, from, source, rows, width, on.get());
  on.reads("gather", from, tokens * width);
  on.reads("gather", source, rows);
  on.writes("gather", to, rows * width);
}

inline void combine(bf16* to, const bf16* residual, const bf16* rows, const int* row_of,
                    index tokens, index top_k, index width, const declared_stream& on) {
  combine(to, residual, rows, row_of, tokens, top_k, width, on.get());
  on.reads("combine", residual, tokens * width);
  on.reads("combine", rows, tokens * top_k * width);
  on.reads("combine", row_of, tokens * top_k);
  on.writes("combine", to, tokens * width);
}

inline void add(bf16* to, const bf16* more, index count, const declared_stream& on) {
  add(to, more, count, on.get());
  on.reads("add", to, count);
  on.reads("add", more, count);
  on.writes("add", to, count);
}

inline void swiglu(bf16* b, const bf16* a, const float* weight, index rows, index ffn,
                   const declared_stream& on) {
  swiglu(b, a, weight, rows, ffn, on.get());
  on.reads("swiglu", a, rows * 2 * ffn);
  on.reads("swiglu", weight, rows);
  on.writes("swiglu", b, rows * ffn);
}

inline void swiglu_backward(bf16* b, bf16* da, const bf16* db, const bf16* a, const float* weight,
                            index rows, index ffn, const declared_stream& on) {
  swiglu_backward(b, da, db, a, weight, rows, ffn, on.get());
  on.reads("swiglu_backward", db, rows * ffn);
  on.reads("swiglu_backward", a, rows * 2 * ffn);
  on.reads("swiglu_backward", weight, rows);
  on.writes("swiglu_backward", b, rows * ffn);
  on.writes("swiglu_backward", da, rows * 2 * ffn);
}

inline void softmax(bf16* scores, index heads, index queries, index keys, index first_query,
                    const declared_stream& on) {
  softmax(scores, heads, queries, keys, first_query, on.get());
  on.reads("softmax", scores, heads * queries * keys);
  on.writes("softmax", scores, heads * queries * keys);
}

inline void softmax_backward(bf16* gradients, const bf16* probabilities, index heads, index queries,
                             index keys, const declared_stream& on) {
  softmax_backward(gradients, probabilities, heads, queries, keys, on.get());
  on.reads("softmax_backward", gradients, heads * queries * keys);
  on.reads("softmax_backward", probabilities, heads * queries * keys);
  on.writes("softmax_backward", gradients, heads * queries * keys);
}

inline void add_checksum(unsigned long long* into, const bf16* data, index count,
                         const declared_stream& on) {
  add_checksum(into, data, count, on.get());
  on.reads("add_checksum", into, 2);
  on.reads("add_checksum", data, count);
  on.writes("add_checksum", into, 2);
}

}  // namespace bench
