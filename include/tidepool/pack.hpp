/// The kernels that pack tensors on a CUDA device, for `--pack`. Include it in a file that nvcc
/// compiles, or in any file of a program that links `tidepool::compiled` and enables CUDA.
///
/// ```cpp
/// tidepool::cuda_device gpu;
/// gpu.use(tidepool::cuda_packer());  // before the offloader is made
/// ```
#pragma once

#include "tidepool/device/cuda_packing.hpp"

#if defined(__CUDACC__) && (!defined(TIDEPOOL_COMPILED_PACK) || defined(TIDEPOOL_PACK_SOURCE))
#include <cstddef>

#include "tidepool/codec/pack_kernels.cuh"
#if defined(TIDEPOOL_PACK_SOURCE)
#define TIDEPOOL_DETAIL_PACK_INLINE
#else
#define TIDEPOOL_DETAIL_PACK_INLINE inline
#endif

namespace tidepool::inline v0_3_0 {

/// The kernels of codec/pack_kernels.cuh, for `cuda_device::use`.
[[nodiscard]] TIDEPOOL_DETAIL_PACK_INLINE packer cuda_packer() {
  constexpr double pack_rate = 2100;  // GB/s on an H200, by bench/pack.cu
  constexpr double unpack_rate = 2100;
  return {std::size_t{256} << 10, pack_rate, unpack_rate, &pack_form::pack_on,
          &pack_form::unpack_on};
}

}  // namespace tidepool

#elif defined(TIDEPOOL_COMPILED_PACK)

namespace tidepool::inline v0_3_0 {

[[nodiscard]] packer cuda_packer();

}  // namespace tidepool

#else

namespace tidepool::inline v0_3_0 {

/// Does not compile; the message names the missing part.
template <class... Arguments>
int cuda_packer(Arguments&&...) {
  static_assert(sizeof...(Arguments) > 999,
                "tidepool::cuda_packer() has kernels: include tidepool/pack.hpp in a file that nvcc"
                " compiles, or link tidepool::compiled in a project that enables CUDA");
  return 0;
}

}  // namespace tidepool

#endif
