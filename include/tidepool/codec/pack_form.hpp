/// The packed form of BF16 numbers: fewer bytes for the link, and every bit comes back.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tidepool/core/linkage.hpp"
#include "tidepool/version.hpp"

namespace tidepool::inline v0_3_0::pack_form {

// The exponents of activations are close together: their 8 bits carry 2.5 to 3.2 bits of entropy. A
// record stands for 512 numbers. A block of 64 numbers shares a base, its largest exponent, and
// each number keeps the distance of its exponent from the base:
//   0 to 6      in 3 bits
//   7 to 21     3 bits of ones, and the distance less 7 in a nibble of the record's pool
//   exponent 0  3 bits of ones, and the nibble 15: zero and subnormal numbers
// A record with any other distance, or with an infinity or a NaN, keeps its numbers as they are.
//
// Layout of a record of 736 bytes, little-endian:
//   0    512 bytes   sign and mantissa of each number
//   512  4 * 32      a word for each 16 numbers: the codes of the first eight, a nibble each; the
//                    nibble's bit 3 is bit 0 of the code of one of the last eight
//   640  2 * 32      two bytes for each 16 numbers: bits 1 and 2 of the codes of the last eight
//   704  24          the pool's first 48 nibbles, low half first
//   728  8           bases; the first is 255 in a record that keeps its numbers as they are
// The nibbles after the 48th spill, as does the rest of a record that keeps its numbers: 288 bytes
// for each of 16 records, and then a byte for each, which the mark 255 hides. Parts of a tensor
// that begin at every 16th record therefore have a spill of their own.

inline constexpr std::size_t numbers_of_record = 512;  ///< numbers of a record
inline constexpr std::size_t numbers_of_block = 64;    ///< numbers with one base
inline constexpr std::size_t numbers_of_lane = 16;     ///< numbers whose codes lie together
inline constexpr std::size_t tensor_record = numbers_of_record * 2;  ///< bytes of a record as it is
inline constexpr std::size_t lanes = numbers_of_record / numbers_of_lane;  ///< of a record
inline constexpr std::size_t codes_at = numbers_of_record;     ///< offset of the codes' words
inline constexpr std::size_t upper_at = codes_at + 4 * lanes;  ///< offset of their upper bits
inline constexpr std::size_t pool_at = upper_at + 2 * lanes;   ///< offset of the pool
inline constexpr std::size_t pool_bytes = 24;                  ///< bytes of the pool
inline constexpr std::size_t bases_at = pool_at + pool_bytes;  ///< offset of the bases
/// Bytes of a packed record.
inline constexpr std::size_t packed_record = bases_at + numbers_of_record / numbers_of_block;
/// Bytes of a record's spill, without the byte that the mark hides.
inline constexpr std::size_t spill_record = tensor_record - packed_record;

/// Records whose spill lies together, with the bytes that the mark hides at the end.
inline constexpr std::size_t records_of_spill = 16;

/// Tensors that kernels pack, and their parts, start at a multiple of it, in bytes.
inline constexpr std::size_t alignment = 16;

inline constexpr unsigned nearest = 7;       ///< distances below it need no nibble
inline constexpr unsigned farthest = 21;     ///< the largest distance that a nibble has room for
inline constexpr unsigned no_exponent = 15;  ///< the nibble of exponent 0
inline constexpr unsigned mark = 255;        ///< first base of a record as it is

static_assert(packed_record == 736 && spill_record == 288);
static_assert(spill_record >= numbers_of_record / 2 - pool_bytes, "every nibble has room");
static_assert(std::endian::native == std::endian::little);

/// Whole records of a tensor. The tensor's last bytes, less than a record, travel as they are.
[[nodiscard]] constexpr std::size_t records_of(std::size_t tensor_bytes) {
  return tensor_bytes / tensor_record;
}
/// Bytes that the link carries for a tensor of `tensor_bytes`.
[[nodiscard]] constexpr std::size_t packed_bytes(std::size_t tensor_bytes) {
  return records_of(tensor_bytes) * packed_record + tensor_bytes % tensor_record;
}
/// Bytes of host memory for what does not fit into the packed form. The device writes and reads
/// them in place, and only where they are needed.
[[nodiscard]] constexpr std::size_t spill_bytes(std::size_t tensor_bytes) {
  return records_of(tensor_bytes) * (spill_record + 1);
}
/// The place to which a record spills, in bytes from the start of a tensor's spill.
struct spill_place {
  std::size_t rest;    ///< of its nibbles, or of its numbers
  std::size_t hidden;  ///< of the byte that the mark hides
};
/// Returns the place to which record `i` of a tensor spills.
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr spill_place spill_of(std::size_t i,
                                                                        std::size_t records) {
  const auto first = i - i % records_of_spill;
  const auto left = records - first;
  const auto together = left < records_of_spill ? left : records_of_spill;
  const auto start = first * (spill_record + 1);
  return {start + (i - first) * spill_record, start + together * spill_record + (i - first)};
}
/// The place of the spill in the host memory of a tensor, behind the packed form, in bytes.
[[nodiscard]] constexpr std::size_t spill_at(std::size_t tensor_bytes) {
  return (packed_bytes(tensor_bytes) + alignment - 1) / alignment * alignment;
}
/// Bytes of host memory for a tensor: the packed form and the spill. They are 0.1 % more than the
/// tensor's, because a raw record needs one byte more than its numbers.
[[nodiscard]] constexpr std::size_t host_bytes(std::size_t tensor_bytes) {
  return spill_at(tensor_bytes) + spill_bytes(tensor_bytes);
}

/// True if a record of a packed tensor is raw: it keeps its numbers as they are.
[[nodiscard]] inline bool is_raw(const std::byte* packed, std::size_t record) {
  return static_cast<unsigned>(packed[record * packed_record + bases_at]) == mark;
}

/// The exponent of a BF16 number, biased.
[[nodiscard]] constexpr unsigned exponent_of(unsigned number) { return number >> 7 & 0xffU; }

namespace detail {

using numbers = std::array<std::uint16_t, numbers_of_record>;

// The codes of a record, 4 bits each. Position `i` has the code of number `number_at(i)`: a GPU
// works on two neighbours at once, whose codes are 16 bits apart.
using record_codes = std::array<std::uint32_t, numbers_of_record / 8>;
inline constexpr std::uint32_t of_each_nibble = 0x11111111;

// Four bits for each of a lane's numbers: its code, or its nibble of the pool. The first word has
// the first eight numbers: number 2 * i in nibble i, and number 2 * i + 1 in nibble 4 + i.
struct lane_nibbles {
  std::uint32_t words[2];
};

// The word of a lane's codes in a packed record, and their half word.
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr std::uint32_t word_of(
    const lane_nibbles& codes) {
  return codes.words[0] | (codes.words[1] & of_each_nibble) << 3;
}
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr std::uint16_t half_of(
    const lane_nibbles& codes) {
  const auto upper = codes.words[1] >> 1 & of_each_nibble * 3;
  return static_cast<std::uint16_t>(upper | upper >> 14);
}
// The reverse.
[[nodiscard]] TIDEPOOL_DETAIL_EVERYWHERE constexpr lane_nibbles codes_of(std::uint32_t word,
                                                                         std::uint32_t half) {
  const auto upper = (half & 0x3333U) | (half & 0xccccU) << 14;
  return {{word & of_each_nibble * 7, (word >> 3 & of_each_nibble) | upper << 1}};
}

[[nodiscard]] constexpr std::size_t number_at(std::size_t i) {
  return i - i % 8 + i % 4 * 2 + i % 8 / 4;
}

inline void write_codes(std::byte* packed, const record_codes& codes) {
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const lane_nibbles of{{codes[lane * 2], codes[lane * 2 + 1]}};
    const auto word = word_of(of);
    const auto half = half_of(of);
    std::memcpy(packed + codes_at + lane * sizeof word, &word, sizeof word);
    std::memcpy(packed + upper_at + lane * sizeof half, &half, sizeof half);
  }
}

inline void read_codes(record_codes& codes, const std::byte* packed) {
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    std::uint32_t word = 0;
    std::uint16_t half = 0;
    std::memcpy(&word, packed + codes_at + lane * sizeof word, sizeof word);
    std::memcpy(&half, packed + upper_at + lane * sizeof half, sizeof half);
    std::memcpy(&codes[lane * 2], codes_of(word, half).words, sizeof(lane_nibbles));
  }
}

struct distances {
  std::array<std::uint8_t, numbers_of_record / numbers_of_block> bases{};
  record_codes codes{};
  std::array<std::uint8_t, numbers_of_record / 2> pool{};
  std::size_t used = 0;  // nibbles of the pool
};

// Returns false if the form has no code for one of the distances.
[[nodiscard]] inline bool measure(const numbers& from, distances& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    auto& base = to.bases[i / numbers_of_block];
    base = std::max(base, static_cast<std::uint8_t>(exponent_of(from[i])));
  }
  if (std::ranges::max(to.bases) == mark) return false;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto exponent = exponent_of(from[number_at(i)]);
    const auto distance = to.bases[i / numbers_of_block] - exponent;
    const auto code = std::min(distance, nearest);
    to.codes[i / 8] |= code << i % 8 * 4;
    if (code < nearest) continue;
    if (distance > farthest && exponent != 0) return false;
    const auto nibble = distance > farthest ? no_exponent : distance - nearest;
    auto& pair = to.pool[to.used / 2];
    pair = static_cast<std::uint8_t>(pair | nibble << to.used % 2 * 4);
    ++to.used;
  }
  return true;
}

inline void pack_record(std::byte* packed, std::byte* spill, std::byte& hidden,
                        const std::byte* tensor) {
  numbers from;
  std::memcpy(from.data(), tensor, tensor_record);
  distances to;
  if (!measure(from, to)) {
    std::memcpy(packed, tensor, packed_record);
    hidden = tensor[bases_at];
    packed[bases_at] = static_cast<std::byte>(mark);
    std::memcpy(spill, tensor + packed_record, spill_record);
    return;
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    packed[i] = static_cast<std::byte>((from[i] >> 8 & 0x80U) | (from[i] & 0x7fU));
  }
  write_codes(packed, to.codes);
  std::memcpy(packed + pool_at, to.pool.data(), pool_bytes);
  std::memcpy(packed + bases_at, to.bases.data(), to.bases.size());
  const auto bytes = (to.used + 1) / 2;
  if (bytes > pool_bytes) std::memcpy(spill, to.pool.data() + pool_bytes, bytes - pool_bytes);
}

inline void unpack_record(std::byte* tensor, const std::byte* packed, const std::byte* spill,
                          std::byte hidden) {
  if (static_cast<unsigned>(packed[bases_at]) == mark) {
    std::memcpy(tensor, packed, packed_record);
    tensor[bases_at] = hidden;
    std::memcpy(tensor + packed_record, spill, spill_record);
    return;
  }
  record_codes codes;
  read_codes(codes, packed);
  std::size_t used = 0;
  numbers to;
  for (std::size_t i = 0; i < to.size(); ++i) {
    auto distance = codes[i / 8] >> i % 8 * 4 & 7U;
    const auto base = static_cast<unsigned>(packed[bases_at + i / numbers_of_block]);
    if (distance == nearest) {
      const auto pair = used / 2;
      const auto both = static_cast<unsigned>(pair < pool_bytes ? packed[pool_at + pair]
                                                                : spill[pair - pool_bytes]);
      const auto nibble = both >> used % 2 * 4 & 0xfU;
      distance = nibble == no_exponent ? base : nibble + nearest;
      ++used;
    }
    const auto number = number_at(i);
    const auto rest = static_cast<unsigned>(packed[number]);
    to[number] =
        static_cast<std::uint16_t>((rest & 0x80U) << 8 | (base - distance) << 7 | (rest & 0x7fU));
  }
  std::memcpy(tensor, to.data(), tensor_record);
}

}  // namespace detail

/// Packs `bytes` of BF16 numbers on the processor: `packed_bytes(bytes)` into `packed`,
/// `spill_bytes(bytes)` into `spill`. Any bits are allowed. The parts must not overlap.
inline void pack(std::byte* packed, std::byte* spill, const std::byte* tensor, std::size_t bytes) {
  const auto records = records_of(bytes);
  for (std::size_t i = 0; i < records; ++i) {
    const auto at = spill_of(i, records);
    detail::pack_record(packed + i * packed_record, spill + at.rest, spill[at.hidden],
                        tensor + i * tensor_record);
  }
  const auto tail = bytes % tensor_record;
  if (tail > 0) {
    std::memcpy(packed + records * packed_record, tensor + records * tensor_record, tail);
  }
}

/// Brings the numbers that `pack` packed back, bit for bit.
inline void unpack(std::byte* tensor, const std::byte* packed, const std::byte* spill,
                   std::size_t bytes) {
  const auto records = records_of(bytes);
  for (std::size_t i = 0; i < records; ++i) {
    const auto at = spill_of(i, records);
    detail::unpack_record(tensor + i * tensor_record, packed + i * packed_record, spill + at.rest,
                          spill[at.hidden]);
  }
  const auto tail = bytes % tensor_record;
  if (tail > 0) {
    std::memcpy(tensor + records * tensor_record, packed + records * packed_record, tail);
  }
}

}  // namespace tidepool::pack_form
