/// The device of the program, and streams whose work may be told to it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <tidepool/device/cuda.hpp>
#ifdef TIDEPOOL_BENCH_CHECKED
#include <tidepool/device/checked.hpp>
#endif

#include "settings.hpp"

namespace bench {

#ifdef TIDEPOOL_BENCH_CHECKED
/// It also judges the order of accesses.
using cuda_device = tidepool::checked_device<tidepool::cuda_device>;
#else
using tidepool::cuda_device;
#endif

/// A stream for kernels and products, which say here what they touch: first what they read. With a
/// device that does not ask for it, that is no code.
class declared_stream : public cuda_device::stream_ref {
 public:
  declared_stream(cuda_device& dev, cudaStream_t stream) : stream_ref(stream), dev_(&dev) {}

  /// A kernel reads, or writes, so many elements.
  template <class T>
  void reads(const char* kernel, const T* data, index count) const {
    touches<false>(*dev_, kernel, data, static_cast<std::size_t>(count) * sizeof(T));
  }
  template <class T>
  void writes(const char* kernel, T* data, index count) const {
    touches<true>(*dev_, kernel, data, static_cast<std::size_t>(count) * sizeof(T));
  }

 private:
  template <bool Writes, class Device>
  void touches(Device& dev, const char* kernel, const void* data, std::size_t bytes) const {
    if constexpr (tidepool::order_checking_device<Device>) {
      Writes ? dev.writes(data, bytes, *this, kernel) : dev.reads(data, bytes, *this, kernel);
    }
  }

  cuda_device* dev_;
};

}  // namespace bench
