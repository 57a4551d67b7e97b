/// The streams and the memory that torch uses on a device: the part that differs between devices.
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

/// The way libtorch works on a device: here for the virtual device over CPU tensors, and in
/// `torch/cuda.hpp` for CUDA.
template <class Device>
class torch_streams;

/// Torch on the CPU as one stream of the virtual device. Torch's operators run when they are
/// called: before torch touches memory, the stream has run as far as it was told to wait and no
/// further, so that a missing wait shows in the bits.
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

  double ns_per_byte = 0.02;  ///< of forward's work on the virtual clock; backward takes as long

  /// The device as torch calls it: the CPU.
  [[nodiscard]] c10::Device device() const { return c10::kCPU; }
  /// The stream in whose order memory is handed out for reloads.
  [[nodiscard]] stream_ref home() const { return home_; }
  /// The stream to which torch's calls count.
  [[nodiscard]] stream_ref current() const { return current_; }
  /// Makes torch's later calls work of `stream`.
  void set_current(stream_ref stream) { current_ = stream; }
  /// True while the stream is being captured.
  [[nodiscard]] bool capturing(stream_ref stream) const { return dev_->capturing(stream); }

  /// Queues the time of work on `bytes`.
  void worked(std::size_t bytes, stream_ref stream) {
    dev_->launch(
        stream, static_cast<double>(bytes) * ns_per_byte, [] {}, "torch");
  }
  /// Runs the work that `stream` was given so far, before torch touches memory.
  void settle(stream_ref stream) { dev_->synchronize(stream); }
  /// Does nothing: memory on the CPU knows no streams.
  void used_on(const c10::Storage& /*storage*/, stream_ref /*stream*/) const {}

  /// Memory of torch's CPU allocator; null when there is none.
  [[nodiscard]] void* allocate(std::size_t bytes) const {
    try {
      return allocator_->raw_allocate(bytes);
    } catch (const c10::Error&) {
      return nullptr;
    }
  }
  /// Gives memory of `allocate` back.
  void deallocate(void* data) const { allocator_->raw_deallocate(data); }
  /// Does nothing: torch on the CPU asks nobody for memory before it grows.
  static void expect_growth() {}
  /// Gives the stream back, because graphs may outlive the device.
  void release() noexcept { own_.reset(); }

 private:
  virtual_device* dev_;
  std::optional<virtual_device::stream> own_;
  stream_ref home_;
  stream_ref current_;
  c10::Allocator* allocator_;
};

/// Like the streams of the device that is checked.
template <class Device>
class torch_streams<checked_device<Device>> : public torch_streams<Device> {
 public:
  /// The streams of `dev`, which must outlive this object.
  explicit torch_streams(checked_device<Device>& dev) : torch_streams<Device>(dev) {}
};

}  // namespace tidepool
