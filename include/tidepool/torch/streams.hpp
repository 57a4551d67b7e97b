/// The streams and the memory that torch uses on a device: the only part of the adapter that
/// differs between devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <optional>

#include "tidepool/device/virtual.hpp"

namespace tidepool::inline v0_3_0 {

template <device Device>
class checked_device;

/// The access to libtorch's streams and memory on a device. This header has it for the virtual
/// device over CPU tensors, `torch/cuda.hpp` for CUDA.
template <class Device>
class torch_streams;

namespace detail {

inline constexpr const char* torch_capture_refused =
    "its stream is being captured into a CUDA graph, which would go on using memory that goes back"
    " to torch; capture what lies between such scopes, or take the module out of"
    " --offload-modules";

}  // namespace detail

/// Torch on the CPU, as one stream of the virtual device. Torch's operators run at once when they
/// are called. Before torch touches memory, the virtual stream runs exactly as far as it was told
/// to wait, so that a missing wait causes wrong values that a test can see.
///
/// A module's work takes a time on the virtual clock, in proportion to the bytes that it saves.
template <>
class torch_streams<virtual_device> {
 public:
  using stream_ref = virtual_device::stream_ref;  ///< A stream of the device.

  /// Makes a stream of `dev`, which must outlive this object.
  explicit torch_streams(virtual_device& dev)
      : dev_(&dev),
        own_(dev.make_stream()),
        home_(own_->ref()),
        current_(home_),
        allocator_(c10::GetAllocator(c10::kCPU)) {}

  double ns_per_byte = 0.02;  ///< forward's work on the virtual clock; backward takes as long

  /// The device in torch's terms: the CPU.
  [[nodiscard]] c10::Device device() const { return c10::kCPU; }
  /// The stream in whose order memory for reloads is allocated.
  [[nodiscard]] stream_ref home() const { return home_; }
  /// The stream that torch's calls are attributed to.
  [[nodiscard]] stream_ref current() const { return current_; }
  /// Attributes torch's later calls to `stream`.
  void set_current(stream_ref stream) { current_ = stream; }
  /// True while the stream is being captured.
  [[nodiscard]] bool capturing(stream_ref stream) const { return dev_->capturing(stream); }
  /// Null if scopes and reloads may work on the stream, or the reason why not.
  [[nodiscard]] const char* why_not(stream_ref stream) const {
    return capturing(stream) ? detail::torch_capture_refused : nullptr;
  }
  /// Always true: memory on the CPU belongs to all devices.
  [[nodiscard]] static bool is_current() { return true; }
  /// A call of the adapter: it needs nothing but its lock.
  struct call {
    explicit call(const torch_streams& /*on*/) {}  ///< Does nothing.
  };

  /// Queues the time of work on `bytes`.
  void worked(std::size_t bytes, stream_ref stream) {
    dev_->launch(
        stream, static_cast<double>(bytes) * ns_per_byte, [] {}, "torch");
  }
  /// Runs the work that `stream` was given so far, before torch touches memory.
  void settle(stream_ref stream) { dev_->synchronize(stream); }
  /// Does nothing, because memory on the CPU belongs to no stream.
  void used_on(const c10::Storage& /*storage*/, stream_ref /*stream*/) const {}

  /// Allocates memory of torch's CPU allocator; null if there is none.
  [[nodiscard]] void* allocate(std::size_t bytes) const {
    try {
      return allocator_->raw_allocate(bytes);
    } catch (const c10::Error&) {
      return nullptr;
    }
  }
  /// Frees memory of `allocate`.
  void deallocate(void* data) const { allocator_->raw_deallocate(data); }
  /// Does nothing, because torch's CPU allocator has no callback before it grows.
  static void expect_growth() {}
  /// Frees the stream now, because graphs may outlive the device.
  void release() noexcept { own_.reset(); }

 private:
  virtual_device* dev_;
  std::optional<virtual_device::stream> own_;
  stream_ref home_;
  stream_ref current_;
  c10::Allocator* allocator_;
};

/// The streams of a checked device are those of the device that it checks.
template <class Device>
class torch_streams<checked_device<Device>> : public torch_streams<Device> {
 public:
  /// The streams of `dev`, which must outlive this object.
  explicit torch_streams(checked_device<Device>& dev) : torch_streams<Device>(dev) {}
};

}  // namespace tidepool
