/// Which context of a device a handle belongs to, so that nobody touches handles of a lost one.
#pragma once

#if defined(TIDEPOOL_HAS_CUDA) || (!defined(TIDEPOOL_NO_CUDA) && __has_include(<cuda_runtime_api.h>))

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <utility>

namespace tidepool::inline v0_3_0::detail {

/// A call of the driver, whose library is not linked; false where it has none of that name.
template <class Call>
[[nodiscard]] bool find_driver_call(const char* name, Call& into) noexcept {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const auto code =
      cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
#else
  const auto code = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) return false;
  into = reinterpret_cast<Call>(entry);
  return true;
}

/// The primary context of a device at one time. CUDA does not check handles: to destroy a stream of
/// a context that is gone crashes in the driver, and to free its memory may free somebody else's.
/// So whoever owns such a handle asks first. A context of the driver API's own making is not looked
/// after: it counts as alive.
class cuda_context {
 public:
  cuda_context() = default;
  /// The context that the device has now.
  explicit cuda_context(int ordinal) noexcept : ordinal_(ordinal), id_(id_of(ordinal)) {}

  /// False after `cudaDeviceReset`, even where the device has a new context by now, and at the end
  /// of the process. A context that reports an error for good is alive.
  [[nodiscard]] bool alive() const noexcept { return id_ == 0 || id_of(ordinal_) == id_; }

  [[nodiscard]] explicit operator bool() const noexcept { return id_ != 0; }

 private:
  struct driver_calls {
    decltype(&cuDeviceGet) device = nullptr;
    decltype(&cuDevicePrimaryCtxGetState) state = nullptr;
    decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
    decltype(&cuDevicePrimaryCtxRelease) release = nullptr;
    decltype(&cuCtxGetId) id = nullptr;
  };

  // The runtime library is linked, the driver's is not: its entries are asked for once.
  static const driver_calls* calls() noexcept {
    static const driver_calls known = [] {
      driver_calls all;
      const bool found = find_driver_call("cuDeviceGet", all.device) &&
                         find_driver_call("cuDevicePrimaryCtxGetState", all.state) &&
                         find_driver_call("cuDevicePrimaryCtxRetain", all.retain) &&
                         find_driver_call("cuDevicePrimaryCtxRelease", all.release) &&
                         find_driver_call("cuCtxGetId", all.id);
      return found ? all : driver_calls{};
    }();
    return known.id == nullptr ? nullptr : &known;
  }

  // 0 when there is none. No two contexts of a process have one id.
  static unsigned long long id_of(int ordinal) noexcept {
    const auto* const driver = calls();
    if (driver == nullptr) return 0;
    CUdevice device = 0;
    unsigned flags = 0;
    int active = 0;
    CUcontext context = nullptr;
    if (driver->device(&device, ordinal) != CUDA_SUCCESS ||
        driver->state(device, &flags, &active) != CUDA_SUCCESS || active == 0 ||
        driver->retain(&context, device) != CUDA_SUCCESS) {
      return 0;
    }
    unsigned long long id = 0;
    const auto code = driver->id(context, &id);
    static_cast<void>(driver->release(device));
    return code == CUDA_SUCCESS ? id : 0;
  }

  int ordinal_ = 0;
  unsigned long long id_ = 0;
};

/// Owns a handle of the runtime; leaves it alone once its context is gone.
template <class Handle, auto Destroy>
class cuda_handle {
 public:
  cuda_handle(Handle handle, const cuda_context& context) : handle_(handle), context_(context) {}
  cuda_handle(cuda_handle&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), context_(other.context_) {}
  cuda_handle& operator=(cuda_handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(context_, other.context_);
    return *this;
  }
  ~cuda_handle() {
    if (handle_ != nullptr && context_.alive()) static_cast<void>(Destroy(handle_));
  }
  [[nodiscard]] Handle get() const { return handle_; }

 private:
  Handle handle_;
  cuda_context context_;
};

}  // namespace tidepool::detail

#endif
