/// How the kernels of the GPT run: one thread for each element, a team of threads for each row, and
/// products of matrices. The virtual device runs them on the host; nvcc makes kernels of them.
#pragma once

#include <concepts>
#include <cstddef>
#include <tidepool/tidepool.hpp>

#include "../each.hpp"
#if defined(__CUDACC__)
#include <cublas_v2.h>
#endif

namespace gpt {

/// Threads that work on one row: lane, lane + size, … Every one of them gets a sum or a maximum.
struct team {
  int lane = 0;
  int size = 1;

  [[nodiscard]] ON_ANY_DEVICE float sum(float mine) const {
#if defined(__CUDA_ARCH__)
    for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0U, mine, step);
#endif
    return mine;
  }
  [[nodiscard]] ON_ANY_DEVICE float most(float mine) const {
#if defined(__CUDA_ARCH__)
    for (int step = 16; step > 0; step /= 2) mine = fmaxf(mine, __shfl_xor_sync(~0U, mine, step));
#endif
    return mine;
  }
};

/// Matrices by rows in one product: `c = alpha a b + beta c`, `a` of m × k and `b` of k × n, each
/// of which may lie in memory transposed. `count` products whose matrices follow each other.
struct product {
  int m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  float alpha = 1, beta = 0;
  int count = 1;
};

template <class Device>
class ops;

template <std::derived_from<tidepool::virtual_device> Device>
class ops<Device> {
 public:
  using stream_ref = typename Device::stream_ref;

  ops(Device& dev, stream_ref stream) : dev_(&dev), stream_(stream) {}

  template <class Body>
  void each_of(std::size_t count, const Body& body) {
    each(*dev_, stream_, "each", {}, count, body);
  }
  template <class Body>
  void rows(std::size_t count, const Body& body) {
    each(*dev_, stream_, "rows", {}, count, [body](std::size_t row) { body(row, team{}); });
  }
  void multiply(float* c, const float* a, const float* b, const product& of) {
    const auto m = static_cast<std::size_t>(of.m), n = static_cast<std::size_t>(of.n),
               k = static_cast<std::size_t>(of.k);
    const auto count = m * n * static_cast<std::size_t>(of.count);
    each(*dev_, stream_, "product", {}, count, [=](std::size_t i) {
      const auto one = i / (m * n), row = i / n % m, column = i % n;
      const float* left = a + one * m * k;
      const float* right = b + one * k * n;
      float sum = 0;
      for (std::size_t j = 0; j < k; ++j) {
        sum += left[of.a_transposed ? j * m + row : row * k + j] *
               right[of.b_transposed ? column * k + j : j * n + column];
      }
      c[i] = of.alpha * sum + (of.beta == 0 ? 0 : of.beta * c[i]);
    });
  }

 private:
  Device* dev_;
  stream_ref stream_;
};

#if defined(__CUDACC__)
template <class Body>
__global__ void rows_on_gpu(std::size_t count, Body body) {
  const auto row = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (row < count) body(row, team{static_cast<int>(threadIdx.x % 32), 32});
}

template <std::derived_from<tidepool::cuda_device> Device>
class ops<Device> {
 public:
  using stream_ref = typename Device::stream_ref;

  ops(Device& dev, stream_ref stream) : dev_(&dev), stream_(stream) {
    expect(cublasCreate(&blas_));
    expect(cublasSetStream(blas_, stream.get()));
    expect(cublasSetMathMode(blas_, CUBLAS_TF32_TENSOR_OP_MATH));
  }
  ops(const ops&) = delete;
  ops& operator=(const ops&) = delete;
  ~ops() { cublasDestroy(blas_); }

  template <class Body>
  void each_of(std::size_t count, const Body& body) {
    each(*dev_, stream_, "each", {}, count, body);
  }
  template <class Body>
  void rows(std::size_t count, const Body& body) {
    constexpr unsigned threads = 256;
    const auto blocks = static_cast<unsigned>((count * 32 + threads - 1) / threads);
    rows_on_gpu<<<blocks, threads, 0, stream_.get()>>>(count, body);
    if (const auto code = cudaGetLastError(); code != cudaSuccess) {
      throw tidepool::device_error(cudaGetErrorString(code), static_cast<int>(code));
    }
  }
  // cuBLAS has matrices by columns, which are the transposed ones by rows: so c' = b' a'.
  void multiply(float* c, const float* a, const float* b, const product& of) {
    const auto stride = [](int rows, int columns) {
      return static_cast<long long>(rows) * static_cast<long long>(columns);
    };
    expect(cublasSgemmStridedBatched(
        blas_, of.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
        of.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, of.n, of.m, of.k, &of.alpha, b,
        of.b_transposed ? of.k : of.n, stride(of.k, of.n), a, of.a_transposed ? of.m : of.k,
        stride(of.m, of.k), &of.beta, c, of.n, stride(of.m, of.n), of.count));
  }

 private:
  static void expect(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw tidepool::device_error(cublasGetStatusString(status), static_cast<int>(status));
    }
  }

  Device* dev_;
  stream_ref stream_;
  cublasHandle_t blas_ = nullptr;
};
#endif

}  // namespace gpt
