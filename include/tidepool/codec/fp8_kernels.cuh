/// The FP8 codec's kernels for `cuda_device`. Include it where `fp8_codec` is used, under nvcc.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tidepool/codec/fp8.hpp"
#include "tidepool/device/cuda.hpp"

namespace tidepool::inline v0_3_0::detail {

// A thread reads or writes 16 bytes of numbers at once, and half of a warp makes a block.
inline constexpr unsigned fp8_of_thread = 8;
inline constexpr unsigned fp8_lanes = codec::block / fp8_of_thread;
inline constexpr unsigned fp8_threads = 256;

// IEEE arithmetic with subnormal numbers, whatever -ftz, -prec-div and --use_fast_math say, because
// BF16 has subnormal numbers.
__device__ inline float fp8_times(float a, float b) {
  float product;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return product;
}
__device__ inline float fp8_over(float a, float b) {
  float quotient;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
}

// A number in the lower half of `bits`, ready to become a code.
__device__ inline float fp8_scaled(std::uint32_t bits, float inverse) {
  // Infinities are handled here, because the conversion would saturate them.
  if ((bits & 0x7fffU) >= codec::bf16_infinity) return __uint_as_float(0x7fffffffU);
  return fp8_times(__uint_as_float(bits << 16), inverse);
}

__device__ inline std::uint32_t fp8_finite(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffU;
  return magnitude < codec::bf16_infinity ? magnitude : 0;
}

__device__ inline std::uint32_t fp8_number(std::uint32_t code, unsigned short half_bits,
                                           float scale) {
  if ((code & 0x7fU) == codec::e4m3_nan) return codec::bf16_nan;
  const float value = fp8_times(__half2float(__ushort_as_half(half_bits)), scale);
  return codec::bf16_nearest(__float_as_uint(value)) & 0xffffU;
}

// Codes are written up to `up_to`, where the scales begin, because all these bytes are copied.
template <unsigned Threads>
__global__ void __launch_bounds__(Threads)
    fp8_encode_kernel(std::uint8_t* __restrict__ codes, float* __restrict__ scales,
                      const std::uint16_t* __restrict__ numbers, std::size_t elements,
                      std::size_t up_to) {
  const std::size_t first =
      (blockIdx.x * std::size_t{Threads} + threadIdx.x) * std::size_t{fp8_of_thread};
  const bool full = first + fp8_of_thread <= elements;
  std::uint32_t pairs[fp8_of_thread / 2] = {};
  if (full) {
    // The load streams past the caches, because the numbers are read once.
    const uint4 read = __ldcs(reinterpret_cast<const uint4*>(numbers + first));
    pairs[0] = read.x;
    pairs[1] = read.y;
    pairs[2] = read.z;
    pairs[3] = read.w;
  } else {
#pragma unroll
    for (unsigned i = 0; i < fp8_of_thread; ++i) {
      if (first + i < elements) pairs[i / 2] |= std::uint32_t{numbers[first + i]} << i % 2 * 16;
    }
  }

  std::uint32_t largest = 0;
#pragma unroll
  for (const std::uint32_t pair : pairs) {
    largest = max(largest, max(fp8_finite(pair), fp8_finite(pair >> 16)));
  }
  // Threads behind the last number take part, too, with zeros.
#pragma unroll
  for (unsigned step = fp8_lanes / 2; step > 0; step /= 2) {
    largest = max(largest, __shfl_xor_sync(~0U, largest, static_cast<int>(step)));
  }
  const float range = __uint_as_float(codec::range_of(largest));
  const float inverse = fp8_over(codec::e4m3_largest, range);

  std::uint32_t made[fp8_of_thread / 4] = {};
#pragma unroll
  for (unsigned i = 0; i < fp8_of_thread / 2; ++i) {
    const float2 two = {fp8_scaled(pairs[i], inverse), fp8_scaled(pairs[i] >> 16, inverse)};
    const std::uint32_t both = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
    made[i / 2] |= both << i % 2 * 16;
  }
  if (full) {
    *reinterpret_cast<uint2*>(codes + first) = {made[0], made[1]};
  } else {
#pragma unroll
    for (unsigned i = 0; i < fp8_of_thread; ++i) {
      if (first + i < up_to) {
        codes[first + i] = static_cast<std::uint8_t>(made[i / 4] >> i % 4 * 8);
      }
    }
  }
  if (threadIdx.x % fp8_lanes == 0 && first < elements) {
    scales[first / codec::block] = fp8_over(range, codec::e4m3_largest);
  }
}

template <unsigned Threads>
__global__ void __launch_bounds__(Threads)
    fp8_decode_kernel(std::uint16_t* __restrict__ numbers, const std::uint8_t* __restrict__ codes,
                      const float* __restrict__ scales, std::size_t elements) {
  const std::size_t first =
      (blockIdx.x * std::size_t{Threads} + threadIdx.x) * std::size_t{fp8_of_thread};
  if (first >= elements) return;
  const bool full = first + fp8_of_thread <= elements;
  const float scale = scales[first / codec::block];
  std::uint32_t read[fp8_of_thread / 4] = {};
  if (full) {
    const uint2 both = __ldcs(reinterpret_cast<const uint2*>(codes + first));
    read[0] = both.x;
    read[1] = both.y;
  } else {
#pragma unroll
    for (unsigned i = 0; i < fp8_of_thread; ++i) {
      if (first + i < elements) read[i / 4] |= std::uint32_t{codes[first + i]} << i % 4 * 8;
    }
  }
  std::uint32_t pairs[fp8_of_thread / 2];
#pragma unroll
  for (unsigned i = 0; i < fp8_of_thread / 2; ++i) {
    const std::uint32_t two = read[i / 2] >> i % 2 * 16;
    const __half2_raw halves =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
    pairs[i] = fp8_number(two, halves.x, scale) | fp8_number(two >> 8, halves.y, scale) << 16;
  }
  if (full) {
    *reinterpret_cast<uint4*>(numbers + first) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  } else {
#pragma unroll
    for (unsigned i = 0; i < fp8_of_thread; ++i) {
      if (first + i < elements) {
        numbers[first + i] = static_cast<std::uint16_t>(pairs[i / 2] >> i % 2 * 16);
      }
    }
  }
}

template <std::derived_from<cuda_device> Device>
struct fp8_kernels<Device> {
  using stream_ref = typename Device::stream_ref;

  static void encode(Device& /*dev*/, std::uint8_t* codes, float* scales,
                     const std::uint16_t* numbers, std::size_t elements, stream_ref on,
                     double /*bytes_per_ns*/) {
    launch("fp8_codec::encode", elements, on, fp8_encode_kernel<fp8_threads>, codes, scales,
           numbers, elements, codec::scales_offset(elements));
  }
  static void decode(Device& /*dev*/, std::uint16_t* numbers, const std::uint8_t* codes,
                     const float* scales, std::size_t elements, stream_ref on,
                     double /*bytes_per_ns*/) {
    launch("fp8_codec::decode", elements, on, fp8_decode_kernel<fp8_threads>, numbers, codes,
           scales, elements);
  }

 private:
  // Throws only the error of this launch. An error that an earlier launch left stays for the
  // runtime to report.
  template <class... Parameters>
  static void launch(const char* call, std::size_t elements, stream_ref on,
                     void (*kernel)(Parameters...), Parameters... arguments) {
    constexpr std::size_t of_group = std::size_t{fp8_threads} * fp8_of_thread;
    cudaLaunchConfig_t how{};
    how.gridDim = dim3(static_cast<unsigned>((elements + of_group - 1) / of_group));
    how.blockDim = dim3(fp8_threads);
    how.stream = on.get();
    cuda_check(cudaLaunchKernelEx(&how, kernel, arguments...), call, cuda_launch_remedy);
  }
};

}  // namespace tidepool::detail
