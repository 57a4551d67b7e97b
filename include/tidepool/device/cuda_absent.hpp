/// A stand-in for the CUDA device, where the compiler has no CUDA; its use names what is missing.
#pragma once

#if !defined(TIDEPOOL_HAS_CUDA) && (defined(TIDEPOOL_NO_CUDA) || !__has_include(<cuda_runtime_api.h>))

namespace tidepool::inline v0_3_0 {

/// Stands for the CUDA device where CUDA's headers are missing; none can be made.
class cuda_device {
 public:
  /// Does not compile, and says what is missing.
  template <class... Arguments>
  explicit cuda_device(Arguments&&...) {
    static_assert(sizeof...(Arguments) > 999,
                  "tidepool::cuda_device needs cuda_runtime_api.h: add the CUDA toolkit's include "
                  "folder (-I/usr/local/cuda/include), and leave TIDEPOOL_NO_CUDA undefined");
  }
  cuda_device(const cuda_device&) = delete;
};

}  // namespace tidepool

#endif
