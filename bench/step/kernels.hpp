/// Launches of the memory-bound kernels of the stack. Rows are multiples of 8 elements.
#pragma once

#include <cstdint>

#include "blas.hpp"

namespace bench {

void fill_random(bf16* to, index count, std::uint64_t seed, double deviation, cudaStream_t stream);
void gather(bf16* to, const bf16* from, const int* source, index rows, index width,
            cudaStream_t stream);
void combine(bf16* to, const bf16* residual, const bf16* rows, const int* row_of, index tokens,
             index top_k, index width, cudaStream_t stream);
void add(bf16* to, const bf16* more, index count, cudaStream_t stream);
void swiglu(bf16* b, const bf16* a, const float* weight, index rows, index ffn,
            cudaStream_t stream);
void swiglu_backward(bf16* b, bf16* da, const bf16* db, const bf16* a, const float* weight,
                     index rows, index ffn, cudaStream_t stream);

/// Causal attention: scores of `queries` into probabilities, and gradients of these into those of
/// the scores, both in place. A query sees the keys up to its own.
void softmax(bf16* scores, index heads, index queries, index keys, index first_query,
             cudaStream_t stream);
void softmax_backward(bf16* gradients, const bf16* probabilities, index heads, index queries,
                      index keys, cudaStream_t stream);

/// Adds to [0] a checksum of all bits and their places, to [1] how many numbers are not finite.
void add_checksum(unsigned long long* into, const bf16* data, index count, cudaStream_t stream);

}  // namespace bench
