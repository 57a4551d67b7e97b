#include "kernels.hpp"

namespace tidepool::test {

namespace {

__global__ void spin_for(long long nanoseconds) {
  long long begin = 0;
  long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

__global__ void write_values(float* to, std::size_t count, float base, const float* round) {
  const auto i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count) to[i] = base + *round + static_cast<float>(i % 61);
}

__global__ void count_wrong(const float* from, std::size_t count, float base, const float* round,
                            unsigned* wrong) {
  const auto i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count && from[i] != base + *round + static_cast<float>(i % 61)) atomicAdd(wrong, 1U);
}

__global__ void add_one(float* to) { *to += 1; }

__global__ void trapping() { asm volatile("trap;"); }

unsigned blocks(std::size_t count) { return static_cast<unsigned>((count + 255) / 256); }

void spin(cudaStream_t on, int microseconds) {
  if (microseconds > 0) spin_for<<<1, 1, 0, on>>>(microseconds * 1000LL);
}

}  // namespace

void writer_and_reader::next_round(cudaStream_t on) { add_one<<<1, 1, 0, on>>>(round_); }

void writer_and_reader::write(cudaStream_t on, float* to, std::size_t count, float base,
                              int microseconds) {
  spin(on, microseconds);
  write_values<<<blocks(count), 256, 0, on>>>(to, count, base, round_);
}

void writer_and_reader::check(cudaStream_t on, const float* from, std::size_t count, float base,
                              int microseconds) {
  spin(on, microseconds);
  count_wrong<<<blocks(count), 256, 0, on>>>(from, count, base, round_, wrong_);
}

void trap(cudaStream_t on) { trapping<<<1, 1, 0, on>>>(); }

}  // namespace tidepool::test
