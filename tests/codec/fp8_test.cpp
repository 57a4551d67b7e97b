// BF16 tensors that leave as FP8: through the engine, under little memory and caps.
#include "tidepool/codec/fp8.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fp8_blocks.hpp"
#include "messages.hpp"
#include "rig.hpp"

namespace {

namespace codec = tidepool::codec;
using tidepool::fp8_codec;
using tidepool::machine;
using tidepool::null_device;
using tidepool::option_error;
using tidepool::test::arena_options;
using tidepool::test::bf16_of;
using tidepool::test::coded;
using tidepool::test::coded_numbers;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;

using offloader = rig::offloader<tidepool::modules<"core_attn", "expert_fc1">>;
using packed_tensor = tidepool::fp8_tensor<rig::device_type>;

constexpr std::size_t elements = 3000;  // with a tail
constexpr int layers = 8;
constexpr std::size_t row_bytes = elements * sizeof(std::uint16_t);

std::vector<std::uint16_t> numbers_of(int tag) {
  std::vector<std::uint16_t> numbers(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    const auto mixed = rig::word(static_cast<std::uint32_t>(tag), i) * 2246822519U >> 9;
    numbers[i] = bf16_of((static_cast<double>(mixed) - 0x1p22) * (i % 900 == 7 ? 1e-3 : 1e-6));
  }
  return numbers;
}

// Kernels on the stream that write numbers and compare bytes.
class desk : public rig {
 public:
  using rig::rig;

  void write_numbers(const buffer& x, int tag) {
    dev.launch(stream(), 500, [to = x.data(), tag] {
      const auto numbers = numbers_of(tag);
      std::memcpy(to, numbers.data(), row_bytes);
    });
  }
  void check_bytes(const void* at, const void* expected, std::size_t bytes) {
    std::vector<std::byte> copy(bytes);
    std::memcpy(copy.data(), expected, bytes);
    dev.launch(stream(), 100, [this, at, copy = std::move(copy)] {
      if (std::memcmp(at, copy.data(), copy.size()) != 0) ++wrong_tensors;
      ++compared;
    });
  }
  void check_packed(const packed_tensor& packed, const coded_numbers& expected) {
    check_bytes(packed.codes(), expected.codes.data(), elements);
    check_bytes(packed.scales(), expected.scales.data(), expected.scales.size() * sizeof(float));
  }
  std::size_t wrong_tensors = 0;
  std::size_t compared = 0;
};

// Forward and backward of some layers: numbers are made, encoded, and leave at once.
void step(desk& on, offloader& off, int tag) {
  const fp8_codec fp8(on.dev);
  const auto stream = on.stream();
  std::array<packed_tensor, layers> saved;
  auto open = off.begin();
  for (int l = 0; l < layers; ++l) {
    auto x = off.allocate<std::uint16_t>(elements, stream);
    on.write_numbers(x, tag + l);
    auto& packed = saved[static_cast<std::size_t>(l)];
    packed = fp8.encode(off, x, elements, stream);
    x.reset(stream);
    open.commit<"expert_fc1">(l, stream, packed.data);
  }
  open.end_forward();
  for (int l = layers; l-- > 0;) {
    auto& packed = saved[static_cast<std::size_t>(l)];
    const auto expected = coded(numbers_of(tag + l));
    open.restore<"expert_fc1">(l, stream, packed.data);
    on.check_packed(packed, expected);
    auto y = fp8.decode(off, packed, stream);
    packed.reset(stream);
    on.check_bytes(y.data(), expected.back.data(), row_bytes);
    y.reset(stream);
  }
  open.finish();
  off.end_step();
}

machine ordered(std::uint64_t seed) {
  machine model;
  model.order_seed = seed;
  return model;
}

}  // namespace

TEST_CASE("fp8: codes and scales come back to the bit, in little memory and under caps") {
  for (std::uint64_t seed = 0; seed <= 20; ++seed) {
    for (const int cap : {-1, 0, 1, 3}) {
      CAPTURE(seed);
      CAPTURE(cap);
      desk on(ordered(seed));
      // One tensor and what became of two; in BF16 the layers would take three times that.
      auto opts = arena_options(16 * 1024, {"expert_fc1"});
      if (cap >= 0) opts.max_inflight = static_cast<std::size_t>(cap);
      offloader off(on.dev, opts);
      for (int i = 0; i < 3; ++i) step(on, off, 100 * i);
      on.dev.synchronize();
      REQUIRE(on.wrong_tensors == 0);
      REQUIRE(on.compared == 3 * 3 * layers);
      const auto seen = off.counters().modules[1];
      REQUIRE(seen.bytes_offloaded == 3 * layers * codec::packed_bytes(elements));
      REQUIRE(seen.bytes_reloaded >= seen.bytes_offloaded);  // more where reloads gave way
    }
  }
}

TEST_CASE(
    "fp8: half of the bytes and one fp32 for each block is all that is saved, and all that a plan "
    "counts") {
  desk on;
  offloader off(on.dev, small_options({"expert_fc1"}));
  step(on, off, 0);
  on.dev.synchronize();
  const auto bytes = codec::packed_bytes(elements);
  CHECK(bytes <= row_bytes / 2 + (elements / codec::block + 1) * sizeof(float) + 15);
  std::size_t groups = 0;
  for (const auto& each : off.profile().chunks.at(0).groups) {
    CHECK(each.bytes == bytes);
    ++groups;
  }
  CHECK(groups == layers);
}

TEST_CASE("fp8: scales are not too small to leave") {
  desk on;
  auto opts = small_options({"expert_fc1"});
  opts.min_tensor_elements = elements;
  offloader off(on.dev, opts);
  step(on, off, 0);
  CHECK(off.counters().modules[1].tensors_small == 0);
  CHECK(off.counters().modules[1].bytes_offloaded == layers * codec::packed_bytes(elements));
}

TEST_CASE("fp8: a whole step as a graph") {
  desk on;
  offloader off(on.dev, arena_options(16 * 1024, {"expert_fc1"}));
  for (int i = 0; i < 2; ++i) step(on, off, 5);
  auto graph = off.capture(on.stream(), [&] { step(on, off, 6); });
  on.dev.synchronize();
  const auto before = on.compared;
  for (int i = 0; i < 3; ++i) graph.launch(on.stream());
  step(on, off, 7);
  on.dev.synchronize();
  CHECK(on.compared == before + 4 * 3 * layers);
  CHECK(on.wrong_tensors == 0);
}

TEST_CASE("fp8: encoded again into memory that was discarded, the bits are the same") {
  desk on;
  auto opts = small_options({"core_attn"});
  opts.recompute_modules = {"expert_fc1"};
  offloader off(on.dev, opts);
  const fp8_codec fp8(on.dev);
  const auto stream = on.stream();
  auto open = off.begin();
  auto x = off.allocate<std::uint16_t>(elements, stream);
  on.write_numbers(x, 3);
  auto packed = fp8.encode(off, x, elements, stream);
  open.commit_or_discard<"expert_fc1">(0, stream, packed.data);
  CHECK_FALSE(packed);
  CHECK(packed.codes() == nullptr);
  CHECK(packed.scales() == nullptr);
  open.end_forward();
  open.restore_or_recompute<"expert_fc1">(
      0, stream, [&] { fp8.encode_into(packed, x, stream); }, packed.data);
  on.check_packed(packed, coded(numbers_of(3)));
  packed.reset(stream);
  x.reset(stream);
  open.finish();
  on.dev.synchronize();
  CHECK(on.compared == 2);
  CHECK(on.wrong_tensors == 0);
}

TEST_CASE("fp8: memory of the trainer's own, on both sides") {
  desk on;
  offloader off(on.dev, small_options());
  const fp8_codec fp8(on.dev);
  const auto stream = on.stream();
  auto* const own = static_cast<std::uint16_t*>(on.dev.allocate(row_bytes));
  const auto numbers = numbers_of(9);
  std::memcpy(own, numbers.data(), row_bytes);
  auto packed = fp8.encode(off, own, elements, stream);
  fp8.decode_into(own, packed, stream);
  auto y = off.allocate<std::uint16_t>(elements, stream);
  fp8.decode_into(y, packed, stream);
  const auto expected = coded(numbers);
  on.check_bytes(own, expected.back.data(), row_bytes);
  on.check_bytes(y.data(), expected.back.data(), row_bytes);
  packed.reset(stream);
  y.reset(stream);
  on.dev.synchronize();
  CHECK(on.wrong_tensors == 0);
  on.dev.deallocate(own);
}

TEST_CASE("fp8: between codes and scales there are zeros, since all of it is copied") {
  desk on;
  offloader off(on.dev, small_options());
  const fp8_codec fp8(on.dev);
  const auto stream = on.stream();
  constexpr std::size_t few = 13;
  auto* const own = static_cast<std::uint16_t*>(on.dev.allocate(row_bytes));
  std::memset(own, 0x3f, row_bytes);
  auto packed = fp8.encode(off, own, few, stream);
  const std::uint8_t zeros[3]{};
  on.check_bytes(packed.codes() + few, zeros, sizeof(zeros));
  packed.reset(stream);
  on.dev.synchronize();
  CHECK(on.wrong_tensors == 0);
  on.dev.deallocate(own);
}

TEST_CASE("fp8: kernels take their time on the virtual clock") {
  desk on;
  offloader off(on.dev, small_options());
  const fp8_codec fp8(on.dev, 0.5);
  const auto stream = on.stream();
  auto x = off.allocate<std::uint16_t>(elements, stream);
  on.write_numbers(x, 1);
  on.dev.synchronize();
  const auto before = on.dev.now_ns();
  auto packed = fp8.encode(off, x, elements, stream);
  on.dev.synchronize();
  const auto encoded = on.dev.now_ns();
  auto y = fp8.decode(off, packed, stream);
  on.dev.synchronize();
  const auto took = static_cast<double>(codec::packed_bytes(elements) + row_bytes) / 0.5;
  CHECK(encoded - before == doctest::Approx(took));
  CHECK(on.dev.now_ns() - encoded == doctest::Approx(took));
  CHECK_THROWS_AS(fp8_codec(on.dev, 0), option_error);
}

TEST_CASE("fp8: wrong arguments are refused with what to do, and change nothing") {
  desk on;
  offloader off(on.dev, small_options());
  const fp8_codec fp8(on.dev);
  const auto stream = on.stream();
  auto x = off.allocate<std::uint16_t>(elements, stream);
  on.write_numbers(x, 2);
  const auto reserved = off.counters().device_reserved;
  const auto encode = [&](const auto& from, std::size_t count) {
    return message_of([&] { static_cast<void>(fp8.encode(off, from, count, stream)); });
  };
  CHECK(says(encode(x, elements + 1), "3001 BF16 numbers do not fit in a buffer of 6000 bytes"));
  CHECK(says(encode(x, elements + 1), "give at most 3000"));
  CHECK(says(encode(x, static_cast<std::size_t>(-1)), "give at most 3000"));
  CHECK(says(encode(rig::buffer{}, elements), "committed, moved away or reset"));
  const void* const none = nullptr;
  CHECK(says(encode(none, elements), "is null"));
  const void* const crooked = x.as<std::byte>() + 2;
  CHECK(says(encode(crooked, 8), "multiple of 16 bytes"));
  // Of so many the codes and scales take 52 bytes, counted in 64 bits.
  constexpr auto overflowing = std::size_t{17'887'751'829'051'686'464U};
  const void* const start = x.data();
  CHECK(says(encode(start, overflowing), "did the count overflow"));
  CHECK(off.counters().device_reserved == reserved);

  auto packed = fp8.encode(off, x, elements, stream);
  const auto decode = [&](const packed_tensor& from) {
    return message_of([&] { static_cast<void>(fp8.decode(off, from, stream)); });
  };
  CHECK(says(decode(packed_tensor{}), "restore it first"));
  packed.elements = 2 * elements;
  CHECK(says(decode(packed), "leave `elements` as encode set it"));
  packed.elements = static_cast<std::size_t>(-1);
  CHECK(says(decode(packed), "leave `elements` as encode set it"));
  packed.elements = overflowing;
  CHECK(says(decode(packed), "leave `elements` as encode set it"));
  packed.elements = 0;
  CHECK(says(decode(packed), "leave `elements` as encode set it"));
  packed.elements = elements;
  auto small = off.allocate<std::uint16_t>(elements - 1, stream);
  CHECK(says(message_of([&] { fp8.decode_into(small, packed, stream); }), "give at most 2999"));
  CHECK(says(message_of([&] { fp8.encode_into(packed, small, stream); }), "give at most 2999"));
  CHECK(says(message_of([&] { fp8.encode_into({}, x, stream); }), "holds no memory"));
  const void* const numbers = x.data();
  CHECK(says(message_of([&] { fp8.encode_into({}, numbers, stream); }), "holds no memory"));

  on.check_packed(packed, coded(numbers_of(2)));
  on.dev.synchronize();
  CHECK(on.wrong_tensors == 0);
}

TEST_CASE("fp8: an arena without room says so, and x is as before") {
  desk on;
  offloader off(on.dev, arena_options(6144, {"expert_fc1"}));
  const fp8_codec fp8(on.dev);
  auto x = off.allocate<std::uint16_t>(elements, on.stream());
  CHECK_THROWS_AS(static_cast<void>(fp8.encode(off, x, elements, on.stream())),
                  tidepool::out_of_budget);
  CHECK(x);
}

TEST_CASE("fp8: on the null device it is calls alone") {
  null_device dev;
  const auto compute = dev.make_stream();
  tidepool::offloader<null_device> off(dev, small_options());
  const fp8_codec fp8(dev);
  auto x = off.allocate<std::uint16_t>(elements, compute.ref());
  auto packed = fp8.encode(off, x, elements, compute.ref());
  CHECK(packed.data.size() == codec::packed_bytes(elements));
  auto y = fp8.decode(off, packed, compute.ref());
  CHECK(y.size() == row_bytes);
}
