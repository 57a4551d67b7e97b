/// The kernels of the packed form (`pack_form.hpp`). Include it under nvcc.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tidepool/codec/pack_form.hpp"
#include "tidepool/device/cuda_context.hpp"

namespace tidepool::inline v0_3_0::pack_form::detail {

// A warp makes one record. A lane holds 16 neighbouring numbers, two of them in a 32-bit word; four
// lanes hold a block.
inline constexpr unsigned warp = 32;
inline constexpr unsigned threads = 256;
inline constexpr unsigned warps = threads / warp;
inline constexpr unsigned lane_words = numbers_of_word / 2;
inline constexpr unsigned block_lanes = numbers_of_block / numbers_of_word;
inline constexpr unsigned pool_words = pool_bytes / 4;
inline constexpr unsigned most_words = numbers_of_record / 8;  // of nibbles of a record
inline constexpr unsigned all_lanes = ~0U;

// The numbers of a lane.
struct lane_numbers {
  std::uint32_t words[lane_words];
};

__device__ inline lane_numbers load_numbers(const std::uint8_t* record, unsigned lane) {
  // The loads stream past the caches, because the numbers are read once.
  const auto* from = reinterpret_cast<const uint4*>(record) + lane * 2;
  const uint4 a = __ldcs(from);
  const uint4 b = __ldcs(from + 1);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

__device__ inline void store_numbers(std::uint8_t* record, unsigned lane, const lane_numbers& all) {
  const auto& w = all.words;
  auto* to = reinterpret_cast<uint4*>(record) + lane * 2;
  to[0] = {w[0], w[1], w[2], w[3]};
  to[1] = {w[4], w[5], w[6], w[7]};
}

// Counts of the lanes before this one; `total` of all.
__device__ inline unsigned rank_of(unsigned count, unsigned lane, unsigned& total) {
  unsigned sum = count;
#pragma unroll
  for (unsigned step = 1; step < warp; step *= 2) {
    const unsigned below = __shfl_up_sync(all_lanes, sum, step);
    if (lane >= step) sum += below;
  }
  total = __shfl_sync(all_lanes, sum, warp - 1);
  return sum - count;
}

// The exponents of two numbers, each in a half of a word.
__device__ inline std::uint32_t exponents_of(std::uint32_t word) { return word >> 7 & 0x00ff00ffU; }

// Sign and mantissa of four numbers, a byte each.
__device__ inline std::uint32_t rests_of(std::uint32_t first, std::uint32_t second) {
  const auto rest = [](std::uint32_t w) { return (w >> 8 & 0x00800080U) | (w & 0x007f007fU); };
  return __byte_perm(rest(first), rest(second), 0x6420);
}

// A record whose distances the form cannot tell: its numbers as they are.
__device__ inline void keep_record(std::uint8_t* packed, std::uint8_t* spill, std::uint8_t* hidden,
                                   const std::uint8_t* tensor, unsigned lane) {
  const auto* from = reinterpret_cast<const std::uint32_t*>(tensor);
  auto* to = reinterpret_cast<std::uint32_t*>(packed);
  auto* rest = reinterpret_cast<std::uint32_t*>(spill);
  for (unsigned i = lane; i < packed_record / 4; i += warp) {
    const auto word = from[i];
    if (i == bases_at / 4) *hidden = static_cast<std::uint8_t>(word);
    to[i] = i == bases_at / 4 ? word | mark : word;
  }
  for (unsigned i = lane; i < spill_record / 4; i += warp) rest[i] = from[packed_record / 4 + i];
}

// Writes the nibbles of a record: the first ones into its pool, the others into its spill. Bits of
// `escaped` are the lane's numbers that have one.
__device__ inline void pack_nibbles(std::uint8_t* packed, std::uint8_t* spill,
                                    const lane_numbers& all, std::uint32_t base, unsigned escaped,
                                    unsigned lane, std::uint32_t* pool) {
  unsigned total = 0;
  unsigned rank = rank_of(__popc(escaped), lane, total);
  for (unsigned i = lane; i < most_words; i += warp) pool[i] = 0;
  __syncwarp();
#pragma unroll
  for (unsigned i = 0; i < numbers_of_word; ++i) {
    if ((escaped >> i & 1U) == 0) continue;
    const auto distance = base - (exponents_of(all.words[i / 2]) >> i % 2 * 16 & 0xffU);
    const auto nibble = distance > farthest ? no_exponent : distance - nearest;
    atomicOr(pool + rank / 8, nibble << rank % 8 * 4);
    ++rank;
  }
  __syncwarp();
  if (lane < pool_words) reinterpret_cast<std::uint32_t*>(packed + pool_at)[lane] = pool[lane];
  for (unsigned i = pool_words + lane; i * 8 < total; i += warp) {
    reinterpret_cast<std::uint32_t*>(spill)[i - pool_words] = pool[i];
  }
  __syncwarp();
}

__device__ inline void pack_record(std::uint8_t* packed, std::uint8_t* spill, std::uint8_t* hidden,
                                   const std::uint8_t* tensor, unsigned lane, std::uint32_t* pool) {
  const auto all = load_numbers(tensor, lane);
  std::uint32_t both = 0;
#pragma unroll
  for (const auto word : all.words) both = __vmaxu2(both, exponents_of(word));
  std::uint32_t base = max(both & 0xffffU, both >> 16);
#pragma unroll
  for (unsigned step = 1; step < block_lanes; step *= 2) {
    base = max(base, __shfl_xor_sync(all_lanes, base, step));
  }

  std::uint32_t plane[planes] = {};
  std::uint32_t far = 0;
#pragma unroll
  for (unsigned i = 0; i < lane_words; ++i) {
    const auto exponents = exponents_of(all.words[i]);
    const auto distance = (base | base << 16) - exponents;
    far |= __vcmpgtu2(distance, farthest | farthest << 16) & __vcmpne2(exponents, 0);
    const auto code = __vminu2(distance, nearest | nearest << 16);
#pragma unroll
    for (unsigned p = 0; p < planes; ++p) {
      const auto bits = code >> p & 0x00010001U;
      plane[p] |= ((bits | bits >> 15) & 3U) << 2 * i;
    }
  }
  if (__any_sync(all_lanes, far != 0 || base == mark)) {
    return keep_record(packed, spill, hidden, tensor, lane);
  }

  const auto& w = all.words;
  reinterpret_cast<uint4*>(packed)[lane] = {rests_of(w[0], w[1]), rests_of(w[2], w[3]),
                                            rests_of(w[4], w[5]), rests_of(w[6], w[7])};
#pragma unroll
  for (unsigned p = 0; p < planes; ++p) {
    reinterpret_cast<std::uint16_t*>(packed + planes_at + p * plane_bytes)[lane] =
        static_cast<std::uint16_t>(plane[p]);
  }
  if (lane % block_lanes == 0) {
    packed[bases_at + lane / block_lanes] = static_cast<std::uint8_t>(base);
  }

  pack_nibbles(packed, spill, all, base, plane[0] & plane[1] & plane[2], lane, pool);
}

__device__ inline void unpack_record(std::uint8_t* tensor, const std::uint8_t* packed,
                                     const std::uint8_t* spill, const std::uint8_t* hidden,
                                     unsigned lane, std::uint32_t* pool) {
  const auto bases = __ldcs(reinterpret_cast<const uint2*>(packed + bases_at));
  if ((bases.x & 0xffU) == mark) {
    const auto* from = reinterpret_cast<const std::uint32_t*>(packed);
    const auto* rest = reinterpret_cast<const std::uint32_t*>(spill);
    auto* to = reinterpret_cast<std::uint32_t*>(tensor);
    for (unsigned i = lane; i < packed_record / 4; i += warp) {
      to[i] = i == bases_at / 4 ? (from[i] & ~mark) | *hidden : from[i];
    }
    for (unsigned i = lane; i < spill_record / 4; i += warp) to[packed_record / 4 + i] = rest[i];
    return;
  }
  const auto block = lane / block_lanes;
  const auto base = (block < 4 ? bases.x : bases.y) >> block % 4 * 8 & 0xffU;
  const auto rests = __ldcs(reinterpret_cast<const uint4*>(packed) + lane);
  std::uint32_t plane[planes];
#pragma unroll
  for (unsigned p = 0; p < planes; ++p) {
    plane[p] =
        __ldcs(reinterpret_cast<const std::uint16_t*>(packed + planes_at + p * plane_bytes) + lane);
  }
  const auto escaped = plane[0] & plane[1] & plane[2];
  unsigned total = 0;
  unsigned rank = rank_of(__popc(escaped), lane, total);
  if (lane < pool_words)
    pool[lane] = reinterpret_cast<const std::uint32_t*>(packed + pool_at)[lane];
  for (unsigned i = pool_words + lane; i * 8 < total; i += warp) {
    pool[i] = reinterpret_cast<const std::uint32_t*>(spill)[i - pool_words];
  }
  __syncwarp();

  const std::uint32_t four[] = {rests.x, rests.y, rests.z, rests.w};
  lane_numbers all{};
#pragma unroll
  for (unsigned i = 0; i < numbers_of_word; ++i) {
    unsigned distance = 0;
#pragma unroll
    for (unsigned p = 0; p < planes; ++p) distance |= (plane[p] >> i & 1U) << p;
    if (distance == nearest) {
      const auto nibble = pool[rank / 8] >> rank % 8 * 4 & 0xfU;
      distance = nibble == no_exponent ? base : nibble + nearest;
      ++rank;
    }
    const auto rest = four[i / 4] >> i % 4 * 8;
    const auto number = (rest & 0x80U) << 8 | (base - distance) << 7 | (rest & 0x7fU);
    all.words[i / 2] |= number << i % 2 * 16;
  }
  store_numbers(tensor, lane, all);
  __syncwarp();
}

// The parts of a tensor.
struct packed_tensor {
  std::uint8_t* packed;
  std::uint8_t* spill;  // host memory that the device can use
  std::uint8_t* tensor;
  std::size_t bytes;
  std::size_t records;
};

__device__ inline void copy_tail(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  if (blockIdx.x != gridDim.x - 1) return;
  for (std::size_t i = threadIdx.x; i < bytes; i += threads) to[i] = from[i];
}

template <bool Pack>
__global__ void __launch_bounds__(threads) pack_kernel(packed_tensor what) {
  __shared__ std::uint32_t nibbles[warps][most_words];
  const auto lane = threadIdx.x % warp;
  auto* const own = nibbles[threadIdx.x / warp];
  const auto records = what.records;
  auto* const hidden = what.spill + records * spill_record;
  for (std::size_t i = blockIdx.x * std::size_t{warps} + threadIdx.x / warp; i < records;
       i += std::size_t{gridDim.x} * warps) {
    auto* const packed = what.packed + i * packed_record;
    auto* const spill = what.spill + i * spill_record;
    auto* const tensor = what.tensor + i * tensor_record;
    if constexpr (Pack) {
      pack_record(packed, spill, hidden + i, tensor, lane, own);
    } else {
      unpack_record(tensor, packed, spill, hidden + i, lane, own);
    }
  }
  auto* const packed = what.packed + records * packed_record;
  auto* const tensor = what.tensor + records * tensor_record;
  const auto tail = what.bytes % tensor_record;
  if constexpr (Pack) {
    copy_tail(packed, tensor, tail);
  } else {
    copy_tail(tensor, packed, tail);
  }
}

// Throws only the error of this launch. An error that an earlier launch left stays for the runtime
// to report.
template <bool Pack>
void launch(const packed_tensor& what, unsigned most_blocks, cudaStream_t on) {
  if (what.bytes == 0) return;
  const auto blocks = (what.records + warps - 1) / warps;
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(static_cast<unsigned>(
      std::clamp(blocks, std::size_t{1}, static_cast<std::size_t>(most_blocks))));
  how.blockDim = dim3(threads);
  how.stream = on;
  tidepool::detail::cuda_check(cudaLaunchKernelEx(&how, pack_kernel<Pack>, what),
                               Pack ? "pack" : "unpack", tidepool::detail::cuda_launch_remedy);
}

}  // namespace tidepool::pack_form::detail

namespace tidepool::inline v0_3_0::pack_form {

/// Queues the packing of a tensor on `on`; see `pack`. `spill` is pinned host memory or device
/// memory, all starts are multiples of `alignment`, and the grid has at most `most_blocks` blocks.
inline void pack_on(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
                    unsigned most_blocks, cudaStream_t on) {
  const auto of = [](const std::byte* at) {
    return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(at));
  };
  detail::launch<true>({of(packed), of(spill), of(tensor), bytes, records_of(bytes)}, most_blocks,
                       on);
}

/// Queues the unpacking of a tensor on `on`; see `unpack` and `pack_on`.
inline void unpack_on(std::byte* tensor, const std::byte* packed, const std::byte* spill,
                      std::size_t bytes, unsigned most_blocks, cudaStream_t on) {
  const auto of = [](const std::byte* at) {
    return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(at));
  };
  detail::launch<false>({of(packed), of(spill), of(tensor), bytes, records_of(bytes)}, most_blocks,
                        on);
}

}  // namespace tidepool::pack_form
