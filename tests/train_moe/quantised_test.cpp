/// Codes of FP8 and their scales, as the trainer saves them: one group, which comes back to the
/// bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tidepool/tidepool.hpp>
#include <vector>

#include "../../examples/train_moe/kernels/cpu/numbers.hpp"

namespace {

using moe::bf16;
using moe::e4m3;
using moe::fp8_scaling;
using device = tidepool::virtual_device;
using modules = tidepool::modules<"expert_fc1">;
using moe::number_type;

constexpr moe::index rows = 24, width = 200, layers = 6;

struct bench {
  explicit bench(const tidepool::options& opt)
      : stream(dev.make_stream()), kernels(dev, stream.ref(), {}), off(dev, opt) {}

  device dev;
  device::stream stream;
  moe::cpu_numbers kernels;
  tidepool::offloader<device, modules> off;
};

tidepool::options offload_everything() {
  tidepool::options opt;
  opt.offload_modules = {"expert_fc1"};
  opt.min_tensor_elements = 1;
  opt.margin = false;
  return opt;
}

template <class T>
std::vector<std::byte> bytes_of(const T* from, std::size_t count) {
  std::vector<std::byte> bytes(count * sizeof(T));
  std::memcpy(bytes.data(), from, bytes.size());
  return bytes;
}

std::vector<bf16> numbers(std::uint64_t seed) {
  std::vector<bf16> result;
  for (moe::index i = 0; i < rows * width; ++i) {
    const auto bits = moe::mix(seed + static_cast<std::uint64_t>(i));
    const float unit = static_cast<float>(bits >> 40) * 0x1p-23F - 1;
    result.push_back(bf16(unit * (i / width % 3 == 0 ? 1e-3F : 30.0F)));
  }
  return result;
}

TEST_CASE("codes and scales leave as one group and come back to the bit") {
  for (const fp8_scaling scaling : {fp8_scaling::tensor, fp8_scaling::block}) {
    bench on(offload_everything());
    const auto scales = static_cast<std::size_t>(moe::scale_count(rows, width, scaling));
    constexpr auto count = static_cast<std::size_t>(rows * width);
    for (int step = 0; step < 3; ++step) {
      auto chunk = on.off.begin();
      tidepool::buffer<device> codes[layers], scale[layers];
      std::vector<std::byte> codes_before[layers], scale_before[layers];
      for (int l = 0; l < layers; ++l) {
        auto x = numbers(static_cast<std::uint64_t>(100 * step + l));
        codes[l] = on.off.allocate<e4m3>(count, on.stream.ref());
        scale[l] = on.off.allocate<float>(scales, on.stream.ref());
        on.kernels.quantise({codes[l].as<e4m3>(), number_type::e4m3}, scale[l].as<float>(),
                            {x.data(), number_type::bf16}, rows, width, scaling);
        on.dev.synchronize(on.stream.ref());
        codes_before[l] = bytes_of(codes[l].as<e4m3>(), count);
        scale_before[l] = bytes_of(scale[l].as<float>(), scales);
        chunk.commit<"expert_fc1">(l, on.stream.ref(), codes[l], scale[l]);
        CHECK(!codes[l]);
        CHECK(!scale[l]);
      }
      chunk.end_forward();
      for (int l = layers; l-- > 0;) {
        chunk.restore<"expert_fc1">(l, on.stream.ref(), codes[l], scale[l]);
        on.dev.synchronize(on.stream.ref());
        CHECK(bytes_of(codes[l].as<e4m3>(), count) == codes_before[l]);
        CHECK(bytes_of(scale[l].as<float>(), scales) == scale_before[l]);
        codes[l].reset(on.stream.ref());
        scale[l].reset(on.stream.ref());
      }
      chunk.finish();
      on.off.end_step();
    }
    const auto module = on.off.counters().modules.front();
    CHECK(module.groups_offloaded == 3 * layers);
    CHECK(module.bytes_offloaded == 3 * layers * (count + 4 * scales));
  }
}

TEST_CASE("what a code stands for is what was multiplied, and near what was quantised") {
  for (const fp8_scaling scaling : {fp8_scaling::tensor, fp8_scaling::block}) {
    bench on(offload_everything());
    const std::vector<bf16> before = numbers(5);
    auto multiplied = before;
    auto decoded = before;
    std::vector<e4m3> codes(before.size());
    std::vector<float> scale(static_cast<std::size_t>(moe::scale_count(rows, width, scaling)));
    const moe::operand to{codes.data(), number_type::e4m3};
    on.kernels.quantise(to, scale.data(), {multiplied.data(), number_type::bf16}, rows, width,
                        scaling);
    on.kernels.dequantise({decoded.data(), number_type::bf16}, to, scale.data(), rows, width,
                          scaling);
    on.dev.synchronize(on.stream.ref());
    for (std::size_t i = 0; i < before.size(); ++i) {
      REQUIRE(decoded[i].bits == multiplied[i].bits);
      const auto x = static_cast<float>(before[i]);
      const std::size_t block = i / width * 2 + i % width / 128;
      const float step = scale[scaling == fp8_scaling::tensor ? 0 : block];
      REQUIRE(std::abs(static_cast<float>(decoded[i]) - x) <= std::abs(x) / 16 + step * 0x1p-10F);
    }
  }
}

TEST_CASE("codes of a weight lie along the sum, and one scale covers a square of it") {
  constexpr moe::index in = 300, out = 200;  // three blocks and two, the last of each shorter
  for (const fp8_scaling scaling : {fp8_scaling::tensor, fp8_scaling::block}) {
    bench on(offload_everything());
    const bool blocks = scaling == fp8_scaling::block;
    std::vector<float> w, largest(blocks ? 6 : 1);
    const auto square = [&](moe::index r, moe::index c) {
      return static_cast<std::size_t>(blocks ? c / 128 * 3 + r / 128 : 0);
    };
    for (moe::index i = 0; i < in * out; ++i) {
      const auto bits = moe::mix(static_cast<std::uint64_t>(i));
      const float unit = static_cast<float>(bits >> 40) * 0x1p-23F - 1;
      w.push_back(std::ldexp(unit, static_cast<int>(i / out / 128 * 3 - i % out / 128 * 5)));
      float& most = largest[square(i / out, i % out)];
      most = std::max(most, std::abs(w.back()));
    }
    std::vector<e4m3> codes(w.size()), as_it_lies(w.size());
    std::vector<bf16> decoded(w.size());
    const auto turned_at = static_cast<std::size_t>(moe::turned_scales_at(in, out, scaling));
    std::vector<float> scale(
        turned_at + static_cast<std::size_t>(moe::weight_scale_count(out, in, scaling)), -1);
    on.kernels.quantise_weight({codes.data(), number_type::e4m3}, scale.data(),
                               {as_it_lies.data(), number_type::e4m3}, w.data(), in, out, scaling);
    on.kernels.quantise_weight({codes.data(), number_type::e4m3}, scale.data(),
                               {decoded.data(), number_type::bf16}, w.data(), in, out, scaling);
    on.dev.synchronize(on.stream.ref());
    for (moe::index r = 0; r < in; ++r) {
      for (moe::index c = 0; c < out; ++c) {
        const auto at = static_cast<std::size_t>(r * out + c);
        // Rows of three scales are filled up to four.
        const float step = scale[static_cast<std::size_t>(blocks ? c / 128 * 4 + r / 128 : 0)];
        REQUIRE(step == moe::fp8_scale<e4m3>(largest[square(r, c)]));
        const e4m3 code = codes[static_cast<std::size_t>(c * in + r)];
        REQUIRE(code.bits == e4m3(w[at] / step).bits);
        REQUIRE(static_cast<float>(decoded[at]) == static_cast<float>(code) * step);
        REQUIRE(as_it_lies[at].bits == code.bits);
        const auto turned = static_cast<std::size_t>(blocks ? r / 128 * 4 + c / 128 : 0);
        REQUIRE(scale[turned_at + turned] == step);
      }
    }
  }
}

TEST_CASE("an overflow is found wherever it is") {
  bench on(offload_everything());
  std::vector<float> numbers_to_search(1000, 1.0F);
  std::int32_t found = 7;
  const auto search = [&] {
    on.kernels.find_not_finite(&found, numbers_to_search.data(), 1000);
    on.dev.synchronize(on.stream.ref());
    return found;
  };
  CHECK(search() == 0);
  for (const float bad : {HUGE_VALF, -HUGE_VALF, NAN}) {
    for (const std::size_t at : {0UL, 500UL, 999UL}) {
      numbers_to_search[at] = bad;
      CHECK(search() == 1);
      numbers_to_search[at] = 1;
    }
  }
  CHECK(search() == 0);
}

}  // namespace
