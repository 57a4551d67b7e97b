/// Memory of other CUDA devices of the host, for copies of one device.
#pragma once

#if defined(TIDEPOOL_HAS_CUDA) || (!defined(TIDEPOOL_NO_CUDA) && __has_include(<cuda_runtime_api.h>))

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <unordered_map>

#include "tidepool/device/cuda_context.hpp"

namespace tidepool::inline v0_3_0::detail {

/// The neighbours of one `cuda_device`.
///
/// Every function leaves the caller's device current and the runtime's last error clean. Copies to
/// and from this memory are given to streams of the device itself.
class cuda_peers {
 public:
  explicit cuda_peers(int ordinal) : ordinal_(ordinal) {}

  /// The reason why the memory of `peer` cannot be had; empty if it can.
  [[nodiscard]] std::string why_not(int peer) const {
    const auto name = "device " + std::to_string(peer);
    if (peer == ordinal_) return name + " is the offloader's own";
    int count = 0;
    if (cuda_quiet(cudaGetDeviceCount(&count)) != cudaSuccess) {
      return "the devices of this host cannot be counted";
    }
    if (peer < 0 || peer >= count) {
      return "this process sees " + std::to_string(count) + (count == 1 ? " device" : " devices") +
             ", numbered from 0";
    }
    int reachable = 0;
    const auto code = cudaDeviceCanAccessPeer(&reachable, ordinal_, peer);
    if (cuda_quiet(code) != cudaSuccess || reachable == 0) {
      return "device " + std::to_string(ordinal_) + " cannot reach the memory of " + name +
             " (cudaDeviceCanAccessPeer)";
    }
    return {};
  }

  /// Takes memory of the neighbour. On a failure `into` is null, and the code is the runtime's.
  [[nodiscard]] cudaError_t allocate(int peer, std::size_t bytes, void*& into) {
    into = nullptr;
    if (const auto code = open(peer); code != cudaSuccess) return cuda_quiet(code);
    auto code = cudaSuccess;
    const cuda_current guard(peer, code);
    if (code == cudaSuccess) code = cudaMalloc(&into, bytes);
    if (code != cudaSuccess) into = nullptr;
    return cuda_quiet(code);
  }

  /// Gives memory of the neighbour back, which no work of the device itself may use any more.
  /// Memory of a lost context of the neighbour is free already.
  void deallocate(int peer, void* pointer) noexcept {
    const auto found = contexts_.find(peer);
    if (pointer == nullptr || found == contexts_.end() || !found->second.alive()) return;
    auto code = cudaSuccess;
    const cuda_current guard(peer, code);
    static_cast<void>(cuda_quiet(cudaFree(pointer)));
  }

 private:
  // Lets the device reach the neighbour's memory over the link between them. Otherwise copies would
  // go through the host.
  cudaError_t open(int peer) {
    if (const auto found = contexts_.find(peer); found != contexts_.end()) {
      return found->second.alive() ? cudaSuccess : cudaErrorContextIsDestroyed;
    }
    auto code = cudaSuccess;
    {
      const cuda_current guard(ordinal_, code);
      if (code == cudaSuccess) code = cuda_quiet(cudaDeviceEnablePeerAccess(peer, 0));
      if (code != cudaSuccess && code != cudaErrorPeerAccessAlreadyEnabled) return code;
    }
    const cuda_current guard(peer, code);
    // Makes the neighbour's context, if no call has made it before.
    if (code == cudaSuccess) code = cudaFree(nullptr);
    if (code != cudaSuccess) return code;
    contexts_.emplace(peer, cuda_context(peer));
    return cudaSuccess;
  }

  int ordinal_;
  std::unordered_map<int, cuda_context> contexts_;  // of neighbours whose memory was taken
};

}  // namespace tidepool::detail

#endif
