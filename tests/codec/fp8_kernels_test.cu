// The FP8 codec's kernels against its arithmetic on the CPU: every code and every scale, to the
// bit.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp8_blocks.hpp"
#include "gpu.hpp"
#include "tidepool/codec/fp8_kernels.cuh"
#include "tidepool/device/cuda.hpp"
#include "tidepool/graph.hpp"

namespace {

namespace codec = tidepool::codec;
using tidepool::cuda_device;
using tidepool::test::bits_of;
using tidepool::test::coded;
using tidepool::test::hard_blocks;
using gpu_offloader = tidepool::offloader<cuda_device, tidepool::modules<"expert_fc1">>;

tidepool::options everything_leaves() {
  tidepool::options opts;
  opts.offload_modules = {"expert_fc1"};
  opts.min_tensor_elements = 1;
  opts.margin = false;
  return opts;
}

template <class T>
std::vector<T> read(const void* from, std::size_t count) {
  std::vector<T> copy(count);
  REQUIRE(cudaMemcpy(copy.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
  return copy;
}

void write(void* to, const std::vector<std::uint16_t>& numbers) {
  REQUIRE(cudaMemcpy(to, numbers.data(), numbers.size() * 2, cudaMemcpyHostToDevice) ==
          cudaSuccess);
  // Neither this copy nor a memset waits for the GPU, and non-blocking streams wait for neither.
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
}

template <class T>
std::size_t differences(const std::vector<T>& a, const std::vector<T>& b) {
  REQUIRE(a.size() == b.size());
  std::size_t found = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if constexpr (sizeof(T) == 4) {
      found += bits_of(a[i]) == bits_of(b[i]) ? 0 : 1;
    } else {
      found += a[i] == b[i] ? 0 : 1;
    }
  }
  return found;
}

// Encodes, offloads, restores and decodes on the GPU; what differs from the CPU in any bit.
std::size_t differences_of(cuda_device& dev, const std::vector<std::uint16_t>& numbers) {
  const auto stream = dev.make_stream();
  gpu_offloader off(dev, everything_leaves());
  const tidepool::fp8_codec fp8(dev);
  const auto expected = coded(numbers);
  auto open = off.begin();
  auto x = off.allocate<std::uint16_t>(numbers.size(), stream.ref());
  dev.synchronize();
  write(x.data(), numbers);
  auto packed = fp8.encode(off, x, numbers.size(), stream.ref());
  x.reset(stream.ref());
  open.commit<"expert_fc1">(0, stream.ref(), packed.data);
  open.restore<"expert_fc1">(0, stream.ref(), packed.data);
  auto y = fp8.decode(off, packed, stream.ref());
  dev.synchronize();
  const auto found =
      differences(read<std::uint8_t>(packed.codes(), numbers.size()), expected.codes) +
      differences(read<float>(packed.scales(), expected.scales.size()), expected.scales) +
      differences(read<std::uint16_t>(y.data(), numbers.size()), expected.back);
  packed.reset(stream.ref());
  y.reset(stream.ref());
  open.finish();
  dev.synchronize();
  return found;
}

}  // namespace

// No GPU: the toolkit's conversions, which the kernels use, run on the host as well.
TEST_CASE("fp8: CUDA's conversions give the codec's codes and numbers") {
  std::size_t wrong = 0;
  for (std::uint32_t largest = 1; largest < codec::bf16_infinity; largest += 97) {
    const auto inverse = 448 / std::bit_cast<float>(codec::range_of(largest));
    for (std::uint32_t below = 0; below <= std::min(largest, 40U * 128U); below += 29) {
      const auto number = static_cast<std::uint16_t>((largest - below) | (below % 2 << 15));
      const float scaled = std::bit_cast<float>(std::uint32_t{number} << 16) * inverse;
      const auto code = __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
      wrong += code == codec::code_of(number, inverse) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
  for (unsigned code = 0; code < 256; ++code) {
    CAPTURE(code);
    const auto byte = static_cast<std::uint8_t>(code);
    const __half decoded(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3));
    if ((code & 0x7fU) == codec::e4m3_nan) {
      CHECK(codec::number_of(byte, 1) == codec::bf16_nan);
    } else {
      CHECK(codec::number_of(byte, 1) == bits_of(__half2float(decoded)) >> 16);
    }
  }
}

TIDEPOOL_GPU_TEST("fp8: codes, scales and decoded numbers of a GPU have the bits of the CPU's") {
  cuda_device dev;
  for (const auto& each : hard_blocks()) {
    CAPTURE(each.first);
    CHECK(differences_of(dev, each.second) == 0);
  }
}

TIDEPOOL_GPU_TEST("fp8: every BF16 number, as the largest of its block and among larger ones") {
  cuda_device dev;
  std::vector<std::uint16_t> all(1U << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  CHECK(differences_of(dev, all) == 0);
  // A block for each: it alone, and beside one that is 64 times as large.
  std::vector<std::uint16_t> apart(2 * codec::block * (codec::bf16_infinity / 8), 0);
  for (std::size_t i = 0; i < apart.size() / codec::block; ++i) {
    const auto number = static_cast<std::uint16_t>(i / 2 * 8 + i % 8);
    apart[i * codec::block + i % codec::block] = number;
    if (i % 2 == 1)
      apart[i * codec::block + (i + 1) % codec::block] =
          static_cast<std::uint16_t>(number + 6 * 0x80);
  }
  CHECK(differences_of(dev, apart) == 0);
}

TIDEPOOL_GPU_TEST("fp8: tails of every length, and sizes about a group of threads") {
  cuda_device dev;
  const auto numbers = hard_blocks()[1].second;
  std::vector<std::size_t> sizes{2047, 2048, 2049, 4096, 4097};
  for (std::size_t size = 1; size <= 2 * codec::block + 1; ++size) sizes.push_back(size);
  for (const auto size : sizes) {
    CAPTURE(size);
    const std::vector<std::uint16_t> some(numbers.begin(),
                                          numbers.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(differences_of(dev, some) == 0);
  }
}

TIDEPOOL_GPU_TEST("fp8: nothing is written beside codes, scales and numbers") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  gpu_offloader off(dev, everything_leaves());
  const tidepool::fp8_codec fp8(dev);
  for (const std::size_t elements : {1U, 13U, 130U, 1000U, 2050U}) {
    CAPTURE(elements);
    const auto numbers = hard_blocks()[0].second;
    auto x = off.allocate<std::uint16_t>(2 * elements, stream.ref());
    auto y = off.allocate<std::uint16_t>(elements + 64, stream.ref());
    tidepool::fp8_tensor<cuda_device> packed{
        off.allocate(codec::packed_bytes(elements) + 64, stream.ref()), elements};
    dev.synchronize();
    REQUIRE(cudaMemset(packed.data.data(), 0xab, packed.data.size()) == cudaSuccess);
    REQUIRE(cudaMemset(y.data(), 0xab, y.size()) == cudaSuccess);
    write(x.data(), {numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(elements)});
    fp8.encode_into(packed, x, stream.ref());
    fp8.decode_into(y, packed, stream.ref());
    dev.synchronize();
    const auto bytes = read<std::uint8_t>(packed.data.data(), packed.data.size());
    const auto untouched = [](std::uint8_t each) { return each == 0xab; };
    CHECK(std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(elements),
                      bytes.begin() + static_cast<std::ptrdiff_t>(codec::scales_offset(elements)),
                      [](std::uint8_t each) { return each == 0; }));
    CHECK(std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(codec::packed_bytes(elements)),
                      bytes.end(), untouched));
    const auto back = read<std::uint16_t>(y.data(), elements + 64);
    CHECK(std::all_of(back.begin() + static_cast<std::ptrdiff_t>(elements), back.end(),
                      [](std::uint16_t each) { return each == 0xabab; }));
  }
}

TIDEPOOL_GPU_TEST("fp8: encode, offload, restore and decode as a graph") {
  cuda_device dev;
  const auto stream = dev.make_stream();
  gpu_offloader off(dev, everything_leaves());
  const tidepool::fp8_codec fp8(dev);
  const auto numbers = hard_blocks()[0].second;
  const auto bytes = numbers.size() * 2;
  auto* const x = dev.allocate(bytes);
  auto* const y = dev.allocate(bytes);
  write(x, numbers);
  const auto step = [&] {
    auto open = off.begin();
    auto packed = fp8.encode(off, x, numbers.size(), stream.ref());
    open.commit<"expert_fc1">(0, stream.ref(), packed.data);
    open.restore<"expert_fc1">(0, stream.ref(), packed.data);
    fp8.decode_into(y, packed, stream.ref());
    packed.reset(stream.ref());
    open.finish();
    off.end_step();
  };
  for (int i = 0; i < 2; ++i) step();
  {
    auto graph = off.capture(stream.ref(), step);
    dev.synchronize();
    REQUIRE(cudaMemset(y, 0, bytes) == cudaSuccess);
    dev.synchronize();
    graph.launch(stream.ref());
    dev.synchronize();
  }
  CHECK(differences(read<std::uint16_t>(y, numbers.size()), coded(numbers).back) == 0);
  dev.deallocate(x);
  dev.deallocate(y);
}
