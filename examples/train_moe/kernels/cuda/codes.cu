/// CUDA kernels that multiply codes of FP8, on cuBLASLt.
#include <cuda_fp8.h>

#include <cstdint>
#include <string>
#include <tidepool/error.hpp>
#include <type_traits>

#include "kernels.hpp"
#include "tools.cuh"

namespace moe {
namespace {

// A scale for each block arrived with CUDA 12.9.
#if CUBLAS_VERSION >= 120900
constexpr bool has_block_scales = true;
#else
constexpr bool has_block_scales = false;
#endif

// to[block][row] = from[row][block]
__global__ void turn_scales_kernel(float* to, const float* from, index rows, index blocks) {
  const index i = thread_id();
  if (i < rows * blocks) to[i] = from[i % rows * blocks + i / rows];
}

// What becomes of a matrix that products in both directions read: codes as it lies, with scales of
// its rows as [block][row], or null; and turned over, with those of its columns as [block][column].
struct both_ways {
  void* codes;
  float* scale;
  void* turned;
  float* turned_scale;
};

// The codes of a line of 128 numbers, of which each lane has four, and their scale.
template <class Code>
__device__ float encode_line(std::uint32_t& codes, const float (&x)[4], const float* whole) {
  float largest = 0;
  for (const float each : x) largest = fmaxf(largest, fabsf(each));
  for (int step = warp_size / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
  }
  const float scale = whole == nullptr ? fp8_scale<Code>(largest) : *whole;
  const float factor = 1 / scale;  // of a power of two: exact
  constexpr auto kind = std::is_same_v<Code, e5m2> ? __NV_E5M2 : __NV_E4M3;
  const auto pair = [&](float first, float second) {
    return std::uint32_t{__nv_cvt_float2_to_fp8x2(make_float2(first * factor, second * factor),
                                                  __NV_SATFINITE, kind)};
  };
  codes = pair(x[0], x[1]) | pair(x[2], x[3]) << 16;
  return scale;
}

// A block of threads for each square of x. Rows from `rows` to `held` are zeros, which fill up the
// sum that is made of the columns. `whole` is null, or the scale of all of x.
template <class Code>
__global__ void encode_both_ways_kernel(both_ways to, const __nv_bfloat16* x, index rows,
                                        index held, index width, const float* whole) {
  constexpr int side = static_cast<int>(scale_block), warps = block_size / warp_size;
  __shared__ __nv_bfloat16 square[side][side + 1];
  const index first_row = blockIdx.x * scale_block, first_column = blockIdx.y * scale_block;
  for (int i = static_cast<int>(threadIdx.x); i < side * side; i += block_size) {
    const index r = first_row + i / side, c = first_column + i % side;
    square[i / side][i % side] = r < rows && c < width ? x[r * width + c] : __float2bfloat16_rn(0);
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  float four[4];
  std::uint32_t codes;
  for (int line = static_cast<int>(threadIdx.x) / warp_size; line < side; line += warps) {
    const index row = first_row + line, column = first_column + line;
    if (to.codes != nullptr && row < rows) {
      for (int i = 0; i < 4; ++i) four[i] = to_float(square[line][4 * lane + i]);
      const float scale = encode_line<Code>(codes, four, whole);
      const index at = first_column + 4 * lane;
      if (at < width) static_cast<std::uint32_t*>(to.codes)[(row * width + at) / 4] = codes;
      if (lane == 0 && whole == nullptr) to.scale[blockIdx.y * rows + row] = scale;
    }
    if (column < width) {
      for (int i = 0; i < 4; ++i) four[i] = to_float(square[4 * lane + i][line]);
      const float scale = encode_line<Code>(codes, four, whole);
      const index at = first_row + 4 * lane;
      if (at < held) static_cast<std::uint32_t*>(to.turned)[(column * held + at) / 4] = codes;
      if (lane == 0 && whole == nullptr) to.turned_scale[blockIdx.x * width + column] = scale;
    }
  }
}

template <class Code>
void encode_both_ways(const both_ways& to, const_operand x, index rows, index held, index width,
                      const float* whole, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(scale_blocks(held)),
                  static_cast<unsigned>(scale_blocks(width)));
  encode_both_ways_kernel<Code>
      <<<grid, block_size, 0, stream>>>(to, x.as<__nv_bfloat16>(), rows, held, width, whole);
  check_launch("encode_both_ways");
}

}  // namespace

void cuda_kernels::check_multiplies_codes(const device& dev, fp8_scaling scaling) {
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    const cudaError_t code = cudaDeviceGetAttribute(&value, which, dev.ordinal());
    if (code == cudaSuccess) return value;
    throw tidepool::device_error(std::string("cudaDeviceGetAttribute: ") + cudaGetErrorString(code),
                                 code);
  };
  const int major = attribute(cudaDevAttrComputeCapabilityMajor);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor);
  const std::string here = "--fp8-gemm: this GPU has compute capability " + std::to_string(major) +
                           "." + std::to_string(minor) + ", and ";
  if (major < 8 || (major == 8 && minor < 9)) {
    throw tidepool::option_error(here +
                                 "codes of FP8 are multiplied from 8.9 on; leave the option out");
  }
  if (scaling != fp8_scaling::block) return;
  if (major != 9) {
    throw tidepool::option_error(here +
                                 "cuBLASLt has scales of blocks on 9.0 alone; take "
                                 "--fp8-scaling=tensor, or leave the option out");
  }
  if (!has_block_scales) {
    throw tidepool::option_error(
        "--fp8-gemm: this build's cuBLASLt has no scales of blocks, which came with CUDA 12.9; "
        "build with that, take --fp8-scaling=tensor, or leave the option out");
  }
}

// The codes of w are [out][in]: cuBLASLt reads both factors along the sum.
void cuda_kernels::linear_of_codes(operand y, coded_operand x, coded_operand w, index rows,
                                   index in, index out, fp8_scaling scaling) {
  const bool blocks = scaling == fp8_scaling::block;
  const float* scale_of_x = x.scale;
  if (blocks) {
    const index across = scale_blocks(in);
    turn_scales_kernel<<<blocks_for(rows * across), block_size, 0, stream_>>>(
        turned_scales_->data(), x.scale, rows, across);
    check_launch("turn_scales");
    scale_of_x = turned_scales_->data();
  }
  products_.multiply(y, {x.codes, false, scale_of_x}, {w.codes, true, w.scale}, {rows, out, in},
                     {products::size_class(rows), out, in}, 0,
                     blocks ? scale_cover::square_of_b : scale_cover::factor);
}

// Each sum lies along both factors: that of dx over the columns of dy, that of dw over the rows of
// both, so that the codes of these are turned over, with scales of their own.
void cuda_kernels::linear_backward_of_codes(float* dx, float* dw, const_operand x, const_operand dy,
                                            coded_operand w, index rows, index in, index out,
                                            fp8_scaling scaling) {
  const bool blocks = scaling == fp8_scaling::block;
  const index held = summed_rows(rows);
  code_room &up = *dy_codes_, &turned_up = *turned_dy_, &turned_x = *turned_x_;
  float* const scale_of_turned_up =
      (blocks ? turned_up : up).scale.data();  // one scale serves both
  if (!blocks) {
    scale_of_tensor(up.scale.data(), dy, rows * out, number_type::e5m2);
    scale_of_tensor(turned_x.scale.data(), x, rows * in);
  }
  encode_both_ways<e5m2>(
      {up.codes.data(), up.scale.data(), turned_up.codes.data(), scale_of_turned_up}, dy, rows,
      held, out, blocks ? nullptr : up.scale.data(), stream_);
  encode_both_ways<e4m3>({nullptr, nullptr, turned_x.codes.data(), turned_x.scale.data()}, x, rows,
                         held, in, blocks ? nullptr : turned_x.scale.data(), stream_);
  products_.multiply(dx, {{up.codes.data(), number_type::e5m2}, false, up.scale.data()},
                     {w.codes, true, w.scale}, {rows, in, out},
                     {products::size_class(rows), in, out}, 0,
                     blocks ? scale_cover::square_of_b : scale_cover::factor);
  products_.multiply(dw, {{turned_x.codes.data(), number_type::e4m3}, false, turned_x.scale.data()},
                     {{turned_up.codes.data(), number_type::e5m2}, true, scale_of_turned_up},
                     {in, out, held}, {in, out, products::size_class(held)}, 1,
                     blocks ? scale_cover::column_of_b : scale_cover::factor);
}

}  // namespace moe
