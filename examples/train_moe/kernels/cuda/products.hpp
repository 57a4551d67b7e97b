/// Products of matrices on cuBLASLt, with an algorithm for each size class of rows.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

#include "../operand.hpp"

namespace moe {

/// A row-major matrix without gaps between its rows.
struct factor {
  const_operand data;
  bool transposed = false;       ///< against how it lies in memory
  const float* scale = nullptr;  ///< of codes of FP8
};

/// What a scale of codes covers: a whole factor; or 128 of a row of a, and of b a square, or 128
/// of a column.
enum class scale_cover { factor, square_of_b, column_of_b };

/// c[m][n] = a[m][k] · b[k][n].
struct product_shape {
  index m, n, k;
  auto operator<=>(const product_shape&) const = default;
};

/// Multiplies on one stream, in a workspace that others may use on that stream.
///
/// An algorithm is looked for once for a shape whose rows are rounded up to a power of two, and
/// serves all of that class. Experts get other rows in each step; cuBLAS left alone takes another
/// kernel for nearly every number of them, and the first use of a kernel makes the host wait until
/// the device has nothing left to do, copies on other streams included (`docs/performance.md`).
/// Which algorithm is taken depends neither on what ran before nor on where buffers lie.
class products {
 public:
  products(cudaStream_t stream, void* workspace, std::size_t workspace_bytes);
  products(const products&) = delete;
  products& operator=(const products&) = delete;
  ~products();

  /// c = a·b + beta · c, with an algorithm chosen for the shape `like`. Throws
  /// `tidepool::device_error` where cuBLASLt has no algorithm.
  void multiply(operand c, const factor& a, const factor& b, product_shape shape,
                product_shape like, float beta = 0, scale_cover scales = scale_cover::factor);

  /// What `rows` count as in a shape that an algorithm is chosen for.
  [[nodiscard]] static index size_class(index rows);

 private:
  using kind = std::tuple<number_type, number_type, number_type, bool, bool, scale_cover>;
  struct description;

  const cublasLtMatmulAlgo_t& algorithm(const kind& of, product_shape like, const factor& a,
                                        const factor& b);

  cudaStream_t stream_;
  cublasLtHandle_t blas_ = nullptr;
  void* workspace_;
  std::size_t workspace_bytes_;
  std::map<std::pair<kind, product_shape>, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace moe
