/// Logs when kernels ran in a program that knows nothing of it: a library for CUDA to load where
/// `CUDA_INJECTION64_PATH` names it. `bench/nccl_in_training.sh` does that.
///
/// Each process writes `$TIDEPOOL_KERNEL_LOG.RANK`, a line for each kernel with
/// `$TIDEPOOL_KERNEL_LOG_NAMES` in its name ("nccl" unless set): µs since the first one began, µs
/// that it took, stream, name. In the order in which CUPTI hands them out, not that of time.
///
/// Source: the callbacks and the injection of the CUPTI documentation, "CUPTI Activity API".
#include <cupti.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>

namespace {

#if CUPTI_API_VERSION >= 130000
using kernel_record = CUpti_ActivityKernel10;
#else
using kernel_record = CUpti_ActivityKernel9;
#endif

constexpr std::size_t buffer_bytes = std::size_t{4} << 20;
constexpr std::align_val_t buffer_alignment{8};

// CUPTI's callbacks are given nothing of ours: what they need is global, here alone.
std::FILE* file = nullptr;
std::string wanted;
std::uint64_t first_ns = 0;

const char* from_environment(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

// As the launchers number processes.
std::string rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"}) {
    if (const char* const value = std::getenv(name)) return value;
  }
  return "0";
}

bool good(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return true;
  const char* text = "";
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "kernel_log: %s: %s\n", call, text);
  return false;
}

void log(const kernel_record& kernel) {
  const std::string_view name = kernel.name == nullptr ? "" : kernel.name;
  if (file == nullptr) return;  // what CUPTI hands out later still
  if (name.find(wanted) == std::string_view::npos) return;
  if (first_ns == 0) first_ns = kernel.start;
  std::fprintf(file, "%.3f %.3f %u %.*s\n",
               1e-3 * (static_cast<double>(kernel.start) - static_cast<double>(first_ns)),
               1e-3 * static_cast<double>(kernel.end - kernel.start), kernel.streamId,
               static_cast<int>(name.size()), name.data());
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer =
      static_cast<std::uint8_t*>(::operator new(buffer_bytes, buffer_alignment, std::nothrow));
  *size = *buffer == nullptr ? 0 : buffer_bytes;
  *most_records = 0;
}

// CUPTI calls it from one thread at a time.
void CUPTIAPI take_buffer(CUcontext /*context*/, std::uint32_t /*stream*/, std::uint8_t* buffer,
                          std::size_t /*size*/, std::size_t filled) {
  CUpti_Activity* record = nullptr;
  while (filled > 0 && cuptiActivityGetNextRecord(buffer, filled, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      log(*reinterpret_cast<const kernel_record*>(record));
    }
  }
  ::operator delete(buffer, buffer_alignment);
}

void finish() {
  good(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  std::size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == CUPTI_SUCCESS && dropped > 0) {
    std::fprintf(stderr, "kernel_log: %zu kernels are missing in the log\n", dropped);
  }
  std::fclose(file);
  file = nullptr;
}

}  // namespace

/// What CUDA calls once, before the program's first call of it. Returns 1 where all is well.
extern "C" int InitializeInjection() {  // NOLINT(readability-identifier-naming): CUDA's name
  const char* const base = from_environment("TIDEPOOL_KERNEL_LOG", nullptr);
  if (base == nullptr) {
    std::fprintf(stderr, "kernel_log: set TIDEPOOL_KERNEL_LOG to the base of the files' names\n");
    return 0;
  }
  wanted = from_environment("TIDEPOOL_KERNEL_LOG_NAMES", "nccl");
  const std::string name = std::string(base) + "." + rank();
  file = std::fopen(name.c_str(), "w");
  if (file == nullptr) {
    std::perror(("kernel_log: " + name).c_str());
    return 0;
  }
  const bool ready =
      good(cuptiActivityRegisterCallbacks(give_buffer, take_buffer),
           "cuptiActivityRegisterCallbacks") &&
      good(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "cuptiActivityEnable");
  if (ready) std::atexit(finish);
  return ready ? 1 : 0;
}
