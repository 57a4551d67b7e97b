/// Host memory that CUDA's copy engines reach: its kinds, the kinds that a device has, and its NUMA
/// node.
#pragma once

#if defined(TIDEPOOL_HAS_CUDA) || (!defined(TIDEPOOL_NO_CUDA) && __has_include(<cuda_runtime_api.h>))

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

#include "tidepool/device/cuda_context.hpp"
#include "tidepool/device/host_pages.hpp"
#include "tidepool/options.hpp"

namespace tidepool::inline v0_3_0::detail {

/// The host memory of one `cuda_device`.
///
/// Every function leaves the runtime's last error clean. A failed `allocate` leaves `into` null and
/// returns the runtime's code.
class cuda_host {
 public:
  explicit cuda_host(int ordinal) : ordinal_(ordinal) {}

  /// Takes host memory of the kind `how`. The device must be current.
  [[nodiscard]] cudaError_t allocate(std::size_t bytes, const host_memory& how, void*& into) {
    into = nullptr;
    switch (how.kind) {
      case host_kind::automatic:
        if (bytes >= huge_page && registered(bytes, how, into) == cudaSuccess) return cudaSuccess;
        return by_runtime(bytes, cudaHostAllocPortable, into);
      case host_kind::huge_pages:
        return registered(bytes, how, into);
      case host_kind::pinned:
        return by_runtime(bytes, cudaHostAllocPortable, into);
      case host_kind::write_combined:
        return by_runtime(bytes, cudaHostAllocPortable | cudaHostAllocWriteCombined, into);
      case host_kind::system:
        return pages_of(bytes, how, into);
      case host_kind::managed:
        return managed(bytes, into);
    }
    return cudaErrorInvalidValue;
  }

  /// Gives memory of `allocate` back. `in_context`: the context in which it was allocated still
  /// lives. Without the context the driver no longer knows the memory, and only pages of our own
  /// are given back.
  void deallocate(void* pointer, bool in_context = true) noexcept {
    if (pointer == nullptr) return;
    const auto found = owned_.find(pointer);
    if (found == owned_.end()) {
      if (in_context) static_cast<void>(cudaFreeHost(pointer));
      return;
    }
    const auto gone = std::move(found->second);
    owned_.erase(found);
    if (!in_context) return;
    if (gone.registered) static_cast<void>(cudaHostUnregister(pointer));
    if (!gone.pages) static_cast<void>(cudaFree(pointer));
  }

  /// The reason why this machine lacks a kind of host memory; empty if it has the kind.
  [[nodiscard]] std::string why_not(host_kind kind) const {
    if (kind == host_kind::system && !has(cudaDevAttrPageableMemoryAccessUsesHostPageTables)) {
      return "the GPU does not share the host's page tables, as Grace-class machines do, so copies"
             " from unregistered memory would block";
    }
    if (kind == host_kind::managed && !has(cudaDevAttrConcurrentManagedAccess)) {
      return "the GPU cannot use managed memory while the host does";
    }
    if (kind == host_kind::huge_pages && !has(cudaDevAttrHostRegisterSupported)) {
      return "the driver does not register memory that it has not allocated";
    }
    return {};
  }

  /// The NUMA node next to the device; -1 if the system does not report it.
  [[nodiscard]] int node() const {
    char id[32]{};
    if (cuda_quiet(cudaDeviceGetPCIBusId(id, sizeof id, ordinal_)) != cudaSuccess) return -1;
    return node_of_pci(id);
  }

  /// The kind of the latest memory, in words: "huge pages, registered, on NUMA node 0".
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  struct block {
    host_pages pages;  // none: managed memory
    bool registered = false;
  };

  [[nodiscard]] bool has(cudaDeviceAttr what) const {
    int value = 0;
    return cuda_quiet(cudaDeviceGetAttribute(&value, what, ordinal_)) == cudaSuccess && value != 0;
  }

  cudaError_t by_runtime(std::size_t bytes, unsigned flags, void*& into) {
    const auto code = cuda_quiet(cudaHostAlloc(&into, bytes, flags));
    if (code != cudaSuccess) {
      into = nullptr;
    } else {
      text_ = (flags & cudaHostAllocWriteCombined) != 0 ? "cudaHostAlloc, write-combined"
                                                        : "cudaHostAlloc";
    }
    return code;
  }

  cudaError_t registered(std::size_t bytes, const host_memory& how, void*& into) {
    return from_pages(bytes, how, into, [](host_pages& pages) {
      return cuda_quiet(cudaHostRegister(pages.data(), pages.bytes(), cudaHostRegisterPortable));
    });
  }
  cudaError_t pages_of(std::size_t bytes, const host_memory& how, void*& into) {
    return from_pages(bytes, how, into, nullptr);
  }

  template <class Register>
  cudaError_t from_pages(std::size_t bytes, const host_memory& how, void*& into,
                         const Register& enter) {
    constexpr bool enters = !std::is_same_v<Register, std::nullptr_t>;
    const auto wanted = how.bind ? node() : -1;
    host_pages pages(bytes, {wanted, 0});
    if (!pages) return cudaErrorMemoryAllocation;
    auto* const pointer = pages.data();
    auto text =
        std::string("huge pages") + (enters ? ", registered, " : ", unregistered, ") +
        (pages.bound() ? "on NUMA node " + std::to_string(wanted) : "not bound to a NUMA node");
    // The pages are kept before they are registered, because a failure after it would unmap
    // registered pages.
    const auto kept = owned_.emplace(pointer, block{std::move(pages), false}).first;
    if constexpr (enters) {
      if (const auto code = enter(kept->second.pages); code != cudaSuccess) {
        owned_.erase(kept);
        return code;
      }
      kept->second.registered = true;
    }
    text_ = std::move(text);
    into = pointer;
    return cudaSuccess;
  }

  cudaError_t managed(std::size_t bytes, void*& into) {
    auto code = cuda_quiet(cudaMallocManaged(&into, bytes, cudaMemAttachGlobal));
    if (code != cudaSuccess) {
      into = nullptr;
      return code;
    }
    try {
      owned_.emplace(into, block{});
    } catch (...) {
      static_cast<void>(cudaFree(std::exchange(into, nullptr)));
      throw;
    }
    code = stay_on_host(into, bytes);
    if (code != cudaSuccess) deallocate(std::exchange(into, nullptr));
    text_ = "managed, kept on the host";
    return code;
  }

  // Keeps managed memory on the host. Without this advice the pages would move to the device and
  // take its memory.
  [[nodiscard]] cudaError_t stay_on_host(void* data, std::size_t bytes) const {
#if CUDART_VERSION >= 13000
    const cudaMemLocation host{cudaMemLocationTypeHost, 0};
    const cudaMemLocation device{cudaMemLocationTypeDevice, ordinal_};
    const auto code =
        cuda_quiet(cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation, host));
    if (code != cudaSuccess) return code;
    return cuda_quiet(cudaMemAdvise(data, bytes, cudaMemAdviseSetAccessedBy, device));
#else
    const auto code =
        cuda_quiet(cudaMemAdvise(data, bytes, cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId));
    if (code != cudaSuccess) return code;
    return cuda_quiet(cudaMemAdvise(data, bytes, cudaMemAdviseSetAccessedBy, ordinal_));
#endif
  }

  int ordinal_;
  std::string text_;
  std::unordered_map<void*, block> owned_;
};

}  // namespace tidepool::detail

#endif
