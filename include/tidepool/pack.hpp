/// The kernels that pack tensors on a CUDA device, for `--pack`. Include it in a file that nvcc
/// compiles; programs that link `tidepool::compiled` with CUDA include it anywhere.
///
/// ```cpp
/// tidepool::cuda_device gpu;
/// gpu.use(tidepool::cuda_packer());     // before the offloader is made
/// ```
#pragma once

#include "tidepool/device/cuda_packing.hpp"

#if defined(__CUDACC__) && (!defined(TIDEPOOL_COMPILED_PACK) || defined(TIDEPOOL_SOURCE))
#include "tidepool/codec/pack_kernels.cuh"
#if defined(TIDEPOOL_COMPILED_PACK)
#define TIDEPOOL_DETAIL_PACK
#else
#define TIDEPOOL_DETAIL_PACK inline
#endif

namespace tidepool::inline v0_3_0 {

/// The kernels of codec/pack_kernels.cuh, for `cuda_device::use`.
[[nodiscard]] TIDEPOOL_DETAIL_PACK packer cuda_packer() {
  constexpr unsigned many = 1024;  // blocks: some for each multiprocessor of any GPU
  return {std::size_t{256} << 10, many, many, &pack_form::pack_on, &pack_form::unpack_on};
}

}  // namespace tidepool

#elif defined(TIDEPOOL_COMPILED_PACK)

namespace tidepool::inline v0_3_0 {

/// The kernels of codec/pack_kernels.cuh, compiled in `tidepool::compiled`.
[[nodiscard]] packer cuda_packer();

}  // namespace tidepool

#else
#error "tidepool: pack.hpp has kernels: include it where nvcc compiles, or link tidepool::compiled"
#endif
