/// CUDA kernels between numbers of different types: conversion, quantisation, a look for overflow.
#include <cuda_fp8.h>

#include <tidepool/codec/fp8_kernels.cuh>

#include "kernels.hpp"
#include "tools.cuh"

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

// The code of x, and what it stands for, or the code again. A power of two divides exactly.
__device__ void encode(__nv_fp8_storage_t& code, __nv_fp8_storage_t& same, float x, float scale) {
  same = code = __nv_cvt_float_to_fp8(x / scale, __NV_SATFINITE, __NV_E4M3);
}
__device__ void encode(__nv_fp8_storage_t& code, __nv_bfloat16& decoded, float x, float scale) {
  code = __nv_cvt_float_to_fp8(x / scale, __NV_SATFINITE, __NV_E4M3);
  put(decoded, __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))) * scale);
}
__device__ void encode(__nv_fp8_storage_t& code, __nv_bfloat16& x, float scale) {
  encode(code, x, to_float(x), scale);
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
  const float mine = fp8_scale<e4m3>(largest);
  if (lane == 0) scale[block] = mine;
  for (index i = 0; i < numbers_of_lane; ++i) {
    const index c = first + i * warp_size + lane;
    if (c < width) encode(codes[row + c], x[row + c], mine);
  }
}

template <class T>
__global__ void partial_maximum_kernel(float* partial, const T* x, index count) {
  float largest = 0;
  for (index i = thread_id(); i < count; i += static_cast<index>(gridDim.x) * blockDim.x) {
    largest = fmaxf(largest, fabsf(to_float(x[i])));
  }
  largest = reduce(largest, max_of{});
  if (threadIdx.x == 0) partial[blockIdx.x] = largest;
}

template <class Code>
__global__ void scale_of_tensor_kernel(float* scale, const float* partial, int parts) {
  float largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < parts; i += static_cast<int>(blockDim.x)) {
    largest = fmaxf(largest, partial[i]);
  }
  largest = reduce(largest, max_of{});
  if (threadIdx.x == 0) *scale = fp8_scale<Code>(largest);
}

__global__ void quantise_tensor_kernel(__nv_fp8_storage_t* codes, const float* scale,
                                       __nv_bfloat16* x, index count) {
  const index i = thread_id();
  if (i < count) encode(codes[i], x[i], *scale);
}

// One of `count` scales of a row. What fills the row up is read by nobody, and is no garbage
// either.
__device__ void put_scale(float* scale, float value, unsigned row, unsigned column, unsigned count,
                          index stride) {
  if (threadIdx.x == 0) scale[row * stride + column] = value;
  if (column == 0 && count + threadIdx.x < stride) scale[row * stride + count + threadIdx.x] = 0;
}

// A block of threads for each square of a weight, whose codes it turns over in shared memory. Its
// scale is made here, or with `stride` 0 is there already, for all of them. `turned` is null, or
// gets the scales of the codes as [in][out].
template <class Y>
__global__ void quantise_weight_kernel(__nv_fp8_storage_t* codes, float* scale, float* turned_scale,
                                       Y* y, const float* w, index in, index out, index stride,
                                       index turned_stride) {
  constexpr int side = static_cast<int>(scale_block);
  __shared__ __nv_fp8_storage_t turned[side][side + 4];
  const index first_row = blockIdx.x * scale_block, first_column = blockIdx.y * scale_block;
  const int rows = static_cast<int>(min(scale_block, in - first_row));
  const int columns = static_cast<int>(min(scale_block, out - first_column));
  const index corner = first_row * out + first_column;
  float mine;
  if (stride == 0) {
    mine = *scale;
  } else {
    float largest = 0;
    for (int i = static_cast<int>(threadIdx.x); i < side * side; i += block_size) {
      const int r = i / side, c = i % side;
      if (r < rows && c < columns) largest = fmaxf(largest, fabsf(w[corner + r * out + c]));
    }
    mine = fp8_scale<e4m3>(reduce(largest, max_of{}));
    put_scale(scale, mine, blockIdx.y, blockIdx.x, gridDim.x, stride);
    if (turned_scale != nullptr) {
      put_scale(turned_scale, mine, blockIdx.x, blockIdx.y, gridDim.y, turned_stride);
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < side * side; i += block_size) {
    const int r = i / side, c = i % side;
    if (r >= rows || c >= columns) continue;
    const index at = corner + r * out + c;
    encode(turned[c][r], y[at], w[at], mine);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < side * side; i += block_size) {
    const int c = i / side, r = i % side;
    if (r < rows && c < columns) codes[(first_column + c) * in + first_row + r] = turned[c][r];
  }
}

// `scales` for each row, or 0: one for all.
__global__ void dequantise_kernel(__nv_bfloat16* x, const __nv_fp8_storage_t* codes,
                                  const float* scale, index count, index width, index scales) {
  const index i = thread_id();
  if (i >= count) return;
  const index at = scales == 0 ? 0 : i / width * scales + i % width / scale_block;
  decode(x[i], codes[i], scale[at]);
}

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
        to, scale, from, blocks, scale_blocks(width), width);
    check_launch("quantise_blocks");
    return;
  }
  scale_of_tensor(scale, x, count);
  quantise_tensor_kernel<<<blocks_for(count), block_size, 0, stream_>>>(to, scale, from, count);
  check_launch("quantise_tensor");
}

void cuda_kernels::quantise_weight(operand codes, float* scale, operand y, const float* w, index in,
                                   index out, fp8_scaling scaling) {
  const bool blocks = scaling == fp8_scaling::block;
  if (!blocks) scale_of_tensor(scale, w, in * out);
  const dim3 grid(static_cast<unsigned>(scale_blocks(in)),
                  static_cast<unsigned>(scale_blocks(out)));
  const auto quantise_into = [&](auto* to, float* turned_scale) {
    quantise_weight_kernel<<<grid, block_size, 0, stream_>>>(
        codes.as<__nv_fp8_storage_t>(), scale, turned_scale, to, w, in, out,
        blocks ? weight_scale_stride(in, scaling) : 0, weight_scale_stride(out, scaling));
  };
  if (y.type == number_type::e4m3) {
    quantise_into(y.as<__nv_fp8_storage_t>(), scale + turned_scales_at(in, out, scaling));
  } else {
    quantise_into(y.as<__nv_bfloat16>(), nullptr);
  }
  check_launch("quantise_weight");
}

void cuda_kernels::scale_of_tensor(float* scale, const_operand x, index count, number_type codes) {
  with_numbers(x, [&](const auto* from) {
    partial_maximum_kernel<<<blocks_of_maximum, block_size, 0, stream_>>>(partial_.data(), from,
                                                                          count);
  });
  check_launch("partial_maximum");
  const auto kernel =
      codes == number_type::e5m2 ? scale_of_tensor_kernel<e5m2> : scale_of_tensor_kernel<e4m3>;
  kernel<<<1, block_size, 0, stream_>>>(scale, partial_.data(), blocks_of_maximum);
  check_launch("scale_of_tensor");
}

void cuda_kernels::dequantise(operand x, const_operand codes, const float* scale, index rows,
                              index width, fp8_scaling scaling) {
  const index count = rows * width;
  dequantise_kernel<<<blocks_for(count), block_size, 0, stream_>>>(
      x.as<__nv_bfloat16>(), codes.as<__nv_fp8_storage_t>(), scale, count, width,
      scaling == fp8_scaling::tensor ? 0 : scale_blocks(width));
  check_launch("dequantise");
}

void cuda_kernels::encode(const tidepool::fp8_tensor<device>& to, const_operand x) {
  tidepool::fp8_codec(device_).encode_into(to, x.as<bf16>(), stream_);
}

void cuda_kernels::decode(operand x, const tidepool::fp8_tensor<device>& from) {
  tidepool::fp8_codec(device_).decode_into(x.as<bf16>(), from, stream_);
}

}  // namespace moe
