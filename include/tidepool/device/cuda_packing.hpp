/// Packing on a CUDA device, by kernels that another header brings.
#pragma once

#if defined(TIDEPOOL_HAS_CUDA) || (!defined(TIDEPOOL_NO_CUDA) && __has_include(<cuda_runtime_api.h>))

#include <cuda_runtime_api.h>

#include <cstddef>

#include "tidepool/device/cuda_context.hpp"

namespace tidepool::inline v0_3_0 {

/// The kernels with which a `cuda_device` packs; `cuda_packer()` of pack.hpp makes it. Both
/// functions queue work on a stream of the current device, and throw `device_error`.
struct packer {
  std::size_t from = 0;    ///< the least bytes of a tensor that is packed
  double pack_rate = 0;    ///< tensor bytes that `pack` reads, in GB/s; 0: unknown
  double unpack_rate = 0;  ///< tensor bytes that `unpack` writes, in GB/s; 0: unknown
  /// Packs a tensor.
  void (*pack)(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
               cudaStream_t on) = nullptr;
  /// Unpacks a tensor.
  void (*unpack)(std::byte* tensor, const std::byte* packed, const std::byte* spill,
                 std::size_t bytes, cudaStream_t on) = nullptr;
};

namespace detail {

/// The part of `cuda_device` that packs: see `packing_device`.
class cuda_packing {
 public:
  /// Packs with these kernels from now on. Offloaders see it that are made later. Does not block.
  void use(const packer& kernels) { with_ = kernels; }
  /// 0 until `use` was called.
  [[nodiscard]] std::size_t packs_from() const { return with_.from; }
  [[nodiscard]] double pack_rate() const { return with_.pack_rate; }      ///< See `packer`.
  [[nodiscard]] double unpack_rate() const { return with_.unpack_rate; }  ///< See `packer`.
  /// Queues the packing of a tensor on a stream. Throws `device_error`.
  template <class Stream>
  void pack(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
            const Stream& on) {
    const cuda_current guard(device_);
    with_.pack(packed, spill, tensor, bytes, on.get());
  }
  /// Queues the unpacking of a tensor on a stream. Throws `device_error`.
  template <class Stream>
  void unpack(std::byte* tensor, const std::byte* packed, const std::byte* spill, std::size_t bytes,
              const Stream& on) {
    const cuda_current guard(device_);
    with_.unpack(tensor, packed, spill, bytes, on.get());
  }

 protected:
  explicit cuda_packing(int device) : device_(device) {}

 private:
  int device_;  // of the runtime
  packer with_;
};

}  // namespace detail
}  // namespace tidepool

#endif
