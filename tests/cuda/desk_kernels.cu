#include "desk_kernels.hpp"

namespace tidepool::test {

namespace {

__device__ std::uint32_t word_of(const desk_state& state, std::uint32_t tag, std::size_t i) {
  return (state.round * 10'000U + tag) * 2654435761U + static_cast<std::uint32_t>(i) * 40503U;
}

__global__ void start(desk_state* state) { ++state->round; }

__global__ void write(const desk_state* state, std::uint32_t* to, std::size_t words,
                      std::uint32_t tag) {
  for (std::size_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = word_of(*state, tag, i);
}

__global__ void check(desk_state* state, const std::uint32_t* from, word_rows in,
                      std::uint32_t tag) {
  for (std::size_t r = 0; r < in.rows; ++r) {
    for (std::size_t i = threadIdx.x; i < in.width; i += blockDim.x) {
      const auto expected = word_of(*state, tag, in.first + r * in.step + i);
      if (from[r * in.pitch + i] != expected) atomicAdd(&state->wrong, 1U);
    }
  }
}

}  // namespace

void start_round(cudaStream_t on, desk_state* state) { start<<<1, 1, 0, on>>>(state); }

void write_words(cudaStream_t on, const desk_state* state, std::uint32_t* to, std::size_t words,
                 std::uint32_t tag) {
  write<<<1, 128, 0, on>>>(state, to, words, tag);
}

void check_words(cudaStream_t on, desk_state* state, const std::uint32_t* from, const word_rows& in,
                 std::uint32_t tag) {
  check<<<1, 128, 0, on>>>(state, from, in, tag);
}

}  // namespace tidepool::test
