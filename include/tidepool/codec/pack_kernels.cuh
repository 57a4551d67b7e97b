/// The kernels of the packed form (`pack_form.hpp`). Include it under nvcc.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tidepool/codec/pack_form.hpp"
#include "tidepool/device/cuda_context.hpp"

namespace tidepool::inline v0_3_0::pack_form::detail {

// A warp makes one record. A lane holds 16 neighbouring numbers, two of them in a 32-bit word, and
// most instructions work on both. Four lanes hold a block.
inline constexpr unsigned warp = 32;
inline constexpr unsigned threads = 256;
inline constexpr unsigned warps = threads / warp;
inline constexpr unsigned lane_words = numbers_of_lane / 2;
inline constexpr unsigned block_lanes = numbers_of_block / numbers_of_lane;
inline constexpr unsigned pool_words = pool_bytes / 4;
// Words for the nibbles of a record. Two more are read and written, because a lane's nibbles lie in
// up to three words.
inline constexpr unsigned most_words = numbers_of_record / 8 + 2;
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

// Returns the sum of `count` over the lanes before this one; `total` is the sum over all lanes.
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

// Repeats a value in both halves of a word.
__device__ constexpr std::uint32_t in_both(std::uint32_t value) { return value * 0x00010001U; }

// The exponents of two numbers, each in a half of a word.
__device__ inline std::uint32_t exponents_of(std::uint32_t word) { return word >> 7 & 0x00ff00ffU; }

// Sign and mantissa of four numbers, a byte each.
__device__ inline std::uint32_t rests_of(std::uint32_t first, std::uint32_t second) {
  const auto rest = [](std::uint32_t w) { return w ^ ((w ^ w >> 8) & 0x00800080U); };
  return __byte_perm(rest(first), rest(second), 0x6420);
}

// Two numbers without their exponents; `selector` names the bytes of `rests`.
__device__ inline std::uint32_t without_exponents(std::uint32_t rests, std::uint32_t selector) {
  const auto two = __byte_perm(rests, 0, selector);
  return two + (two & 0x00800080U) * 255;  // moves the signs 8 bits up
}

// Nibbles of codes that have a nibble in the pool: their lowest bits are set, and no others.
__device__ inline lane_nibbles escapes_of(const lane_nibbles& codes) {
  const auto of = [](std::uint32_t c) { return c & c >> 1 & c >> 2 & of_each_nibble; };
  return {{of(codes.words[0]), of(codes.words[1])}};
}

// The nibbles of `from` at the bits of `marked`, one after the other.
__device__ inline std::uint32_t gather(std::uint32_t from, std::uint32_t marked) {
  std::uint32_t dense = 0;
  for (unsigned to = 0; marked != 0; marked &= marked - 1, to += 4) {
    dense |= (from >> (__ffs(static_cast<int>(marked)) - 1) & 0xfU) << to;
  }
  return dense;
}

// The reverse of `gather`.
__device__ inline std::uint32_t scatter(std::uint32_t dense, std::uint32_t marked) {
  std::uint32_t to = 0;
  for (; marked != 0; marked &= marked - 1, dense >>= 4) {
    to |= (dense & 0xfU) << (__ffs(static_cast<int>(marked)) - 1);
  }
  return to;
}

// Stores a record raw, because the form has no code for one of its distances.
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

// Writes the nibbles of a record: the first ones into its pool, the others into its spill.
__device__ inline void pack_nibbles(std::uint8_t* packed, std::uint8_t* spill,
                                    const lane_nibbles& nibbles, const lane_nibbles& escapes,
                                    unsigned lane, std::uint32_t* pool) {
  const unsigned first = __popc(escapes.words[0]);
  const unsigned count = first + __popc(escapes.words[1]);
  unsigned total = 0;
  const auto rank = rank_of(count, lane, total);
  for (unsigned i = lane; i < most_words; i += warp) pool[i] = 0;
  __syncwarp();
  if (count > 0) {
    const auto own = gather(nibbles.words[0], escapes.words[0]) |
                     std::uint64_t{gather(nibbles.words[1], escapes.words[1])} << first * 4;
    const auto shift = rank % 8 * 4;
    auto* const to = pool + rank / 8;
    const auto put = [](std::uint32_t* word, std::uint64_t bits) {
      if (const auto low = static_cast<std::uint32_t>(bits); low != 0) atomicOr(word, low);
    };
    put(to, own << shift);
    put(to + 1, own << shift >> 32);
    put(to + 2, own >> 32 >> (32 - shift));
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
  std::uint32_t largest = 0;
  std::uint32_t least = ~0U;  // of exponents other than 0, less 1
#pragma unroll
  for (const auto word : all.words) {
    largest = __vmaxu2(largest, exponents_of(word));
    least = __viaddmin_u16x2(exponents_of(word), ~0U, least);
  }
  std::uint32_t base = max(largest & 0xffffU, largest >> 16);
#pragma unroll
  for (unsigned step = 1; step < block_lanes; step *= 2) {
    base = max(base, __shfl_xor_sync(all_lanes, base, step));
  }
  const bool far = min(least & 0xffffU, least >> 16) + 1 + farthest < base;
  if (__any_sync(all_lanes, far || base == mark)) {
    return keep_record(packed, spill, hidden, tensor, lane);
  }

  lane_nibbles codes{};
  // The loop adds at least `nearest` to each nibble, so that `nearest` is subtracted before.
  lane_nibbles nibbles{{0 - nearest * of_each_nibble, 0 - nearest * of_each_nibble}};
#pragma unroll
  for (unsigned i = 0; i < lane_words; ++i) {
    const auto distance = in_both(base) - exponents_of(all.words[i]);
    const auto near = __vminu2(distance, in_both(nearest));
    const auto escaped = __vmaxu2(__vminu2(distance, in_both(farthest + 1)), in_both(nearest));
    codes.words[i / 4] += near << i % 4 * 4;
    nibbles.words[i / 4] += escaped << i % 4 * 4;
  }

  const auto& w = all.words;
  reinterpret_cast<uint4*>(packed)[lane] = {rests_of(w[0], w[1]), rests_of(w[2], w[3]),
                                            rests_of(w[4], w[5]), rests_of(w[6], w[7])};
  reinterpret_cast<std::uint32_t*>(packed + codes_at)[lane] = word_of(codes);
  reinterpret_cast<std::uint16_t*>(packed + upper_at)[lane] = half_of(codes);
  if (lane % block_lanes == 0) {
    packed[bases_at + lane / block_lanes] = static_cast<std::uint8_t>(base);
  }
  pack_nibbles(packed, spill, nibbles, escapes_of(codes), lane, pool);
}

__device__ inline void bring_record(std::uint8_t* tensor, const std::uint8_t* packed,
                                    const std::uint8_t* spill, const std::uint8_t* hidden,
                                    unsigned lane) {
  const auto* from = reinterpret_cast<const std::uint32_t*>(packed);
  const auto* rest = reinterpret_cast<const std::uint32_t*>(spill);
  auto* to = reinterpret_cast<std::uint32_t*>(tensor);
  for (unsigned i = lane; i < packed_record / 4; i += warp) {
    to[i] = i == bases_at / 4 ? (from[i] & ~mark) | *hidden : from[i];
  }
  for (unsigned i = lane; i < spill_record / 4; i += warp) to[packed_record / 4 + i] = rest[i];
}

// Reads the nibbles of a lane's escapes out of the record's pool and spill; 0 for other numbers.
__device__ inline lane_nibbles unpack_nibbles(const std::uint8_t* packed, const std::uint8_t* spill,
                                              const lane_nibbles& escapes, unsigned lane,
                                              std::uint32_t* pool) {
  const unsigned first = __popc(escapes.words[0]);
  const unsigned count = first + __popc(escapes.words[1]);
  unsigned total = 0;
  const auto rank = rank_of(count, lane, total);
  if (lane < pool_words)
    pool[lane] = reinterpret_cast<const std::uint32_t*>(packed + pool_at)[lane];
  for (unsigned i = pool_words + lane; i * 8 < total; i += warp) {
    pool[i] = reinterpret_cast<const std::uint32_t*>(spill)[i - pool_words];
  }
  __syncwarp();
  lane_nibbles nibbles{};
  if (count > 0) {
    const auto* const from = pool + rank / 8;
    const auto low = __funnelshift_r(from[0], from[1], rank % 8 * 4);
    const auto high = __funnelshift_r(from[1], from[2], rank % 8 * 4);
    const auto own = low | std::uint64_t{high} << 32;
    nibbles = {{scatter(low, escapes.words[0]),
                scatter(static_cast<std::uint32_t>(own >> first * 4), escapes.words[1])}};
  }
  __syncwarp();
  return nibbles;
}

__device__ inline void unpack_record(std::uint8_t* tensor, const std::uint8_t* packed,
                                     const std::uint8_t* spill, const std::uint8_t* hidden,
                                     unsigned lane, std::uint32_t* pool) {
  const auto bases = __ldcs(reinterpret_cast<const uint2*>(packed + bases_at));
  if ((bases.x & 0xffU) == mark) return bring_record(tensor, packed, spill, hidden, lane);
  const auto rests = __ldcs(reinterpret_cast<const uint4*>(packed) + lane);
  const auto word = __ldcs(reinterpret_cast<const std::uint32_t*>(packed + codes_at) + lane);
  const auto half = __ldcs(reinterpret_cast<const std::uint16_t*>(packed + upper_at) + lane);
  const auto codes = codes_of(word, half);
  const auto nibbles = unpack_nibbles(packed, spill, escapes_of(codes), lane, pool);

  const auto block = lane / block_lanes;
  const auto base = (block < 4 ? bases.x : bases.y) >> block % 4 * 8 & 0xffU;
  const std::uint32_t four[] = {rests.x, rests.y, rests.z, rests.w};
  lane_numbers all{};
#pragma unroll
  for (unsigned i = 0; i < lane_words; ++i) {
    const auto code = codes.words[i / 4] >> i % 4 * 4 & in_both(7);
    const auto nibble = nibbles.words[i / 4] >> i % 4 * 4 & in_both(15);
    const auto exponents = in_both(base) - code - nibble;
    all.words[i] = without_exponents(four[i / 2], i % 2 == 0 ? 0x4140 : 0x4342) + (exponents << 7);
  }
  const auto is_zero = [](std::uint32_t n) {
    return n & n >> 1 & n >> 2 & n >> 3 & of_each_nibble;  // where the nibble is `no_exponent`
  };
  const std::uint32_t zeros[] = {is_zero(nibbles.words[0]), is_zero(nibbles.words[1])};
  if ((zeros[0] | zeros[1]) != 0) {
#pragma unroll
    for (unsigned i = 0; i < lane_words; ++i) {
      all.words[i] &= ~((zeros[i / 4] >> i % 4 * 4 & in_both(1)) * 0x7f80U);
    }
  }
  store_numbers(tensor, lane, all);
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
  if (const auto i = blockIdx.x * std::size_t{warps} + threadIdx.x / warp; i < records) {
    auto* const packed = what.packed + i * packed_record;
    const auto at = spill_of(i, records);
    auto* const spill = what.spill + at.rest;
    auto* const hidden = what.spill + at.hidden;
    auto* const tensor = what.tensor + i * tensor_record;
    if constexpr (Pack) {
      pack_record(packed, spill, hidden, tensor, lane, own);
    } else {
      unpack_record(tensor, packed, spill, hidden, lane, own);
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

// Each warp has one record, because small blocks that end soon slow down matrix products beside
// them less than blocks that stay. Throws only the error of this launch. An error that an earlier
// launch left stays for the runtime to report.
template <bool Pack>
void launch(const packed_tensor& what, cudaStream_t on) {
  if (what.bytes == 0) return;
  const auto blocks = std::max<std::size_t>((what.records + warps - 1) / warps, 1);
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(static_cast<unsigned>(blocks));
  how.blockDim = dim3(threads);
  how.stream = on;
  tidepool::detail::cuda_check(cudaLaunchKernelEx(&how, pack_kernel<Pack>, what),
                               Pack ? "pack" : "unpack", tidepool::detail::cuda_launch_remedy);
}

}  // namespace tidepool::pack_form::detail

namespace tidepool::inline v0_3_0::pack_form {

/// Queues the packing of a tensor on `on`; see `pack`. `spill` is pinned host memory or device
/// memory, and all starts are multiples of `alignment`.
inline void pack_on(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes,
                    cudaStream_t on) {
  const auto of = [](const std::byte* at) {
    return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(at));
  };
  detail::launch<true>({of(packed), of(spill), of(tensor), bytes, records_of(bytes)}, on);
}

/// Queues the unpacking of a tensor on `on`; see `unpack` and `pack_on`.
inline void unpack_on(std::byte* tensor, const std::byte* packed, const std::byte* spill,
                      std::size_t bytes, cudaStream_t on) {
  const auto of = [](const std::byte* at) {
    return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(at));
  };
  detail::launch<false>({of(packed), of(spill), of(tensor), bytes, records_of(bytes)}, on);
}

}  // namespace tidepool::pack_form
