/// CUDA kernels that multiply codes of FP8, on cuBLASLt.
#include <string>
#include <tidepool/error.hpp>

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
                     {products::size_class(rows), out, in}, 0, blocks);
}

}  // namespace moe
