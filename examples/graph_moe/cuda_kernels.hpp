/// The kernels on a GPU. This header needs no nvcc.
#pragma once

#include "../train_moe/kernels/cuda/kernels.hpp"
#include "kernels.hpp"

namespace graph_moe {

class cuda_kernels : public moe::cuda_kernels {
 public:
  cuda_kernels(device& dev, stream_ref stream, const moe::settings& run)
      : moe::cuda_kernels(dev, stream, run), stream_(stream.get()) {}

  void rank(std::int32_t* rank_of, std::int32_t* counts, const std::int32_t* choice,
            routing_shape s);
  void lay_out(std::int32_t* row, const std::int32_t* choice, index choices, index stride);
  void clear_rest(operand x, const std::int32_t* count, index rows, index width);
  void largest(std::int32_t* most, const std::int32_t* counts, index count);
  void update(float* w, float* g, float* m, index count, const std::int32_t* most, sgd_step s);

 private:
  cudaStream_t stream_;
};

static_assert(kernel_set<cuda_kernels>);

}  // namespace graph_moe
