/// Kernels of an example, for any device: `body(i)` for each i below a count, on a stream.
///
/// The virtual device runs them on the host. nvcc makes kernels of the same bodies for a GPU. What
/// a kernel touches stands beside its launch; only a checked device asks (docs/checking.md).
#pragma once

#include <concepts>
#include <cstddef>
#include <tidepool/tidepool.hpp>
#include <utility>
#include <vector>

// Before the `operator()` of a body.
#if defined(__CUDACC__)
#define ON_ANY_DEVICE __host__ __device__
#else
#define ON_ANY_DEVICE
#endif

/// A kernel that reads these bytes.
inline tidepool::kernel_access reads(const void* data, std::size_t bytes) {
  return {data, bytes, false};
}
/// A kernel that writes them; one that adds to memory does both.
inline tidepool::kernel_access writes(const void* data, std::size_t bytes) {
  return {data, bytes, true};
}

/// On the virtual device, where every kernel takes a time of its own choice.
template <std::derived_from<tidepool::virtual_device> Device, class Body>
void each(Device& dev, typename Device::stream_ref stream, const char* name,
          std::vector<tidepool::kernel_access> touches, std::size_t count, const Body& body) {
  const auto run = [count, body] {
    for (std::size_t i = 0; i < count; ++i) body(i);
  };
  const double ns_for_each = 4;
  dev.launch(stream, static_cast<double>(count) * ns_for_each, run, name, std::move(touches));
}

#if defined(__CUDACC__)
template <class Body>
__global__ void each_on_gpu(std::size_t count, Body body) {
  const auto i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) body(i);
}

/// On a GPU.
template <std::derived_from<tidepool::cuda_device> Device, class Body>
void each(Device& dev, typename Device::stream_ref stream, const char* name,
          const std::vector<tidepool::kernel_access>& touches, std::size_t count,
          const Body& body) {
  constexpr unsigned threads = 256;
  const auto blocks = static_cast<unsigned>((count + threads - 1) / threads);
  each_on_gpu<<<blocks, threads, 0, stream.get()>>>(count, body);
  if (const auto code = cudaGetLastError(); code != cudaSuccess) {
    throw tidepool::device_error(cudaGetErrorString(code), static_cast<int>(code));
  }
  if constexpr (tidepool::order_checking_device<Device>) {
    for (const auto& one : touches) {
      if (one.writes) {
        dev.writes(one.data, one.bytes, stream, name);
      } else {
        dev.reads(one.data, one.bytes, stream, name);
      }
    }
  }
}
#endif

/// What the device has there once all that it was given has run.
template <class Number, class Device>
std::vector<Number> read_back(Device& dev, typename Device::stream_ref stream, const Number* from,
                              std::size_t count) {
  const auto bytes = count * sizeof(Number);
  auto* const host = static_cast<Number*>(dev.try_allocate_host(bytes));
  if (host == nullptr) throw tidepool::device_error("no host memory to read back", 0);
  dev.copy(host, from, {.width = bytes}, tidepool::copy_direction::device_to_host, stream);
  dev.synchronize();
  if constexpr (tidepool::order_checking_device<Device>) {
    dev.host_reads(host, bytes, "read back");
  }
  std::vector<Number> result(host, host + count);
  dev.deallocate_host(host);
  return result;
}
