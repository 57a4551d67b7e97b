/// What the CUDA kernels share: launch sizes, checks, types, and sums over a block in a fixed
/// order.
#pragma once

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <tidepool/error.hpp>

#include "../operand.hpp"

namespace moe {

inline constexpr int block_size = 256;
inline constexpr int warp_size = 32;

/// Blocks for one thread per item.
inline unsigned blocks_for(index items) {
  return static_cast<unsigned>((items + block_size - 1) / block_size);
}

/// Throws `tidepool::device_error` when the launch of `kernel` was refused.
inline void check_launch(const char* kernel) {
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess) {
    throw tidepool::device_error(
        std::string("launch of ") + kernel + ": " + cudaGetErrorString(code), code);
  }
}

inline void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw tidepool::device_error(std::string(call) + ": " + cublasGetStatusString(status), status);
  }
}

/// In the terms of cuBLAS.
inline cudaDataType_t type_of(const_operand x) {
  switch (x.type) {
    case number_type::bf16:
      return CUDA_R_16BF;
    case number_type::fp16:
      return CUDA_R_16F;
    case number_type::e4m3:
      return CUDA_R_8F_E4M3;
    case number_type::e5m2:
      return CUDA_R_8F_E5M2;
    case number_type::fp32:
      break;
  }
  return CUDA_R_32F;
}

/// Calls `body` with a pointer to the elements of `x`, in the types of CUDA.
template <class Operand, class Body>
void with_numbers(const Operand& x, Body body) {
  with_elements<__nv_bfloat16, __half>(x, body);
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

/// `value` in the type of `to`, rounded to nearest even.
__device__ inline void put(float& to, float value) { to = value; }
__device__ inline void put(__nv_bfloat16& to, float value) { to = __float2bfloat16_rn(value); }
__device__ inline void put(__half& to, float value) { to = __float2half_rn(value); }

/// This thread's place in a grid of one dimension.
__device__ inline index thread_id() {
  return static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }

struct sum_of {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct max_of {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// The sum (or maximum) of `value` over a block of `block_size` threads, in every thread. The order
/// of the operations is that of the thread numbers' bits, always the same.
template <class Operation>
__device__ float reduce(float value, Operation op) {
  __shared__ float of_warp[block_size / warp_size];
  for (int step = warp_size / 2; step > 0; step /= 2) {
    value = op(value, __shfl_xor_sync(~0U, value, step));
  }
  __syncthreads();  // of_warp may still be read from the reduction before
  if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = value;
  __syncthreads();
  value = of_warp[0];
  for (int w = 1; w < block_size / warp_size; ++w) value = op(value, of_warp[w]);
  return value;
}

}  // namespace moe
