// The kernels of the packed form against its arithmetic on the CPU, to the bit.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bf16_tensors.hpp"
#include "gpu.hpp"
#include "tidepool/codec/pack_kernels.cuh"
#include "tidepool/device/cuda.hpp"

namespace {

namespace form = tidepool::pack_form;
using tidepool::cuda_device;

// Memory of the device and pinned memory, for one tensor.
class rig {
 public:
  rig(cuda_device& dev, std::size_t bytes)
      : dev_(&dev),
        tensor_(device(bytes)),
        back_(device(bytes)),
        packed_(device(form::packed_bytes(bytes))),
        spill_(static_cast<std::byte*>(dev.try_allocate_host(form::spill_bytes(bytes) + 1))) {}
  rig(const rig&) = delete;
  rig& operator=(const rig&) = delete;
  ~rig() {
    for (auto* each : {tensor_, back_, packed_}) dev_->deallocate(each);
    dev_->deallocate_host(spill_);
  }

  // Bytes in which the GPU's packed form differs from the CPU's, or its numbers from those given.
  std::size_t differences(std::span<const std::byte> tensor) {
    const auto bytes = tensor.size();
    const auto on = stream_.ref();
    const std::size_t parts = form::spill_bytes(bytes);
    const std::byte blank{0xa5};
    std::memset(spill_, 0xa5, parts + 1);
    std::vector<std::byte> packed(form::packed_bytes(bytes));
    std::vector<std::byte> spill(parts + 1, blank);
    form::pack(packed.data(), spill.data(), tensor.data(), bytes);
    check(cudaMemcpy(tensor_, tensor.data(), bytes, cudaMemcpyDefault));
    form::pack_on(packed_, spill_, tensor_, bytes, on.get());
    form::unpack_on(back_, packed_, spill_, bytes, on.get());
    dev_->synchronize();
    // The GPU writes nibbles in words, the CPU in bytes: blanks of the CPU are not compared.
    std::size_t found = 0;
    for (std::size_t i = 0; i < spill.size(); ++i) {
      if (spill[i] != blank && spill[i] != spill_[i]) ++found;
    }
    if (spill_[parts] != blank) ++found;
    return found + differences(packed_, packed) + differences(back_, tensor);
  }

 private:
  static void check(cudaError_t code) { REQUIRE(code == cudaSuccess); }
  std::byte* device(std::size_t bytes) {
    return static_cast<std::byte*>(dev_->try_allocate(std::max<std::size_t>(bytes, 1)));
  }
  static std::size_t differences(const std::byte* on_device, std::span<const std::byte> expected) {
    std::vector<std::byte> got(expected.size());
    check(cudaMemcpy(got.data(), on_device, got.size(), cudaMemcpyDefault));
    std::size_t found = 0;
    for (std::size_t i = 0; i < got.size(); ++i) found += got[i] == expected[i] ? 0 : 1;
    return found;
  }

  cuda_device* dev_;
  cuda_device::stream stream_ = dev_->make_stream();
  std::byte* tensor_;
  std::byte* back_;
  std::byte* packed_;
  std::byte* spill_;
};

}  // namespace

TIDEPOOL_GPU_TEST("pack: the GPU's packed form has the CPU's bytes, and the numbers come back") {
  cuda_device dev;
  std::mt19937 from(7);
  for (const auto what : tidepool::test::bf16_kinds) {
    for (const std::size_t count : {1UL, 511UL, 512UL, 513UL, 40'000UL, 1'000'003UL}) {
      const auto tensor = tidepool::test::bf16_tensor(what, count, from);
      const auto kind = static_cast<int>(what);
      CAPTURE(kind);
      CAPTURE(count);
      const auto bytes = std::as_bytes(std::span(tensor));
      CHECK(rig(dev, bytes.size()).differences(bytes) == 0);
      CHECK(rig(dev, bytes.size() - 1).differences(bytes.first(bytes.size() - 1)) == 0);
    }
  }
}

TIDEPOOL_GPU_TEST("pack: every pair of a base and an exponent comes back from a GPU") {
  cuda_device dev;
  std::vector<std::uint16_t> all;
  for (unsigned base = 0; base < 256; ++base) {
    for (unsigned exponent = 0; exponent <= base; ++exponent) {
      for (std::size_t i = 0; i < form::numbers_of_record; ++i) {
        const auto largest = i % form::numbers_of_block == exponent % form::numbers_of_block;
        all.push_back(static_cast<std::uint16_t>((largest ? base : exponent) << 7 | 0x8055U));
      }
    }
  }
  const auto bytes = std::as_bytes(std::span(all));
  CHECK(rig(dev, bytes.size()).differences(bytes) == 0);
}
