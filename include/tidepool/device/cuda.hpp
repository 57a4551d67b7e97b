/// The CUDA runtime as a device. Copy engines move the bytes; no kernel of ours runs.
#pragma once

#if defined(TIDEPOOL_HAS_CUDA) || (!defined(TIDEPOOL_NO_CUDA) && __has_include(<cuda_runtime_api.h>))

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tidepool/core/text.hpp"
#include "tidepool/device/cuda_context.hpp"
#include "tidepool/device/cuda_host.hpp"
#include "tidepool/device/cuda_peers.hpp"
#include "tidepool/device/cuda_sharing.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/error.hpp"

#if __has_include(<cuda/stream_ref>)
#include <cuda/stream_ref>
#define TIDEPOOL_DETAIL_STREAM_REF 1
#endif

namespace tidepool::inline v0_3_0 {

/// A CUDA device. It has no global state: calls that need their device to be current restore the
/// caller's device afterwards.
///
/// An offloader takes any `cudaStream_t` or `cuda::stream_ref` of this device, also the default
/// ones (the per-thread default stream only in one thread, because its handle means another stream
/// in each thread). The device's own streams are non-blocking, so they never wait for the legacy
/// default stream. A stream given to an offloader must live until the last call of the offloader
/// and its handles, because a recorded step, a capture and the work after a launch record events on
/// streams that no handle names. A new stream at the address of an old one is another stream
/// (`cudaStreamGetId`).
///
/// Every failed call throws `device_error` with the `cudaError_t`, the call and the device. Thread
/// safety: one thread at a time; several objects may stand for one device.
class cuda_device : public detail::cuda_sharing {
 public:
  static constexpr std::string_view name = "cuda";  ///< for messages and pictures

  /// A copyable name of a stream. The name owns no stream.
  class stream_ref {
   public:
    constexpr stream_ref() = default;
    /// Any stream of the runtime API; null is the legacy default stream.
    constexpr stream_ref(cudaStream_t handle)
        : handle_(handle) {}  // NOLINT(google-explicit-constructor)
#if defined(TIDEPOOL_DETAIL_STREAM_REF)
    /// Any stream of libcu++.
    stream_ref(::cuda::stream_ref handle)
        : handle_(handle.get()) {}  // NOLINT(google-explicit-constructor)
#endif
    /// The handle of the runtime API.
    [[nodiscard]] cudaStream_t get() const { return handle_; }
    /// CUDA's own id of the stream: no other stream of the process ever has it. Throws
    /// `device_error`.
    [[nodiscard]] std::uint64_t key() const {
      unsigned long long id = 0;
      check(cudaStreamGetId(handle_, &id), "cudaStreamGetId");
      return id;
    }
    /// A key for a stream that is first met in a capture, because a question for its id would end
    /// the capture.
    [[nodiscard]] std::uint64_t key_in_capture() const {
      return std::uint64_t{1} << 63 | reinterpret_cast<std::uintptr_t>(handle_);
    }
    friend bool operator==(const stream_ref&, const stream_ref&) = default;

   private:
    cudaStream_t handle_ = nullptr;
  };

  /// Owns a non-blocking stream; destroys it at the end.
  class stream : detail::cuda_handle<cudaStream_t, cudaStreamDestroy> {
   public:
    /// The stream's name, for an offloader.
    [[nodiscard]] stream_ref ref() const { return get(); }
    using cuda_handle::get;

   private:
    friend class cuda_device;
    using cuda_handle::cuda_handle;
  };

  /// Owns an event; destroys it at the end.
  class event : detail::cuda_handle<cudaEvent_t, cudaEventDestroy> {
   public:
    using cuda_handle::get;

   private:
    friend class cuda_device;
    using cuda_handle::cuda_handle;
  };

  /// An instantiated CUDA graph.
  class graph : detail::cuda_handle<cudaGraphExec_t, cudaGraphExecDestroy> {
   public:
    using cuda_handle::get;

   private:
    friend class cuda_device;
    using cuda_handle::cuda_handle;
  };

  /// Throws `device_error` when there is no such device.
  explicit cuda_device(int ordinal = 0)
      : cuda_sharing(ordinal), ordinal_(ordinal), host_(ordinal), peers_(ordinal) {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (ordinal < 0 || ordinal >= count) {
      throw device_error("tidepool: cuda_device: there is no device " + std::to_string(ordinal) +
                             "; " + std::to_string(count) + " were found",
                         static_cast<int>(cudaErrorInvalidDevice));
    }
  }

  /// The number of devices that the runtime finds; 0 without a driver. Never throws.
  [[nodiscard]] static int count() noexcept {
    int found = 0;
    return detail::cuda_quiet(cudaGetDeviceCount(&found)) == cudaSuccess ? found : 0;
  }

  /// The number of the device for `cudaSetDevice`.
  [[nodiscard]] int ordinal() const { return ordinal_; }

  /// Makes a non-blocking stream of this device.
  [[nodiscard]] stream make_stream() {
    const detail::cuda_current guard(ordinal_);
    cudaStream_t handle = nullptr;
    check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return {handle, context()};
  }
  /// Makes an event; only an event with `timing` can serve `elapsed_us`. Throws `device_error`.
  [[nodiscard]] event make_event(bool timing = false) {
    const detail::cuda_current guard(ordinal_);
    cudaEvent_t handle = nullptr;
    check(cudaEventCreateWithFlags(&handle, timing ? cudaEventDefault : cudaEventDisableTiming),
          "cudaEventCreateWithFlags");
    return {handle, context()};
  }
  /// Makes the event stand for all work that `on` was given so far. Does not block the host.
  void record(event& target, stream_ref on) {
    check(cudaEventRecord(target.get(), on.get()), "cudaEventRecord");
  }
  /// Makes `waiter` wait for the event's latest record. Does not block the host.
  void wait(stream_ref waiter, const event& until) {
    check(cudaStreamWaitEvent(waiter.get(), until.get(), 0), "cudaStreamWaitEvent");
  }
  /// Blocks the host until the stream is idle.
  void synchronize(stream_ref which) {
    require_context();
    check(cudaStreamSynchronize(which.get()), "cudaStreamSynchronize");
  }
  /// Blocks the host until this device is idle.
  void synchronize() {
    require_context();
    const detail::cuda_current guard(ordinal_);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  /// Microseconds between two events with timing that have passed.
  [[nodiscard]] double elapsed_us(const event& from, const event& to) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, from.get(), to.get()), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1000;
  }

  /// True if all work before the event's latest record is over. Does not block the host.
  [[nodiscard]] bool passed(const event& which) const {
    const auto code = cudaEventQuery(which.get());
    if (code == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // "not ready" is an answer, not an error
      return false;
    }
    check(code, "cudaEventQuery");
    return true;
  }

  /// Queues a copy between device and host memory, or a neighbour's, on a stream of this device;
  /// `shape` has rows and pitches in bytes. Does not block the host if the host memory is pinned.
  void copy(void* target, const void* source, const copy_shape& shape, copy_direction direction,
            stream_ref on) {
    const auto kind = direction == copy_direction::device_to_host   ? cudaMemcpyDeviceToHost
                      : direction == copy_direction::host_to_device ? cudaMemcpyHostToDevice
                                                                    : cudaMemcpyDefault;
    if (shape.rows == 1) {
      check(cudaMemcpyAsync(target, source, shape.width, kind, on.get()), "cudaMemcpyAsync");
    } else {
      check(cudaMemcpy2DAsync(target, shape.target_pitch, source, shape.source_pitch, shape.width,
                              shape.rows, kind, on.get()),
            "cudaMemcpy2DAsync");
    }
  }

  /// Queues a fill with one byte on a stream. Does not block the host.
  void fill_bytes(void* pointer, unsigned char byte, std::size_t bytes, stream_ref on) {
    check(cudaMemsetAsync(pointer, byte, bytes, on.get()), "cudaMemsetAsync");
  }

#if CUDART_VERSION >= 13000
  /// Makes many small copies in one call. Returns false if CUDA cannot do so: under stream capture,
  /// on the legacy default stream, and for a neighbour's memory.
  [[nodiscard]] bool copy_batch(std::span<const copy_item> items, copy_direction direction,
                                stream_ref on) {
    const bool host =
        direction == copy_direction::device_to_host || direction == copy_direction::host_to_device;
    if (!host || on.get() == nullptr || capturing(on)) return false;
    batch_targets_.clear();
    batch_sources_.clear();
    batch_bytes_.clear();
    for (const auto& item : items) {
      batch_targets_.push_back(item.target);
      batch_sources_.push_back(item.source);
      batch_bytes_.push_back(item.bytes);
    }
    cudaMemcpyAttributes how{};
    how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    check(cudaMemcpyBatchAsync(batch_targets_.data(), batch_sources_.data(), batch_bytes_.data(),
                               items.size(), &how, &first, 1, on.get()),
          "cudaMemcpyBatchAsync");
    return true;
  }
#endif

  /// Begins a capture in the thread's own mode, so that other threads may go on as usual.
  void begin_capture(stream_ref on) {
    check(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
  }
  /// True while the stream is being captured.
  [[nodiscard]] bool capturing(stream_ref which) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(which.get(), &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }
  /// Ends the capture, even when it fails, and makes a graph that is ready to launch.
  [[nodiscard]] graph end_capture(stream_ref on) {
    cudaGraph_t content = nullptr;
    check(cudaStreamEndCapture(on.get(), &content), "cudaStreamEndCapture");
    cudaGraphExec_t ready = nullptr;
    const auto code = cudaGraphInstantiate(&ready, content, 0);
    static_cast<void>(cudaGraphDestroy(content));
    check(code, "cudaGraphInstantiate");
    return {ready, context()};
  }
  /// Launches a graph on a stream. Does not block the host.
  void replay(graph& which, stream_ref on) {
    check(cudaGraphLaunch(which.get(), on.get()), "cudaGraphLaunch");
  }

  /// Takes device memory; null when none is left. Throws `device_error` on any other failure.
  [[nodiscard]] void* try_allocate(std::size_t bytes) {
    const detail::cuda_current guard(ordinal_);
    void* pointer = nullptr;
    const auto code = cudaMalloc(&pointer, bytes);
    static_cast<void>(context());
    return or_null(code, pointer, "cudaMalloc");
  }
  /// Takes host memory that the copy engines of any device reach. By default large blocks are huge
  /// pages on this device's NUMA node, which many threads touch before they are registered: this is
  /// several times faster than `cudaHostAlloc`. Small blocks, and machines that do not allow huge
  /// pages, use `cudaHostAlloc`.
  [[nodiscard]] void* try_allocate_host(std::size_t bytes, const host_memory& how = {}) {
    const detail::cuda_current guard(ordinal_);
    void* pointer = nullptr;
    const auto code = host_.allocate(bytes, how, pointer);
    static_cast<void>(context());
    if (code != cudaErrorMemoryAllocation) check(code, "host memory");
    return pointer;
  }
  /// The reason why this machine lacks a kind of host memory; empty if it has the kind.
  [[nodiscard]] std::string why_not(host_kind kind) const { return host_.why_not(kind); }
  /// True once the context in which this device was first used was torn down.
  [[nodiscard]] bool lost() const noexcept { return !context_.alive(); }
  /// The kind of the last host memory, in words.
  [[nodiscard]] const std::string& host_memory_text() const { return host_.text(); }
  /// Like `try_allocate`, for a trainer's own memory; throws `device_error` when there is none.
  [[nodiscard]] void* allocate(std::size_t bytes) {
    if (auto* pointer = try_allocate(bytes)) return pointer;
    throw device_error("tidepool: cudaMalloc of " + detail::text::size_text(bytes) + " on device " +
                           std::to_string(ordinal_) + ": out of memory, " +
                           detail::text::size_text(memory().free) + " are free",
                       static_cast<int>(cudaErrorMemoryAllocation));
  }
  /// Waits for the device and frees the memory. The memory of a lost context is free already.
  void deallocate(void* pointer) noexcept {
    if (pointer != nullptr && context_.alive()) static_cast<void>(cudaFree(pointer));
  }
  /// Gives host memory of `try_allocate_host` back.
  void deallocate_host(void* pointer) noexcept { host_.deallocate(pointer, context_.alive()); }
  /// The reason why memory of the device `peer` cannot be had; empty if it can.
  [[nodiscard]] std::string why_no_peer(int peer) const { return peers_.why_not(peer); }
  /// Takes memory of the device `peer` and lets this device reach it; null when `peer` has none
  /// left. Throws `device_error` on any other failure.
  [[nodiscard]] void* try_allocate_peer(int peer, std::size_t bytes) {
    void* pointer = nullptr;
    const auto code = peers_.allocate(peer, bytes, pointer);
    static_cast<void>(context());
    return or_null(code, pointer, "cudaMalloc of a neighbour's memory");
  }
  /// Gives memory of `try_allocate_peer` back. Waits for this device first, because `peer` does not
  /// know of its copies.
  void deallocate_peer(int peer, void* pointer) noexcept {
    try {
      synchronize();
    } catch (const device_error&) {  // a device that is gone copies nothing
    }
    peers_.deallocate(peer, pointer);
  }
  /// The NUMA node next to this device; -1 if the system does not report it.
  [[nodiscard]] int node() const { return host_.node(); }
  /// Memory by `cudaMemGetInfo`, which counts other processes, too.
  [[nodiscard]] memory_info memory() const {
    const detail::cuda_current guard(ordinal_);
    memory_info info;
    check(cudaMemGetInfo(&info.free, &info.total), "cudaMemGetInfo");
    return info;
  }

 private:
  // The context; it is noted once a call has made it.
  [[nodiscard]] const detail::cuda_context& context() {
    if (!context_) context_ = detail::cuda_context(ordinal_);
    return context_;
  }
  void require_context() const {
    if (context_.alive()) return;
    throw device_error(
        "tidepool: the context of device " + std::to_string(ordinal_) +
            " was torn down (cudaDeviceReset?) under a live cuda_device; destroy every"
            " offloader before that",
        static_cast<int>(cudaErrorContextIsDestroyed));
  }

  static void check(cudaError_t code, const char* call) { detail::cuda_check(code, call); }
  static void* or_null(cudaError_t code, void* pointer, const char* call) {
    if (code != cudaErrorMemoryAllocation) check(code, call);
    return detail::cuda_quiet(code) == cudaSuccess ? pointer : nullptr;
  }

  int ordinal_;
  detail::cuda_context context_;
  std::vector<void*> batch_targets_;
  std::vector<const void*> batch_sources_;
  std::vector<std::size_t> batch_bytes_;
  detail::cuda_host host_;
  detail::cuda_peers peers_;
};

static_assert(capturing_device<cuda_device> && filling_device<cuda_device> &&
              peer_device<cuda_device> && lending_device<cuda_device> &&
              packing_device<cuda_device>);

}  // namespace tidepool

#else
#include "tidepool/device/cuda_absent.hpp"
#endif
