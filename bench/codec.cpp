/// What the FP8 codec loses: its error on numbers of several distributions, beside that with scales
/// that are powers of two. On the CPU, whose bits are those of a GPU.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numbers>
#include <random>
#include <tidepool/codec/fp8_numbers.hpp>
#include <vector>

#include "../examples/tools/voice.hpp"

namespace {

namespace codec = tidepool::codec;

constexpr std::size_t elements = std::size_t{1} << 22;

double value_of(std::uint16_t number) { return std::bit_cast<float>(std::uint32_t{number} << 16); }

std::uint16_t bf16_of(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

// The same numbers from every standard library.
class source {
 public:
  double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  double normal() {
    return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
  }
  // Three degrees of freedom: no fourth moment.
  double student() {
    double squares = 0;
    for (int i = 0; i < 3; ++i) squares += std::pow(normal(), 2);
    return normal() / std::sqrt(squares / 3);
  }

 private:
  std::mt19937_64 bits_{1};
};

struct errors {
  double rms = 0;       // of all errors, over that of the numbers
  double relative = 0;  // the largest of |y - x| / |x| where the code is not subnormal
  double of_block = 0;  // the largest of |y - x|, over the largest magnitude of its block
  double subnormal = 0;
  double zeroed = 0;   // shares of the numbers that are not zero
  bool within = true;  // the bound that is documented
};

// `decoded(i, scale)` is what number i comes back as.
template <class Decoded>
errors measure(const std::vector<std::uint16_t>& numbers, const std::vector<double>& scales,
               Decoded decoded) {
  errors found;
  double error_squares = 0, squares = 0, largest = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i % codec::block == 0) {
      largest = 0;
      for (std::size_t k = i; k < std::min(i + codec::block, numbers.size()); ++k) {
        largest = std::max(largest, std::abs(value_of(numbers[k])));
      }
    }
    const double scale = scales[i / codec::block];
    const double x = value_of(numbers[i]), y = decoded(i, scale), off = std::abs(y - x);
    error_squares += off * off;
    squares += x * x;
    found.of_block = std::max(found.of_block, off / largest);
    if (std::abs(x) >= scale / 64) {
      found.relative = std::max(found.relative, off / std::abs(x));
    } else if (x != 0) {
      found.subnormal += 1;
      found.zeroed += y == 0 ? 1 : 0;
    }
    found.within = found.within && off <= std::max(0.063 * std::abs(x), scale / 990);
  }
  const auto count = static_cast<double>(numbers.size());
  found.rms = std::sqrt(error_squares / squares);
  found.subnormal /= count;
  found.zeroed /= count;
  return found;
}

errors of_codec(const std::vector<std::uint16_t>& numbers) {
  std::vector<std::uint8_t> codes(numbers.size());
  std::vector<float> scales(codec::blocks_in(numbers.size()));
  std::vector<std::uint16_t> back(numbers.size());
  codec::encode(codes.data(), scales.data(), numbers.data(), numbers.size());
  codec::decode(back.data(), codes.data(), scales.data(), numbers.size());
  return measure(numbers, {scales.begin(), scales.end()},
                 [&](std::size_t i, double) { return value_of(back[i]); });
}

// The other rule: the least power of two with which the largest number fits, so that what comes
// back needs no rounding to BF16.
errors of_powers_of_two(const std::vector<std::uint16_t>& numbers) {
  std::vector<double> scales(codec::blocks_in(numbers.size()), 0x1p-124);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    auto& scale = scales[i / codec::block];
    while (std::abs(value_of(numbers[i])) > 448 * scale) scale *= 2;
  }
  return measure(numbers, scales, [&](std::size_t i, double scale) {
    const double scaled = value_of(numbers[i]) / scale;
    if (scaled == 0) return 0.0;
    const double last_place = std::ldexp(1, std::max(std::ilogb(scaled), -6) - 3);
    return std::nearbyint(scaled / last_place) * last_place * scale;
  });
}

int measure_all() {
  struct kind {
    const char* name;
    std::function<double(source&, std::size_t)> draw;
  };
  const std::vector<kind> kinds{
      {"normal(0, 1)", [](source& from, std::size_t) { return from.normal(); }},
      {"Student t, 3 degrees", [](source& from, std::size_t) { return from.student(); }},
      {"normal * exp(2 normal)",
       [](source& from, std::size_t) {
         const double wide = std::exp(2 * from.normal());
         return from.normal() * wide;
       }},
      {"normal, 1 of 128 * 1000",
       [](source& from, std::size_t i) { return from.normal() * (i % 128 == 37 ? 1000 : 1); }}};

  std::printf("%zu numbers each; blocks of %zu, %.4f bytes a number instead of 2\n", elements,
              codec::block,
              static_cast<double>(codec::packed_bytes(elements)) / static_cast<double>(elements));
  std::printf("%-24s %-12s %10s %12s %14s %11s %9s\n", "numbers", "scale", "RMS error",
              "largest |e|/|x|", "largest |e|/amax", "subnormal", "to zero");
  bool within = true;
  for (const auto& each : kinds) {
    source from;
    std::vector<std::uint16_t> numbers(elements);
    for (std::size_t i = 0; i < elements; ++i) numbers[i] = bf16_of(each.draw(from, i));
    const auto print = [&](const char* scale, const errors& e) {
      std::printf("%-24s %-12s %8.3f %% %13.3f %% %14.3f %% %9.3f %% %7.3f %%\n", each.name, scale,
                  100 * e.rms, 100 * e.relative, 100 * e.of_block, 100 * e.subnormal,
                  100 * e.zeroed);
    };
    const auto ours = of_codec(numbers);
    print("amax / 448", ours);
    print("power of two", of_powers_of_two(numbers));
    within = within && ours.within;
  }
  std::printf("every error within max(6.3 %% of |x|, scale/990): %s\n", within ? "yes" : "NO");
  return within ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const tools::about me{"bench_codec", "Measures what the FP8 codec loses; no device is used."};
  return tools::run(me.name, [&] {
    tools::no_options(me, argc, argv);
    return measure_all();
  });
}
