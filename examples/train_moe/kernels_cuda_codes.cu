/// CUDA kernels that multiply codes of FP8, on cuBLASLt.
#include <cublasLt.h>

#include <string>
#include <tidepool/error.hpp>

#include "kernels_cuda.hpp"
#include "kernels_cuda_tools.cuh"

namespace moe {
namespace {

// A scale for each block arrived with CUDA 12.9.
#if CUBLAS_VERSION >= 120900
constexpr bool has_block_scales = true;
constexpr auto scale_of_square = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
constexpr auto scale_of_row = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
#else
constexpr bool has_block_scales = false;
#endif

// Every address and row of what is multiplied is a multiple of it. The choice of an algorithm must
// not depend on where buffers happen to lie.
constexpr std::uint32_t alignment = 16;

// to[block][row] = from[row][block]
__global__ void turn_scales_kernel(float* to, const float* from, index rows, index blocks) {
  const index i = thread_id();
  if (i < rows * blocks) to[i] = from[i % rows * blocks + i / rows];
}

// A description of cuBLASLt's, in memory of the caller.
struct matmul {
  cublasLtMatmulDescOpaque_t data;

  matmul() {
    check(cublasLtMatmulDescInit(&data, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t which, const T& value) {
    check(cublasLtMatmulDescSetAttribute(&data, which, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }
};

struct layout {
  cublasLtMatrixLayoutOpaque_t data;

  layout(cudaDataType_t type, index rows, index columns) {
    check(cublasLtMatrixLayoutInit(&data, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
          "cublasLtMatrixLayoutInit");
  }
};

struct preference {
  cublasLtMatmulPreferenceOpaque_t data;

  preference() { check(cublasLtMatmulPreferenceInit(&data), "cublasLtMatmulPreferenceInit"); }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t which, const T& value) {
    check(cublasLtMatmulPreferenceSetAttribute(&data, which, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  }
};

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

// cuBLASLt counts columns first: yᵀ = w·xᵀ, where the codes of w are [out][in], so that it reads
// both along the sum.
void cuda_kernels::linear_of_codes(operand y, coded_operand x, coded_operand w, index rows,
                                   index in, index out, fp8_scaling scaling) {
  const auto blas = reinterpret_cast<cublasLtHandle_t>(blas_);  // it may be used as one
  matmul product;
  product.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  product.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  const float* scale_of_x = x.scale;
#if CUBLAS_VERSION >= 120900
  if (scaling == fp8_scaling::block) {
    const index blocks = scale_blocks(in);
    turn_scales_kernel<<<blocks_for(rows * blocks), block_size, 0, stream_>>>(
        turned_scales_->data(), x.scale, rows, blocks);
    check_launch("turn_scales");
    scale_of_x = turned_scales_->data();
    product.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_of_square);
    product.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_of_row);
  }
#endif
  product.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w.scale);
  product.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_of_x);
  layout of_w(CUDA_R_8F_E4M3, in, out), of_x(CUDA_R_8F_E4M3, in, rows), of_y(type_of(y), out, rows);

  preference wanted;
  wanted.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(blas_bytes));
  for (const auto operand_of :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    wanted.set(operand_of, alignment);
  }
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t asked =
      cublasLtMatmulAlgoGetHeuristic(blas, &product.data, &of_w.data, &of_x.data, &of_y.data,
                                     &of_y.data, &wanted.data, 1, &best, &found);
  if (asked != CUBLAS_STATUS_SUCCESS || found == 0) {
    throw tidepool::device_error(
        "--fp8-gemm: cuBLASLt multiplies no codes of " + std::to_string(rows) + " x " +
            std::to_string(in) + " with " + std::to_string(in) + " x " + std::to_string(out) +
            " (" + cublasGetStatusString(asked) + "); choose other sizes, or leave the option out",
        asked);
  }
  const float one = 1, zero = 0;
  check(cublasLtMatmul(blas, &product.data, &one, w.codes.data, &of_w.data, x.codes.data,
                       &of_x.data, &zero, y.data, &of_y.data, y.data, &of_y.data, &best.algo,
                       blas_memory_.data(), static_cast<std::size_t>(blas_bytes), stream_),
        "cublasLtMatmul");
}

}  // namespace moe
