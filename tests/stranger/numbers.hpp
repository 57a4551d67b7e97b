// What tensors hold: words of their number and version, among them BF16 numbers of every kind.
// Programs that --shrink prints include it, too.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tidepool/buffer.hpp>

namespace stranger {

// A BF16 number of the trainer's own, and four of them at once, as arrays of layers have them.
struct number {
  std::uint16_t bits;
};
struct quad {
  std::uint64_t bits;
};

[[nodiscard]] inline std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 31)) * 0xBF58476D1CE4E5B9U;
  return z ^ (z >> 28);
}

// The exponent of one number of a tensor, by what it is like; `random` has 16 bits.
[[nodiscard]] inline unsigned exponent_like(unsigned kind, unsigned random) {
  const unsigned small = random % 1024;
  switch (kind) {
    case 0:  // all close together
      return 120 - random % 7;
    case 1:  // like a normal distribution
      return 127 - static_cast<unsigned>(std::countr_zero(random | 0x8000U));
    case 2:  // many far from the largest
      return random % 8 == 0 ? 140 : 140 - 7 - random / 8 % 15;
    case 3:  // zeros and subnormal numbers among others
      return random % 2 == 0 ? 0 : 100 - random / 2 % 4;
    case 4: {  // at the limits of the form
      static constexpr unsigned distances[]{0, 6, 7, 8, 20, 21, 21, 14};
      return small == 1 ? 130 - 22 : 130 - distances[random / 1024 % 8];
    }
    case 5:  // now and then a NaN or an infinity
      return small == 1 ? 255 : 125 - random % 9;
    case 6:  // small ones, down to nothing
      return 21 - random % 22;
    case 7:  // as large as may be
      return 254 - random % 22;
    case 8:  // nothing but zeros and subnormal numbers
      return 0;
    default:
      return random % 256;
  }
}

// The word at `offset`, a multiple of 8.
[[nodiscard]] inline std::uint64_t word_of(std::uint64_t id, std::uint64_t version,
                                           std::uint64_t offset) {
  const auto z = mixed(id * 0x9E3779B97F4A7C15U + version * 0xC2B2AE3D27D4EB4FU +
                       offset * 0x165667B19E3779F9U);
  const auto plain = z >> 1;  // never the poison
  auto kind = mixed(id + 77) % 16;
  if (kind == 10) kind = mixed(id + offset / 1024) % 10;  // another in each record
  if (kind == 11) return offset / 512 % 2 == 0 ? plain : version % 2 << 15;  // zeros, or one -0
  if (kind > 9) return plain;
  const auto more = mixed(z + id);
  std::uint64_t word = z & 0x807f'807f'807f'807fU;
  for (unsigned i = 0; i < 64; i += 16) {
    const auto random = static_cast<unsigned>(more >> i & 0xffffU);
    word |= std::uint64_t{exponent_like(static_cast<unsigned>(kind), random)} << (i + 7);
  }
  return word;
}

// Version 0 stands for zeros, also below.
[[nodiscard]] inline std::uint64_t word_at(std::uint64_t id, std::uint64_t version,
                                           std::uint64_t offset) {
  return version == 0 ? 0 : word_of(id, version, offset);
}

inline void put_words(std::byte* at, std::size_t bytes, std::uint64_t id, std::uint64_t version,
                      std::size_t offset = 0) {
  for (std::size_t c = 0; c < bytes; c += 8) {
    const auto word = word_of(id, version, offset + c);
    std::memcpy(at + c, &word, std::min(bytes - c, std::size_t{8}));
  }
}

// The place of the first wrong word; `bytes` where all are right.
[[nodiscard]] inline std::size_t wrong_word(const std::byte* at, std::size_t bytes,
                                            std::uint64_t id, std::uint64_t version,
                                            std::size_t offset = 0) {
  for (std::size_t c = 0; c < bytes; c += 8) {
    const auto word = word_at(id, version, offset + c);
    if (std::memcmp(at + c, &word, std::min(bytes - c, std::size_t{8})) != 0) return c;
  }
  return bytes;
}

// What stands there instead, in words.
[[nodiscard]] inline const char* found_there(const std::byte* at, std::size_t bytes,
                                             std::uint64_t id, std::size_t offset,
                                             std::uint64_t versions) {
  const auto most = std::min(bytes, std::size_t{8});
  const auto is = [&](std::uint64_t word) { return std::memcmp(at, &word, most) == 0; };
  for (std::uint64_t other = 1; other < versions; ++other) {
    if (is(word_of(id, other, offset))) return "an old version";
  }
  return is(~std::uint64_t{}) ? "poison" : "other bytes";
}

}  // namespace stranger

namespace tidepool {
template <>
inline constexpr bool is_bfloat16<stranger::number> = true;
template <>
inline constexpr bool is_bfloat16<stranger::quad> = true;
}  // namespace tidepool

// CUDA's own, as cuda_bf16.h would define it.
struct __nv_bfloat16 {  // NOLINT(bugprone-reserved-identifier)
  std::uint16_t bits;
};
