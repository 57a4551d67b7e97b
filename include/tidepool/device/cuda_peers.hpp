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

  /// Why the memory of `peer` cannot be had; empty when it can.
  [[nodiscard]] std::string why_not(int peer) const {
    const auto name = "device " + std::to_string(peer);
    if (peer == ordinal_) return name + " is the offloader's own";
    int count = 0;
    if (failed(cudaGetDeviceCount(&count))) return "the devices of this host cannot be counted";
    if (peer < 0 || peer >= count) {
      return "this process sees " + std::to_string(count) + (count == 1 ? " device" : " devices") +
             ", numbered from 0";
    }
    int reachable = 0;
    if (failed(cudaDeviceCanAccessPeer(&reachable, ordinal_, peer)) || reachable == 0) {
      return "device " + std::to_string(ordinal_) + " cannot reach the memory of " + name +
             " (cudaDeviceCanAccessPeer)";
    }
    return {};
  }

  /// Null where the neighbour is out of memory, and a code for any other failure.
  [[nodiscard]] cudaError_t allocate(int peer, std::size_t bytes, void*& into) {
    into = nullptr;
    if (const auto code = open(peer); code != cudaSuccess) return clean(code);
    const current guard(peer);
    if (guard.code() != cudaSuccess) return clean(guard.code());
    const auto code = cudaMalloc(&into, bytes);
    if (code != cudaSuccess) into = nullptr;
    return clean(code);
  }

  /// Nothing of the device itself may use the memory any more. What a lost context of the neighbour
  /// held is gone already.
  void deallocate(int peer, void* pointer) noexcept {
    const auto found = contexts_.find(peer);
    if (pointer == nullptr || found == contexts_.end() || !found->second.alive()) return;
    const current guard(peer);
    static_cast<void>(clean(cudaFree(pointer)));
  }

 private:
  class current {
   public:
    explicit current(int wanted) noexcept : code_(cudaGetDevice(&before_)) {
      if (code_ == cudaSuccess && before_ != wanted) {
        code_ = cudaSetDevice(wanted);
        changed_ = code_ == cudaSuccess;
      }
    }
    current(const current&) = delete;
    current& operator=(const current&) = delete;
    ~current() {
      if (changed_) static_cast<void>(cudaSetDevice(before_));
    }
    [[nodiscard]] cudaError_t code() const { return code_; }

   private:
    int before_ = 0;
    cudaError_t code_;
    bool changed_ = false;
  };

  // The device reaches the neighbour's memory over their link; without that, copies would go by way
  // of the host.
  cudaError_t open(int peer) {
    if (const auto found = contexts_.find(peer); found != contexts_.end()) {
      return found->second.alive() ? cudaSuccess : cudaErrorContextIsDestroyed;
    }
    {
      const current guard(ordinal_);
      if (guard.code() != cudaSuccess) return guard.code();
      const auto code = cudaDeviceEnablePeerAccess(peer, 0);
      if (code != cudaSuccess && code != cudaErrorPeerAccessAlreadyEnabled) return code;
      static_cast<void>(cudaGetLastError());
    }
    const current guard(peer);
    if (guard.code() != cudaSuccess) return guard.code();
    // Made here, if nobody has used the neighbour before.
    if (const auto code = cudaFree(nullptr); code != cudaSuccess) return code;
    contexts_.emplace(peer, cuda_context(peer));
    return cudaSuccess;
  }

  static cudaError_t clean(cudaError_t code) noexcept {
    if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
    return code;
  }
  static bool failed(cudaError_t code) noexcept { return clean(code) != cudaSuccess; }

  int ordinal_;
  std::unordered_map<int, cuda_context> contexts_;  // of neighbours whose memory was taken
};

}  // namespace tidepool::detail

#endif
