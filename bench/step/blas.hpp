/// cuBLAS for row-major bf16 matrices, checked calls, and device memory that a scope owns.
#pragma once

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <tidepool/error.hpp>
#include <utility>

#include "device.hpp"

namespace bench {

using bf16 = __nv_bfloat16;

inline void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // else the next launch finds it again
  throw tidepool::device_error(
      std::string(call) + ": " + cudaGetErrorName(code) + ", " + cudaGetErrorString(code),
      static_cast<int>(code));
}

inline void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const bool full = status == CUBLAS_STATUS_ALLOC_FAILED;
  throw tidepool::device_error(
      std::string(call) + ": " + cublasGetStatusName(status) + ", " + cublasGetStatusString(status),
      full ? static_cast<int>(cudaErrorMemoryAllocation) : static_cast<int>(status));
}

/// An array on the device, allocated once.
template <class T>
class device_array {
 public:
  device_array() = default;
  device_array(cuda_device& dev, index count)
      : dev_(&dev),
        data_(static_cast<T*>(dev.allocate(static_cast<std::size_t>(count) * sizeof(T)))),
        count_(count) {}
  device_array(device_array&& other) noexcept
      : dev_(other.dev_), data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  device_array& operator=(device_array&& other) noexcept {
    std::swap(dev_, other.dev_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~device_array() {
    if (data_ != nullptr) dev_->deallocate(data_);
  }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] index count() const { return count_; }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }

 private:
  cuda_device* dev_ = nullptr;
  T* data_ = nullptr;
  index count_ = 0;
};

/// A row-major matrix to read. Transposed: it is stored as the transpose of what is meant.
struct operand {
  const bf16* data;
  index ld;
  bool transposed = false;
  index stride = 0;  ///< from one of a batch to the next
};

/// A row-major matrix to write: beta * what is there + alpha * the product.
struct product {
  bf16* data;
  index ld;
  float beta = 0;
  float alpha = 1;
  index stride = 0;
};

/// Elements from the first to the last of `batch` matrices as they are stored.
inline index spanned(index rows, index columns, index ld, index stride, index batch) {
  return (batch - 1) * stride + (rows - 1) * ld + columns;
}

/// One cuBLAS handle on one stream, with a workspace of its own, so that the same call on the same
/// sizes does the same thing every time.
class blas {
 public:
  blas(cuda_device& dev, cudaStream_t stream) : on_(dev, stream), workspace_(dev, workspace_bytes) {
    check(cublasCreate(&handle_), "cublasCreate");
    try {
      // In this order: cublasSetStream puts the default workspace back.
      check(cublasSetStream(handle_, stream), "cublasSetStream");
      check(cublasSetWorkspace(handle_, workspace_.data(), workspace_.bytes()),
            "cublasSetWorkspace");
    } catch (...) {
      static_cast<void>(cublasDestroy(handle_));
      throw;
    }
  }
  blas(const blas&) = delete;
  blas& operator=(const blas&) = delete;
  ~blas() { static_cast<void>(cublasDestroy(handle_)); }

  /// c[m][n] = a[m][k] b[k][n], for each of `batch`; fp32 inside.
  void multiply(index m, index n, index k, const operand& a, const operand& b, const product& c,
                index batch = 1) {
    // What is row-major to us is the transpose to cuBLAS: it computes c^T = b^T a^T.
    const auto of_b = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const auto of_a = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (batch == 1) {
      check(
          cublasGemmEx(handle_, of_b, of_a, narrow(n), narrow(m), narrow(k), &c.alpha, b.data,
                       CUDA_R_16BF, narrow(b.ld), a.data, CUDA_R_16BF, narrow(a.ld), &c.beta,
                       c.data, CUDA_R_16BF, narrow(c.ld), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
    } else {
      check(cublasGemmStridedBatchedEx(handle_, of_b, of_a, narrow(n), narrow(m), narrow(k),
                                       &c.alpha, b.data, CUDA_R_16BF, narrow(b.ld), b.stride,
                                       a.data, CUDA_R_16BF, narrow(a.ld), a.stride, &c.beta, c.data,
                                       CUDA_R_16BF, narrow(c.ld), c.stride, narrow(batch),
                                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            "cublasGemmStridedBatchedEx");
    }
    declare(m, n, k, a, b, c, batch);
  }

  [[nodiscard]] int version() const {
    int number = 0;
    check(cublasGetVersion(handle_, &number), "cublasGetVersion");
    return number;
  }

 private:
  static constexpr index workspace_bytes = index{32} << 20;

  // The rows of one head have those of others between them: all from the first to the last counts.
  void declare(index m, index n, index k, const operand& a, const operand& b, const product& c,
               index batch) const {
    const auto reads = [&](const operand& x, index rows, index columns) {
      if (x.transposed) std::swap(rows, columns);
      on_.reads("product", x.data, spanned(rows, columns, x.ld, x.stride, batch));
    };
    reads(a, m, k);
    reads(b, k, n);
    const auto size = spanned(m, n, c.ld, c.stride, batch);
    if (c.beta != 0) on_.reads("product", c.data, size);
    on_.writes("product", c.data, size);
    on_.writes("product", workspace_.data(), workspace_.count());
  }

  static int narrow(index value) { return static_cast<int>(value); }

  declared_stream on_;
  device_array<std::byte> workspace_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace bench
