// The CUDA device: errors with context, pinned memory, the caller's device left as it was.
#include <cstring>
#include <string>

#include "gpu.hpp"
#include "tidepool/device/cuda.hpp"

namespace {

using namespace tidepool;

TIDEPOOL_GPU_TEST("a device that is not there is named") {
  CHECK_THROWS_WITH_AS(cuda_device(99), doctest::Contains("no device 99"), device_error);
}

TIDEPOOL_GPU_TEST("too much device memory is no error for try_allocate, and one for allocate") {
  cuda_device dev;
  const auto more = dev.memory().total + (std::size_t{1} << 30);
  CHECK(dev.try_allocate(more) == nullptr);
  CHECK(cudaGetLastError() == cudaSuccess);  // nothing is left behind for the caller
  try {
    static_cast<void>(dev.allocate(more));
    FAIL("allocate must throw");
  } catch (const device_error& problem) {
    CHECK(problem.code == static_cast<int>(cudaErrorMemoryAllocation));
    CHECK(std::string(problem.what()).find("GiB") != std::string::npos);
  }
}

TIDEPOOL_GPU_TEST("pinned memory, small and large, is pinned and writable and can be given back") {
  cuda_device dev;
  for (const std::size_t size : {std::size_t{4096}, std::size_t{5} << 20, std::size_t{300} << 20}) {
    auto* host = dev.try_allocate_host(size);
    REQUIRE(host != nullptr);
    cudaPointerAttributes what{};
    REQUIRE(cudaPointerGetAttributes(&what, host) == cudaSuccess);
    CHECK(what.type == cudaMemoryTypeHost);
    std::memset(host, 1, size);
    dev.deallocate_host(host);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TIDEPOOL_GPU_TEST("every kind of host memory comes and copies, or the device says why not") {
  using tidepool::host_kind;
  cuda_device dev;
  constexpr std::size_t size = std::size_t{4} << 20;
  auto* device = dev.allocate(size);
  const auto stream = dev.make_stream();
  for (int kind = 0; kind <= static_cast<int>(host_kind::managed); ++kind) {
    CAPTURE(kind);
    const auto which = static_cast<host_kind>(kind);
    const auto reason = dev.why_not(which);
    MESSAGE("kind " << kind << ": " << (reason.empty() ? "there" : reason));
    if (!reason.empty()) continue;
    for (const bool bind : {true, false}) {
      auto* const out = dev.try_allocate_host(size, {which, bind});
      auto* const back = dev.try_allocate_host(size, {which, bind});
      REQUIRE(out != nullptr);
      REQUIRE(back != nullptr);
      MESSAGE(dev.host_memory_text());
      std::memset(out, 7 + kind, size);
      std::memset(back, 0, size);
      using enum tidepool::copy_direction;
      dev.copy(device, out, {size, 1, size, size}, host_to_device, stream.ref());
      dev.copy(back, device, {size, 1, size, size}, device_to_host, stream.ref());
      dev.synchronize(stream.ref());
      CHECK(std::memcmp(out, back, size) == 0);
      dev.deallocate_host(out);
      dev.deallocate_host(back);
    }
  }
  dev.deallocate(device);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TIDEPOOL_GPU_TEST("calls leave the caller's current device alone") {
  const int devices = cuda_device::count();
  cuda_device last(devices - 1);
  cudaSetDevice(0);
  auto* memory = last.allocate(1 << 20);
  const auto stream = last.make_stream();
  const auto event = last.make_event();
  int now = -1;
  cudaGetDevice(&now);
  CHECK(now == 0);
  last.deallocate(memory);
}

TIDEPOOL_GPU_TEST("a stream at the address of an old one is told apart") {
  cuda_device dev;
  std::uint64_t first = 0;
  {
    const auto stream = dev.make_stream();
    first = stream.ref().key();
  }
  const auto stream = dev.make_stream();
  CHECK(stream.ref().key() != first);
}

}  // namespace
