/// Whose streams and memory torch's are on a device: the part that differs between devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <optional>

#include "tidepool/device/virtual.hpp"

namespace tidepool::inline v0_2_0 {

template <device Device>
class checked_device;

/// How libtorch works on a device; there is one for the virtual device over CPU tensors, and in
/// `torch/cuda.hpp` one for CUDA.
template <class Device>
class torch_streams;

/// Torch on the CPU, whose operators run when they are called, as one stream of the virtual device:
/// before torch touches memory the stream has run as far as it was told to wait, and no further, so
/// that a wait too few is seen in the bits.
///
/// A module's work is given a time on the virtual clock by the bytes that it saves.
template <>
class torch_streams<virtual_device> {
 public:
  using stream_ref = virtual_device::stream_ref;  ///< A stream of the device.

  /// The streams of `dev`, which must outlive this object.
  explicit torch_streams(virtual_device& dev)
      : dev_(&dev),
        own_(dev.make_stream()),
        home_(own_->ref()),
        current_(home_),
        allocator_(c10::GetAllocator(c10::kCPU)) {}

  double ns_per_byte = 0.02;  ///< of forward's work on the virtual clock; backward takes as long

  /// The device as torch calls it: the CPU.
  [[nodiscard]] c10::Device device() const { return c10::kCPU; }
  /// In whose order memory is handed out for reloads.
  [[nodiscard]] stream_ref home() const { return home_; }
  /// The stream as whose work torch's calls count.
  [[nodiscard]] stream_ref current() const { return current_; }
  /// What torch is called for from now on is work of `stream`.
  void set_current(stream_ref stream) { current_ = stream; }
  /// Whether the stream is being captured.
  [[nodiscard]] bool capturing(stream_ref stream) const { return dev_->capturing(stream); }

  /// Queues the time of work on so many bytes.
  void worked(std::size_t bytes, stream_ref stream) {
    dev_->launch(
        stream, static_cast<double>(bytes) * ns_per_byte, [] {}, "torch");
  }
  /// Runs what the stream was given so far, before torch touches memory.
  void settle(stream_ref stream) { dev_->synchronize(stream); }
  /// Does nothing: memory on the CPU knows no streams.
  void used_on(const c10::Storage& /*storage*/, stream_ref /*stream*/) const {}

  /// Null when there is none.
  [[nodiscard]] void* allocate(std::size_t bytes) const {
    try {
      return allocator_->raw_allocate(bytes);
    } catch (const c10::Error&) {
      return nullptr;
    }
  }
  /// Gives memory of `allocate` back.
  void deallocate(void* data) const { allocator_->raw_deallocate(data); }
  /// Torch on the CPU asks nobody for memory before it grows.
  static void expect_growth() {}
  /// The offloader has ended: nothing of the device is held any more, which may go before graphs
  /// do.
  void release() noexcept { own_.reset(); }

 private:
  virtual_device* dev_;
  std::optional<virtual_device::stream> own_;
  stream_ref home_;
  stream_ref current_;
  c10::Allocator* allocator_;
};

/// As those of the device that is checked.
template <class Device>
class torch_streams<checked_device<Device>> : public torch_streams<Device> {
 public:
  /// The streams of `dev`, which must outlive this object.
  explicit torch_streams(checked_device<Device>& dev) : torch_streams<Device>(dev) {}
};

}  // namespace tidepool
