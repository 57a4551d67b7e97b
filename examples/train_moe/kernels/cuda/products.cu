/// Products of matrices on cuBLASLt.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <tidepool/error.hpp>
#include <utility>

#include "products.hpp"
#include "tools.cuh"

namespace moe {
namespace {

// Experts with fewer rows share an algorithm.
constexpr index smallest_class = 64;

// What all rows of a matrix lie at multiples of, as far as algorithms ask.
std::uint32_t alignment(number_type type, index row) {
  const index bytes = row * bytes_of(type);
  std::uint32_t aligned = 16;
  while (bytes % aligned != 0) aligned /= 2;
  return aligned;
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t which,
         const T& value) {
  check(cublasLtMatmulDescSetAttribute(&product, which, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& wanted, cublasLtMatmulPreferenceAttributes_t which,
         const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(&wanted, which, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

std::string by(index rows, index columns) {
  return std::to_string(rows) + " x " + std::to_string(columns);
}

}  // namespace

// cuBLASLt counts columns first, so that it sees every matrix transposed: cᵀ = bᵀ·aᵀ. Its first
// factor is our second.
struct products::description {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  std::uint32_t aligned_a, aligned_b, aligned_c;

  description(const kind& of, product_shape s, const factor& of_a, const factor& of_b) {
    const auto [type_of_c, type_of_a, type_of_b, a_transposed, b_transposed, scales] = of;
    check(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescInit");
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(product, CUBLASLT_MATMUL_DESC_TRANSA, operation(b_transposed));
    set(product, CUBLASLT_MATMUL_DESC_TRANSB, operation(a_transposed));
#if CUBLAS_VERSION >= 120900
    if (scales != scale_cover::factor) {
      set(product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
          scales == scale_cover::square_of_b ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                             : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
      set(product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    }
#endif
    if (of_a.scale != nullptr) {
      set(product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b.scale);
      set(product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a.scale);
    }
    aligned_a = lay_out(a, type_of_b, b_transposed, s.n, s.k);
    aligned_b = lay_out(b, type_of_a, a_transposed, s.k, s.m);
    aligned_c = lay_out(c, type_of_c, false, s.n, s.m);
  }

 private:
  static std::uint32_t lay_out(cublasLtMatrixLayoutOpaque_t& to, number_type type, bool transposed,
                               index rows, index columns) {
    if (transposed) std::swap(rows, columns);
    check(cublasLtMatrixLayoutInit(&to, type_of({nullptr, type}), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
          "cublasLtMatrixLayoutInit");
    return alignment(type, rows);
  }
};

products::products(cudaStream_t stream, void* workspace, std::size_t workspace_bytes)
    : stream_(stream), workspace_(workspace), workspace_bytes_(workspace_bytes) {
  check(cublasLtCreate(&blas_), "cublasLtCreate");
}

products::~products() { cublasLtDestroy(blas_); }

index products::size_class(index rows) {
  return static_cast<index>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max(rows, smallest_class))));
}

const cublasLtMatmulAlgo_t& products::algorithm(const kind& of, product_shape like, const factor& a,
                                                const factor& b) {
  const auto known = algorithms_.find({of, like});
  if (known != algorithms_.end()) return known->second;

  description d(of, like, a, b);  // scales of blocks are refused unless they lie somewhere
  cublasLtMatmulPreferenceOpaque_t wanted;
  check(cublasLtMatmulPreferenceInit(&wanted), "cublasLtMatmulPreferenceInit");
  set(wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes_});
  // Partial sums stay fp32, and are added in an order of their own.
  set(wanted, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, d.aligned_a);
  set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, d.aligned_b);
  set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d.aligned_c);
  set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d.aligned_c);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(blas_, &d.product, &d.a, &d.b, &d.c,
                                                              &d.c, &wanted, 1, &best, &found);
  if (asked != CUBLAS_STATUS_SUCCESS || found == 0) {
    const bool codes = bytes_of(std::get<1>(of)) == 1;
    const bool gradients =
        std::get<1>(of) == number_type::e5m2 || std::get<2>(of) == number_type::e5m2;
    throw tidepool::device_error("cuBLASLt multiplies no " + by(like.m, like.k) +
                                     (codes ? " codes with " : " with ") + by(like.k, like.n) +
                                     " (" + cublasGetStatusString(asked) + "); choose other sizes" +
                                     (gradients ? ", or take --fp8-gemm=forward"
                                      : codes   ? ", or leave --fp8-gemm out"
                                                : ""),
                                 asked);
  }
  return algorithms_.emplace(std::pair{of, like}, best.algo).first->second;
}

void products::multiply(operand c, const factor& a, const factor& b, product_shape shape,
                        product_shape like, float beta, scale_cover scales) {
  if (shape.m == 0 || shape.k == 0) return;  // of no rows: nothing to write, or nothing to add
  const kind of{c.type, a.data.type, b.data.type, a.transposed, b.transposed, scales};
  description d(of, shape, a, b);
  const float alpha = 1;
  const auto with_algorithm_of = [&](product_shape chosen_for) {
    return cublasLtMatmul(blas_, &d.product, &alpha, b.data.data, &d.a, a.data.data, &d.b, &beta,
                          c.data, &d.c, c.data, &d.c, &algorithm(of, chosen_for, a, b), workspace_,
                          workspace_bytes_, stream_);
  };
  cublasStatus_t multiplied = with_algorithm_of(like);
  // Nothing promises that what multiplies a class's largest shape takes each that is smaller.
  const bool refused =
      multiplied == CUBLAS_STATUS_NOT_SUPPORTED || multiplied == CUBLAS_STATUS_INVALID_VALUE;
  if (refused && like != shape) multiplied = with_algorithm_of(shape);
  check(multiplied, "cublasLtMatmul");
}

}  // namespace moe
