// Kernels for the GPU tests: they write what they can check, and take their time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tidepool::test {

static __global__ void spin(long long nanoseconds) {
  long long begin = 0;
  long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

static __global__ void write_values(float* to, std::size_t count, float base, const float* round) {
  const auto i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count) to[i] = base + *round + static_cast<float>(i % 61);
}

static __global__ void count_wrong(const float* from, std::size_t count, float base,
                                   const float* round, unsigned* wrong) {
  const auto i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count && from[i] != base + *round + static_cast<float>(i % 61)) atomicAdd(wrong, 1U);
}

static __global__ void add_one(float* to) { *to += 1; }

// A slow producer and a slow reader: a join that is missing shows as a wrong value. Values that a
// graph writes are those of its capture, but for the round: without it a stale copy would be right.
class writer_and_reader {
 public:
  writer_and_reader() {
    cudaMalloc(&wrong_, sizeof(unsigned));
    cudaMemset(wrong_, 0, sizeof(unsigned));
    cudaMalloc(&round_, sizeof(float));
    cudaMemset(round_, 0, sizeof(float));
    cudaDeviceSynchronize();
  }
  writer_and_reader(const writer_and_reader&) = delete;
  writer_and_reader& operator=(const writer_and_reader&) = delete;
  ~writer_and_reader() {
    cudaFree(wrong_);
    cudaFree(round_);
  }

  // What is written and checked on `on` from now on differs from what was before.
  void next_round(cudaStream_t on) { add_one<<<1, 1, 0, on>>>(round_); }

  void write(cudaStream_t on, float* to, std::size_t count, float base, int microseconds = 0) {
    if (microseconds > 0) spin<<<1, 1, 0, on>>>(microseconds * 1000LL);
    write_values<<<blocks(count), 256, 0, on>>>(to, count, base, round_);
  }
  void check(cudaStream_t on, const float* from, std::size_t count, float base,
             int microseconds = 0) {
    if (microseconds > 0) spin<<<1, 1, 0, on>>>(microseconds * 1000LL);
    count_wrong<<<blocks(count), 256, 0, on>>>(from, count, base, round_, wrong_);
  }
  // Blocks the host.
  [[nodiscard]] unsigned wrong() const {
    unsigned result = 0;
    cudaMemcpy(&result, wrong_, sizeof result, cudaMemcpyDeviceToHost);
    return result;
  }

 private:
  static unsigned blocks(std::size_t count) { return static_cast<unsigned>((count + 255) / 256); }
  unsigned* wrong_ = nullptr;
  float* round_ = nullptr;
};

}  // namespace tidepool::test
