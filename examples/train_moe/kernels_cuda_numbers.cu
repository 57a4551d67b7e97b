/// CUDA kernels between numbers of different types: conversion, quantisation, a look for overflow.
#include <cuda_fp8.h>

#include "kernels_cuda.hpp"
#include "kernels_cuda_tools.cuh"

namespace moe {
namespace {

constexpr unsigned all_lanes = ~0U;
constexpr index numbers_of_lane = scale_block / warp_size;

template <class To, class From>
__global__ void convert_kernel(To* y, const From* x, index count) {
  const index i = thread_id();
  if (i < count) put(y[i], to_float(x[i]));
}

__global__ void find_not_finite_kernel(std::int32_t* found, const float* x, index count) {
  const index i = thread_id();
  if (i < count && !isfinite(x[i])) *found = 1;
}

// The code, and in place of the number what it stands for. A power of two divides exactly.
__device__ void encode(__nv_fp8_storage_t& code, __nv_bfloat16& x, float scale) {
  code = __nv_cvt_float_to_fp8(to_float(x) / scale, __NV_SATFINITE, __NV_E4M3);
  put(x, __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))) * scale);
}

__device__ void decode(__nv_bfloat16& x, __nv_fp8_storage_t code, float scale) {
  put(x, __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))) * scale);
}

// A warp for each block of a row.
__global__ void quantise_blocks_kernel(__nv_fp8_storage_t* codes, float* scale, __nv_bfloat16* x,
                                       index blocks, index per_row, index width) {
  const index block = thread_id() / warp_size;
  if (block >= blocks) return;
  const index lane = threadIdx.x % warp_size;
  const index row = block / per_row * width;
  const index first = block % per_row * scale_block;
  float largest = 0;
  for (index i = 0; i < numbers_of_lane; ++i) {
    const index c = first + i * warp_size + lane;
    if (c < width) largest = fmaxf(largest, fabsf(to_float(x[row + c])));
  }
  for (int step = warp_size / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, step));
  }
  const float mine = e4m3_scale(largest);
  if (lane == 0) scale[block] = mine;
  for (index i = 0; i < numbers_of_lane; ++i) {
    const index c = first + i * warp_size + lane;
    if (c < width) encode(codes[row + c], x[row + c], mine);
  }
}

__global__ void partial_maximum_kernel(float* partial, const __nv_bfloat16* x, index count) {
  float largest = 0;
  for (index i = thread_id(); i < count; i += static_cast<index>(gridDim.x) * blockDim.x) {
    largest = fmaxf(largest, fabsf(to_float(x[i])));
  }
  largest = reduce(largest, max_of{});
  if (threadIdx.x == 0) partial[blockIdx.x] = largest;
}

__global__ void scale_of_tensor_kernel(float* scale, const float* partial, int parts) {
  float largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < parts; i += static_cast<int>(blockDim.x)) {
    largest = fmaxf(largest, partial[i]);
  }
  largest = reduce(largest, max_of{});
  if (threadIdx.x == 0) *scale = e4m3_scale(largest);
}

__global__ void quantise_tensor_kernel(__nv_fp8_storage_t* codes, const float* scale,
                                       __nv_bfloat16* x, index count) {
  const index i = thread_id();
  if (i < count) encode(codes[i], x[i], *scale);
}

// `scales` for each row, or 0: one for all.
__global__ void dequantise_kernel(__nv_bfloat16* x, const __nv_fp8_storage_t* codes,
                                  const float* scale, index count, index width, index scales) {
  const index i = thread_id();
  if (i >= count) return;
  const index at = scales == 0 ? 0 : i / width * scales + i % width / scale_block;
  decode(x[i], codes[i], scale[at]);
}

index scales_of_row(index width) { return (width + scale_block - 1) / scale_block; }

}  // namespace

void cuda_kernels::convert(operand y, const_operand x, index count) {
  with_numbers(x, [&](const auto* from) {
    with_numbers(y, [&](auto* to) {
      convert_kernel<<<blocks_for(count), block_size, 0, stream_>>>(to, from, count);
    });
  });
  check_launch("convert");
}

void cuda_kernels::find_not_finite(std::int32_t* found, const float* x, index count) {
  cudaMemsetAsync(found, 0, sizeof *found, stream_);
  check_launch("memset");
  find_not_finite_kernel<<<blocks_for(count), block_size, 0, stream_>>>(found, x, count);
  check_launch("find_not_finite");
}

void cuda_kernels::quantise(operand codes, float* scale, operand x, index rows, index width,
                            fp8_scaling scaling) {
  auto* const to = codes.as<__nv_fp8_storage_t>();
  auto* const from = x.as<__nv_bfloat16>();
  const index count = rows * width;
  if (scaling == fp8_scaling::block) {
    const index blocks = scale_count(rows, width, scaling);
    quantise_blocks_kernel<<<blocks_for(blocks * warp_size), block_size, 0, stream_>>>(
        to, scale, from, blocks, scales_of_row(width), width);
    check_launch("quantise_blocks");
    return;
  }
  partial_maximum_kernel<<<blocks_of_maximum, block_size, 0, stream_>>>(partial_.data(), from,
                                                                        count);
  check_launch("partial_maximum");
  scale_of_tensor_kernel<<<1, block_size, 0, stream_>>>(scale, partial_.data(), blocks_of_maximum);
  check_launch("scale_of_tensor");
  quantise_tensor_kernel<<<blocks_for(count), block_size, 0, stream_>>>(to, scale, from, count);
  check_launch("quantise_tensor");
}

void cuda_kernels::dequantise(operand x, const_operand codes, const float* scale, index rows,
                              index width, fp8_scaling scaling) {
  const index count = rows * width;
  dequantise_kernel<<<blocks_for(count), block_size, 0, stream_>>>(
      x.as<__nv_bfloat16>(), codes.as<__nv_fp8_storage_t>(), scale, count, width,
      scaling == fp8_scaling::tensor ? 0 : scales_of_row(width));
  check_launch("dequantise");
}

}  // namespace moe
