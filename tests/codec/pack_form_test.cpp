// The packed form of BF16 numbers: any bits come back, and sizes are constant.
#include "tidepool/codec/pack_form.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "bf16_tensors.hpp"

namespace {

namespace form = tidepool::pack_form;

using tidepool::test::bf16_kind;
using tidepool::test::bf16_kinds;
using tidepool::test::bf16_numbers;
using tidepool::test::bf16_tensor;

struct packed {
  std::vector<std::byte> link, spill;
};

packed pack(std::span<const std::byte> tensor) {
  // A byte after each part must stay as it is.
  packed to{std::vector<std::byte>(form::packed_bytes(tensor.size()) + 1, std::byte{0xa5}),
            std::vector<std::byte>(form::spill_bytes(tensor.size()) + 1, std::byte{0xa5})};
  form::pack(to.link.data(), to.spill.data(), tensor.data(), tensor.size());
  REQUIRE(to.link.back() == std::byte{0xa5});
  REQUIRE(to.spill.back() == std::byte{0xa5});
  return to;
}

bool comes_back(std::span<const std::byte> tensor) {
  const auto kept = pack(tensor);
  std::vector<std::byte> back(tensor.size() + 1, std::byte{0x5a});
  form::unpack(back.data(), kept.link.data(), kept.spill.data(), tensor.size());
  REQUIRE(back.back() == std::byte{0x5a});
  return std::equal(tensor.begin(), tensor.end(), back.begin());
}

}  // namespace

TEST_CASE("the bits of 10 000 tensors of every kind come back") {
  std::mt19937 from(20261129);
  std::size_t wrong = 0;
  for (int i = 0; i < 10'000; ++i) {
    // Odd counts of bytes as well: the end of a tensor is no whole record.
    const auto tensor = bf16_tensor(bf16_kinds[static_cast<std::size_t>(i) % bf16_kinds.size()],
                                    from() % 2'000, from);
    const auto bytes = std::as_bytes(std::span(tensor));
    if (!comes_back(bytes.first(bytes.size() - (bytes.empty() ? 0 : from() % 2)))) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("every pair of a base and an exponent comes back") {
  std::size_t wrong = 0;
  bf16_numbers tensor(form::numbers_of_record);
  for (unsigned base = 0; base < 256; ++base) {
    for (unsigned exponent = 0; exponent <= base; ++exponent) {
      for (auto& each : tensor) each = static_cast<std::uint16_t>(exponent << 7 | 0x8055U);
      for (std::size_t block = 0; block < tensor.size(); block += form::numbers_of_block) {
        tensor[block + exponent % form::numbers_of_block] = static_cast<std::uint16_t>(base << 7);
      }
      if (!comes_back(std::as_bytes(std::span(tensor)))) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("gaussian numbers leave the spill nearly alone, random words fill it") {
  std::mt19937 from(1);
  const auto share = [&](bf16_kind what) {
    const auto tensor = bf16_tensor(what, form::numbers_of_record * 400, from);
    const auto kept = pack(std::as_bytes(std::span(tensor)));
    std::size_t spilled = 0;
    for (const auto each : kept.spill) spilled += each != std::byte{0xa5} ? 1 : 0;
    return static_cast<double>(spilled) / static_cast<double>(kept.spill.size());
  };
  CHECK(share(bf16_kind::gauss) < 0.01);
  CHECK(share(bf16_kind::random) > 0.98);
}

TEST_CASE("sizes depend on the bytes alone") {
  constexpr std::size_t gib = std::size_t{1} << 30;
  CHECK(form::packed_bytes(gib) == gib / 1024 * 736);
  CHECK(form::host_bytes(gib) == gib / 1024 * 1025);
  CHECK(form::packed_bytes(1023) == 1023);
  CHECK(form::host_bytes(1023) == 1024);
  CHECK(form::packed_bytes(1025) == 737);
  CHECK(form::spill_at(1025) == 752);
}
