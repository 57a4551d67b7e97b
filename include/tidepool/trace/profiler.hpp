/// Selective profiling: the profiler captures the steps from a to b and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "tidepool/error.hpp"

#if defined(TIDEPOOL_HAS_CUDA) || (!defined(TIDEPOOL_NO_CUDA) && __has_include(<cuda_profiler_api.h>))
#include <cuda_profiler_api.h>
#define TIDEPOOL_DETAIL_PROFILER 1
#else
#define TIDEPOOL_DETAIL_PROFILER 0
#endif

namespace tidepool::inline v0_3_0::trace {

/// Functions that start and stop a profiler. The functions throw on failure.
struct profiler_calls {
  std::function<void()> start;  ///< called before the first step of a window
  std::function<void()> stop;   ///< called after the last step of a window
};

// Two names, so that the linker cannot confuse them if translation units disagree about CUDA.
#if TIDEPOOL_DETAIL_PROFILER
inline namespace profiler_on {

/// Throws `device_error`, naming the call, if `code` is a failure.
inline void check_profiler(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw device_error("tidepool: " + std::string(call) + " failed with cudaError_t " +
                         std::to_string(static_cast<int>(code)) +
                         "; run without the capture window, or outside of another profiler",
                     static_cast<int>(code));
}

/// The CUDA profiler API, which `nsys profile -c cudaProfilerApi` and Nsight Compute follow.
[[nodiscard]] inline profiler_calls cuda_profiler() {
  return {[] { check_profiler(cudaProfilerStart(), "cudaProfilerStart"); },
          [] { check_profiler(cudaProfilerStop(), "cudaProfilerStop"); }};
}

}  // namespace profiler_on
#else
inline namespace profiler_off {

/// Returns calls that do nothing, because there is no CUDA.
[[nodiscard]] inline profiler_calls cuda_profiler() {
  return {[] {}, [] {}};
}

}  // namespace profiler_off
#endif

/// Starts the profiler before the first step of a window, and stops it after the last.
///
/// The host does not wait for the device: work of an earlier step that is still running is captured
/// as well, and work of the last step only if the device has begun it. A trainer that reads its
/// loss at the end of a step has waited. Thread safety: none.
class capture_window {
 public:
  /// Makes a window that never opens.
  capture_window() = default;

  /// Captures steps from `first_step` to `last_step`, both included, by the CUDA profiler API;
  /// without CUDA nothing happens. Throws `option_error` when the last is before the first.
  capture_window(std::uint64_t first_step, std::uint64_t last_step)
      : capture_window(first_step, last_step, cuda_profiler()) {}

  /// Like the constructor above, with calls of your own.
  capture_window(std::uint64_t first_step, std::uint64_t last_step, profiler_calls calls)
      : first_(first_step), last_(last_step), calls_(std::move(calls)) {
    if (last_step < first_step) {
      throw option_error("tidepool: the capture window ends at step " + std::to_string(last_step) +
                         ", before it begins at step " + std::to_string(first_step) +
                         "; give the earlier step first");
    }
  }

  capture_window(const capture_window&) = delete;
  capture_window& operator=(const capture_window&) = delete;

  /// Stops the profiler if it runs; ignores a failure, since the run is over anyway.
  ~capture_window() {
    try {
      stop();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }

  /// Call it before the work of each step. Throws the exceptions of the calls.
  void step_begins(std::uint64_t step) {
    const bool inside = calls_.start && step >= first_ && step <= last_;
    if (!inside) {
      stop();
    } else if (!open_) {
      calls_.start();
      open_ = true;
    }
  }

  /// Ends the capture now: call it after the last step if no other step follows.
  void stop() {
    // Closed first, so that a stop that failed is not tried again.
    if (std::exchange(open_, false) && calls_.stop) calls_.stop();
  }

  /// True while the profiler runs for this window.
  [[nodiscard]] bool open() const noexcept { return open_; }

 private:
  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
  profiler_calls calls_;
  bool open_ = false;
};

}  // namespace tidepool::trace

#undef TIDEPOOL_DETAIL_PROFILER
