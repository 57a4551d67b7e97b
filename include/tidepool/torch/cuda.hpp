/// Torch on a GPU: its current streams, its caching allocator, and the callback before the
/// allocator grows.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <memory>

#include "tidepool/device/cuda.hpp"
#include "tidepool/device/cuda_context.hpp"
#include "tidepool/torch/lock.hpp"
#include "tidepool/torch/streams.hpp"

namespace tidepool::inline v0_3_0 {

namespace detail {

// Called after a cache miss and before growth, with the allocator's lock held.
struct torch_growth_callback final : c10::FreeMemoryCallback {
  bool Execute() override { return memory_lender::give_back_all(); }
};

}  // namespace detail

/// The streams of one GPU as torch sees them. Memory for reloads belongs to the stream that was
/// torch's current one when the object was made. Thread safety: as torch.
template <>
class torch_streams<cuda_device> {
 public:
  using stream_ref = cuda_device::stream_ref;  ///< A stream of the device.

  /// Uses the streams of `dev`, which must outlive this object.
  explicit torch_streams(cuda_device& dev)
      : dev_(&dev), ordinal_(static_cast<c10::DeviceIndex>(dev.ordinal())), home_(current()) {}

  /// The device in torch's terms.
  [[nodiscard]] c10::Device device() const { return {c10::kCUDA, ordinal_}; }
  /// The stream in whose order memory for reloads is allocated.
  [[nodiscard]] stream_ref home() const { return home_; }
  /// The stream that torch currently uses on this thread.
  [[nodiscard]] stream_ref current() const {
    return c10::cuda::getCurrentCUDAStream(ordinal_).stream();
  }
  /// True while the stream is being captured.
  [[nodiscard]] bool capturing(stream_ref stream) const { return dev_->capturing(stream); }
  /// Null if scopes and reloads may work on the stream, or the reason why not.
  [[nodiscard]] const char* why_not(stream_ref stream) const {
    return capturing(stream) ? detail::torch_capture_refused : nullptr;
  }
  /// True if the GPU is the thread's current one.
  [[nodiscard]] bool is_current() const noexcept {
    int now = -1;
    return cudaGetDevice(&now) == cudaSuccess && now == ordinal_;
  }
  /// A call of the adapter: the GPU is the thread's current one meanwhile, because the handle of a
  /// default stream, null, stands for the current GPU's.
  class call {
   public:
    /// If the runtime refuses, the first use of the GPU says why.
    explicit call(const torch_streams& on) noexcept : guard_(on.ordinal_, code_) {}

   private:
    cudaError_t code_{};
    detail::cuda_current guard_;
  };

  /// Does nothing: kernels take their own time.
  void worked(std::size_t /*bytes*/, stream_ref /*stream*/) {}
  void settle(stream_ref /*stream*/) {}  ///< Does nothing: torch's work is in stream order.
  /// Tells torch's allocator that `stream` used the storage. The allocator reuses memory in the
  /// order of the stream that allocated it, so a use by another stream must be recorded. Does
  /// nothing if both are the same stream.
  void used_on(const c10::Storage& storage, stream_ref stream) const {
    c10::cuda::CUDACachingAllocator::recordStream(
        storage.data_ptr(), c10::cuda::getStreamFromExternal(stream.get(), ordinal_));
  }

  /// Allocates memory of torch's caching allocator, in the order of `home`; null if there is none.
  [[nodiscard]] void* allocate(std::size_t bytes) const {
    const c10::cuda::CUDAGuard guard(ordinal_);
    try {
      return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, home_.get());
    } catch (const c10::OutOfMemoryError&) {
      return nullptr;
    }
  }
  /// Frees memory of `allocate`.
  void deallocate(void* data) const { c10::cuda::CUDACachingAllocator::raw_delete(data); }

  /// From now on, gives waiting memory back before torch's allocator grows. Registers once in a
  /// process.
  static void expect_growth() {
    auto* const registry = c10::FreeCudaMemoryCallbacksRegistry();
    if (registry->Has("tidepool")) return;
    registry->Register("tidepool",
                       [] { return std::make_unique<detail::torch_growth_callback>(); });
  }
  /// Does nothing, because the object owns no stream.
  static void release() {}

 private:
  cuda_device* dev_;
  c10::DeviceIndex ordinal_;
  stream_ref home_;
};

}  // namespace tidepool
