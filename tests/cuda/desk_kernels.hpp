/// The kernels of `faulty_cuda_desk`; compiled in desk_kernels.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "faults/word_rows.hpp"

namespace tidepool::test {

/// What the kernels of a desk share, in device memory.
struct desk_state {
  std::uint32_t round;
  unsigned wrong;
};

void start_round(cudaStream_t on, desk_state* state);
void write_words(cudaStream_t on, const desk_state* state, std::uint32_t* to, std::size_t words,
                 std::uint32_t tag);
void check_words(cudaStream_t on, desk_state* state, const std::uint32_t* from, const word_rows& in,
                 std::uint32_t tag);

}  // namespace tidepool::test
