/// Memory of a CUDA device that other processes map, and memory of theirs that the device maps.
#pragma once

#if defined(TIDEPOOL_HAS_CUDA) || (!defined(TIDEPOOL_NO_CUDA) && __has_include(<cuda_runtime_api.h>))

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "tidepool/device/cuda_context.hpp"
#include "tidepool/device/cuda_packing.hpp"
#include "tidepool/device/device.hpp"
#include "tidepool/error.hpp"

namespace tidepool::inline v0_3_0::detail {

/// Exports and imports physical memory of the driver for a `cuda_device`, as descriptors.
///
/// The driver counts references. So imported memory stays when its exporter ends or gives it back,
/// and exported memory is free once the last importer has gone. No context is made on the other
/// device. Every function leaves the caller's device current and the runtime's last error clean.
class cuda_sharing : public cuda_packing {
 public:
  /// Shares memory of the device `ordinal`.
  explicit cuda_sharing(int ordinal) : cuda_packing(ordinal), device_(ordinal) {}

  /// Takes whole pages of this device, as many as fit `bytes`; empty if the device has no such
  /// memory.
  [[nodiscard]] std::optional<exported_memory> try_export(std::size_t bytes) {
    const in_use guard(device_);
    const auto& driver = calls();
    const auto prop = properties();
    std::size_t page = 0;
    cuda_check(driver.granularity(&page, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               "cuMemGetAllocationGranularity");
    exported_memory made{-1, 0, bytes / page * page};
    if (made.bytes == 0) return made;
    CUmemGenericAllocationHandle memory = 0;
    const auto code = driver.create(&memory, made.bytes, &prop, 0);
    if (code == CUDA_ERROR_OUT_OF_MEMORY) return std::nullopt;
    cuda_check(code, "cuMemCreate");
    const auto shared = driver.share(&made.descriptor, memory, by_descriptor, 0);
    if (shared != CUDA_SUCCESS) static_cast<void>(driver.release(memory));
    cuda_check(shared, "cuMemExportToShareableHandle");
    made.id = memory;
    return made;
  }
  /// Gives exported memory back. Processes that have mapped it keep it.
  void drop_export(std::uint64_t id) noexcept {
    if (id != 0) static_cast<void>(calls_.release(id));
  }

  /// Maps memory of another device, or this one, for copies of this device.
  [[nodiscard]] void* import_memory(int descriptor, std::size_t bytes) {
    const in_use guard(device_);
    const auto& driver = calls();
    imports_.reserve(imports_.size() + 1);
    CUmemGenericAllocationHandle memory = 0;
    auto* const number = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
        static_cast<std::uintptr_t>(descriptor));
    cuda_check(driver.import(&memory, number, by_descriptor), "cuMemImportFromShareableHandle");
    CUdeviceptr at = 0;
    auto code = driver.reserve(&at, bytes, 0, 0, 0);
    const bool reserved = code == CUDA_SUCCESS;
    if (reserved) code = driver.map(at, bytes, 0, memory, 0);
    const bool mapped = reserved && code == CUDA_SUCCESS;
    CUmemAccessDesc reads_and_writes{};
    reads_and_writes.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    reads_and_writes.location.id = device_;
    reads_and_writes.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (mapped) code = driver.allow(at, bytes, &reads_and_writes, 1);
    static_cast<void>(driver.release(memory));  // the mapping keeps it
    if (code != CUDA_SUCCESS) {
      if (mapped) static_cast<void>(driver.unmap(at, bytes));
      if (reserved) static_cast<void>(driver.free(at, bytes));
      cuda_check(code, !reserved ? "cuMemAddressReserve" : !mapped ? "cuMemMap" : "cuMemSetAccess");
    }
    auto* const pointer = reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
    imports_.emplace(pointer, imported{bytes, cuda_context(device_)});
    return pointer;
  }
  /// Unmaps imported memory, which no copy may use any more. The mapping of a lost context is gone
  /// already. A device that reports an error for good keeps the mapping until the process ends.
  void drop_import(void* pointer) noexcept {
    const auto found = imports_.find(pointer);
    if (found == imports_.end()) return;
    const auto [bytes, context] = found->second;
    imports_.erase(found);
    if (!context.alive()) return;  // a call of the device would make a new context
    const auto at = reinterpret_cast<CUdeviceptr>(pointer);
    std::optional<in_use> guard;
    try {
      guard.emplace(device_);
    } catch (const device_error&) {  // a device that fails copies nothing
    }
    if (calls_.unmap(at, bytes) == CUDA_SUCCESS) static_cast<void>(calls_.free(at, bytes));
    static_cast<void>(cudaGetLastError());
  }

 private:
  static constexpr auto by_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

  struct imported {
    std::size_t bytes;
    cuda_context context;
  };

  struct driver_calls {
    decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
    decltype(&cuMemCreate) create = nullptr;
    decltype(&cuMemRelease) release = nullptr;
    decltype(&cuMemExportToShareableHandle) share = nullptr;
    decltype(&cuMemImportFromShareableHandle) import = nullptr;
    decltype(&cuMemAddressReserve) reserve = nullptr;
    decltype(&cuMemAddressFree) free = nullptr;
    decltype(&cuMemMap) map = nullptr;
    decltype(&cuMemUnmap) unmap = nullptr;
    decltype(&cuMemSetAccess) allow = nullptr;
  };

  /// Makes the device current, with its context, as the driver's calls need it.
  class in_use {
   public:
    explicit in_use(int device) : current_(device) { cuda_check(cudaFree(nullptr), "cudaFree"); }

   private:
    cuda_current current_;
  };

  [[nodiscard]] CUmemAllocationProp properties() const {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device_;
    wanted.requestedHandleTypes = by_descriptor;
    return wanted;
  }

  const driver_calls& calls() {
    if (calls_.allow != nullptr) return calls_;
    const bool found = find_driver_call("cuMemGetAllocationGranularity", calls_.granularity) &&
                       find_driver_call("cuMemCreate", calls_.create) &&
                       find_driver_call("cuMemRelease", calls_.release) &&
                       find_driver_call("cuMemExportToShareableHandle", calls_.share) &&
                       find_driver_call("cuMemImportFromShareableHandle", calls_.import) &&
                       find_driver_call("cuMemAddressReserve", calls_.reserve) &&
                       find_driver_call("cuMemAddressFree", calls_.free) &&
                       find_driver_call("cuMemMap", calls_.map) &&
                       find_driver_call("cuMemUnmap", calls_.unmap) &&
                       find_driver_call("cuMemSetAccess", calls_.allow);
    if (!found) cuda_check(CUDA_ERROR_NOT_SUPPORTED, "memory of other processes");
    return calls_;
  }

  int device_;
  driver_calls calls_;
  std::unordered_map<void*, imported> imports_;
};

}  // namespace tidepool::detail

#endif
