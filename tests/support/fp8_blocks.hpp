/// BF16 numbers that are hard to encode, and what the FP8 codec makes of numbers on the CPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tidepool/codec/fp8_numbers.hpp"

namespace tidepool::test {

[[nodiscard]] inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

[[nodiscard]] inline double value_of(std::uint16_t number) {
  return std::bit_cast<float>(std::uint32_t{number} << 16);
}

/// To nearest, ties to even; for finite values within BF16's range.
[[nodiscard]] inline std::uint16_t bf16_of(double value) {
  const auto bits = bits_of(static_cast<float>(value));
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

/// Numbers as codes and scales, and what these stand for.
struct coded_numbers {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  std::vector<std::uint16_t> back;
};

[[nodiscard]] inline coded_numbers coded(const std::vector<std::uint16_t>& numbers) {
  coded_numbers made{std::vector<std::uint8_t>(numbers.size()),
                     std::vector<float>(codec::blocks_in(numbers.size())),
                     std::vector<std::uint16_t>(numbers.size())};
  codec::encode(made.codes.data(), made.scales.data(), numbers.data(), numbers.size());
  codec::decode(made.back.data(), made.codes.data(), made.scales.data(), numbers.size());
  return made;
}

/// Tensors by name, each with a tail shorter than a block.
[[nodiscard]] inline std::vector<std::pair<std::string, std::vector<std::uint16_t>>> hard_blocks() {
  constexpr std::size_t elements = 40 * codec::block + 77;
  std::mt19937_64 random(20261122);
  const auto draw = [&](auto each) {
    std::vector<std::uint16_t> numbers(elements);
    for (std::size_t i = 0; i < elements; ++i) numbers[i] = each(i);
    return numbers;
  };
  std::normal_distribution<double> normal;
  std::vector<std::pair<std::string, std::vector<std::uint16_t>>> all;
  all.emplace_back("normal", draw([&](std::size_t) { return bf16_of(normal(random)); }));
  all.emplace_back("heavy tails", draw([&](std::size_t) {
                     return bf16_of(normal(random) * std::exp(3 * normal(random)));
                   }));
  all.emplace_back("one outlier a block", draw([&](std::size_t i) {
                     return bf16_of(normal(random) * (i % codec::block == 11 ? 1e6 : 1));
                   }));
  all.emplace_back(
      "zeros and subnormals", draw([&](std::size_t i) {
        return static_cast<std::uint16_t>(i / codec::block % 4 == 0 ? 0 : random() & 0x807fU);
      }));
  all.emplace_back(
      "small", draw([&](std::size_t i) {
        return static_cast<std::uint16_t>(random() % (0x80U + i) | (random() & 0x8000U));
      }));
  all.emplace_back(
      "huge", draw([&](std::size_t) {
        return static_cast<std::uint16_t>((0x7f7fU - random() % 0x300) | (random() & 0x8000U));
      }));
  all.emplace_back("any finite bits", draw([&](std::size_t) {
                     const auto bits = static_cast<std::uint16_t>(random());
                     return (bits & 0x7f80U) == 0x7f80U ? std::uint16_t{0} : bits;
                   }));
  all.emplace_back("any bits",
                   draw([&](std::size_t) { return static_cast<std::uint16_t>(random()); }));
  all.emplace_back("not finite among few", draw([&](std::size_t i) {
                     if (i % 97 == 5)
                       return static_cast<std::uint16_t>(i % 2 == 0 ? 0xff80 : 0x7f80);
                     if (i % 101 == 7) return static_cast<std::uint16_t>(0x7f81U + random() % 126);
                     return bf16_of(normal(random));
                   }));
  return all;
}

}  // namespace tidepool::test
