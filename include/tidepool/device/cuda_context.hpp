/// The contexts of CUDA devices, and the handles that belong to them; the current device, and
/// errors.
#pragma once

#if defined(TIDEPOOL_HAS_CUDA) || (!defined(TIDEPOOL_NO_CUDA) && __has_include(<cuda_runtime_api.h>))

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <type_traits>

#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0::detail {

/// Returns the code; clears the runtime's error, so that the caller's next check does not find it.
inline cudaError_t cuda_quiet(cudaError_t code) noexcept {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return code;
}

/// Throws `device_error` if the code is an error of the runtime or of the driver, which have the
/// same code for the same error. `remedy` ends the message.
template <class Code>
void cuda_check(Code code, const char* call, const char* remedy = "") {
  const auto as_runtime = static_cast<cudaError_t>(code);
  if (cuda_quiet(as_runtime) == cudaSuccess) return;
  throw device_error("tidepool: " + std::string(call) + ": " + cudaGetErrorName(as_runtime) + ", " +
                         cudaGetErrorString(as_runtime) + remedy,
                     static_cast<int>(code));
}

/// Why a launch of a kernel may fail, for `cuda_check`.
inline constexpr const char* cuda_launch_remedy =
    "; the device of the stream must be current and the program compiled for its architecture";

/// Makes a device current; at the end the caller's device is current again.
class cuda_current {
 public:
  /// Throws `device_error`.
  explicit cuda_current(int device) { cuda_check(change_to(device), "cudaSetDevice"); }
  /// Puts the runtime's code in `code`.
  cuda_current(int device, cudaError_t& code) noexcept { code = change_to(device); }
  cuda_current(const cuda_current&) = delete;
  cuda_current& operator=(const cuda_current&) = delete;
  ~cuda_current() {
    if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  cudaError_t change_to(int device) noexcept {
    int now = 0;
    if (const auto code = cudaGetDevice(&now); code != cudaSuccess || now == device) return code;
    const auto code = cudaSetDevice(device);
    if (code == cudaSuccess) before_ = now;
    return code;
  }

  int before_ = -1;  // none, unless the device was changed
};

/// Finds a call of the driver, whose library is not linked; returns false if the driver has no call
/// of that name.
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
  if (cuda_quiet(code) != cudaSuccess || found != cudaDriverEntryPointSuccess) return false;
  into = reinterpret_cast<Call>(entry);
  return true;
}

/// The primary context of a device at one time. CUDA does not check handles: destroying a stream of
/// a context that is gone crashes in the driver, and freeing its memory may free another's. So
/// owners of handles ask `alive` first. A context that was made by the driver API counts as alive.
class cuda_context {
 public:
  cuda_context() = default;
  /// The context that the device has now.
  explicit cuda_context(int ordinal) noexcept : ordinal_(ordinal), id_(id_of(ordinal)) {}

  /// False after `cudaDeviceReset`, even if the device has a new context by now, and at the end of
  /// the process. A context that reports an error for good is alive.
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

  // The driver's entries, which are looked up once, because only the runtime library is linked.
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

  // The id of the device's primary context; 0 when there is none. No two contexts of a process have
  // the same id.
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
  cuda_handle(Handle handle, const cuda_context& context) : handle_(handle, destroy{context}) {}
  [[nodiscard]] Handle get() const { return handle_.get(); }

 private:
  struct destroy {
    void operator()(Handle handle) const noexcept {
      if (context.alive()) static_cast<void>(Destroy(handle));
    }
    cuda_context context;
  };
  std::unique_ptr<std::remove_pointer_t<Handle>, destroy> handle_;
};

}  // namespace tidepool::detail

#endif
