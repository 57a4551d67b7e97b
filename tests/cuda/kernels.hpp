// Kernels for the GPU tests: they write what they can check, and take their time. They are compiled
// in kernels.cu: nvcc takes long for what has none.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace tidepool::test {

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
  void next_round(cudaStream_t on);

  void write(cudaStream_t on, float* to, std::size_t count, float base, int microseconds = 0);
  void check(cudaStream_t on, const float* from, std::size_t count, float base,
             int microseconds = 0);
  // Blocks the host.
  [[nodiscard]] unsigned wrong() const {
    unsigned result = 0;
    cudaMemcpy(&result, wrong_, sizeof result, cudaMemcpyDeviceToHost);
    return result;
  }

 private:
  unsigned* wrong_ = nullptr;
  float* round_ = nullptr;
};

// Fails, and with it the context.
void trap(cudaStream_t on);

}  // namespace tidepool::test
