// What a checked device remembers, and that it is a device like the one that it checks.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <span>
#include <string>

#include "checked_training.hpp"
#include "tidepool/codec/pack_form.hpp"
#include "tidepool/device/null.hpp"

namespace {

using namespace tidepool;
using test::arena_options;
using test::checked;
using test::checked_offloader;
using test::checked_training;
using desk = test::checked_desk;
using test::tensor_bytes;

static_assert(capturing_device<checked> && filling_device<checked>);
static_assert(order_checking_device<checked>);
static_assert(filling_device<checked_device<null_device>>);
static_assert(!capturing_device<checked_device<null_device>>);
static_assert(!order_checking_device<virtual_device> && !order_checking_device<null_device>);

// Tensors of any size on one stream or two, whose streams meet once a step.
std::size_t largest_log(desk& at, int steps, bool both) {
  checked_offloader off(at.dev, arena_options(std::size_t{64} << 10));
  std::mt19937 random(7);
  std::size_t largest = 0;
  for (int s = 0; s < steps; ++s) {
    auto chunk = off.begin();
    std::array<desk::buffer, 6> saved;
    for (std::size_t l = 0; l < saved.size(); ++l) {
      saved[l] = off.allocate(256 + random() % 8000, at.compute.ref());
      at.write(saved[l], at.compute.ref());
      chunk.commit<"fc1">(static_cast<int>(l), at.compute.ref(), saved[l]);
    }
    chunk.end_forward();
    const auto& on = both ? at.side : at.compute;
    at.join(at.compute.ref(), on.ref());
    for (std::size_t l = saved.size(); l-- > 0;) {
      chunk.restore<"fc1">(static_cast<int>(l), on.ref(), saved[l]);
      at.dev.reads(saved[l].data(), 1 + random() % saved[l].size(), on.ref(), "part");
      saved[l].reset(on.ref());
    }
    chunk.finish();
    off.end_step();
    at.join(on.ref(), at.compute.ref());
    largest = std::max(largest, at.dev.log_size());
  }
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
  return largest;
}

}  // namespace

TEST_CASE("log: it stays as large as it was, though streams never meet the host") {
  for (const bool both : {false, true}) {
    CAPTURE(both);
    desk few;
    desk many;
    const auto soon = largest_log(few, 100, both);
    const auto late = largest_log(many, 3000, both);
    CAPTURE(soon);
    CAPTURE(late);
    CHECK(late <= 2 * std::max<std::size_t>(soon, 1024));
  }
}

// A race with something long ago is found all the same, since no stream has joined it.
TEST_CASE("log: what a stream has not joined is not forgotten") {
  desk at;
  std::array<float, 16> early{};
  at.dev.writes(std::span(early), at.side.ref(), "early");
  largest_log(at, 300, false);
  at.dev.reads(std::span(early), at.compute.ref(), "late");
  CHECK(at.found(finding_kind::unordered, access_kind::kernel_write, "side",
                 access_kind::kernel_read, "compute"));
}

TEST_CASE("log: a pair is told once, with how often it was found") {
  desk at;
  std::array<float, 16> sums{};
  for (int i = 0; i < 5; ++i) {
    at.dev.writes(std::span(sums), at.compute.ref(), "reduce");
    at.dev.reads(std::span(sums), at.side.ref(), "use");
    at.join(at.side.ref(), at.compute.ref());
  }
  REQUIRE(at.dev.findings().size() == 1);
  CHECK(at.dev.findings().at(0).times == 5);
  CHECK(at.dev.finding_count() == 5);
  CHECK(at.dev.report().find("found 5 times") != std::string::npos);
  CHECK(at.dev.report().find("order: 1 mistake found") != std::string::npos);
  at.dev.forget_findings();
  CHECK(at.dev.findings().empty());
}

TEST_CASE("log: at most so many pairs are told apart, and all are counted") {
  desk at;
  std::array<float, 200> sums{};
  for (std::size_t i = 0; i < sums.size(); ++i) {
    at.dev.writes(&sums[i], 4, at.compute.ref(), "kernel " + std::to_string(i));
    at.dev.reads(&sums[i], 4, at.side.ref(), "use");
  }
  CHECK(at.dev.findings().size() == 64);
  CHECK(at.dev.finding_count() == sums.size());
}

TEST_CASE("log: reads of what nothing has written do not count before a write was declared") {
  desk at;
  auto* const own = at.dev.allocate(64);
  at.dev.reads(own, 64, at.compute.ref(), "use");
  CHECK(at.dev.findings().empty());
  std::array<float, 16> sums{};
  at.dev.writes(std::span(sums), at.compute.ref(), "reduce");
  at.dev.check_unwritten(false);
  at.dev.reads(own, 64, at.compute.ref(), "use");
  CHECK(at.dev.findings().empty());
  at.dev.check_unwritten(true);
  at.dev.reads(own, 64, at.compute.ref(), "use");
  CHECK(at.dev.findings().size() == 1);
  at.dev.deallocate(own);
}

// CUDA gives the address of a stream that is gone to the next one.
TEST_CASE("log: a stream at the key of an old one is another, and the old one holds nothing up") {
  detail::order_clocks clocks;
  const auto other = clocks.made(1);
  const auto old = clocks.made(2);
  const auto position = clocks.issue(old);
  const auto fresh = clocks.made(2);
  CHECK(fresh != old);
  CHECK(clocks.of(2) == fresh);
  CHECK(!clocks.joined(old, position, fresh));
  clocks.wait(other, old);
  CHECK(clocks.everyone()[old] < position);
  clocks.wait(fresh, other);
  CHECK(clocks.everyone()[old] >= position);
  const auto later = clocks.issue(other);
  CHECK(clocks.everyone()[other] < later);
  clocks.wait(fresh, other);
  CHECK(clocks.everyone()[other] >= later);  // the old one never joins it
}

TEST_CASE("log: kernels of the virtual device say what they touch where they are launched") {
  desk at;
  float sum = 0;
  at.dev.launch(at.compute.ref(), 10, [&] { sum = 1; }, "reduce", {{&sum, 4, true}});
  at.dev.launch(at.side.ref(), 10, [] {}, "use", {{&sum, 4, false}});
  CHECK(at.found(finding_kind::unordered, access_kind::kernel_write, "compute",
                 access_kind::kernel_read, "side"));
  at.dev.synchronize();
  CHECK(sum == 1);
}

TEST_CASE("log: checking changes nothing that a device is given") {
  const auto counters = [](auto& dev) {
    using device = std::remove_reference_t<decltype(dev)>;
    offloader<device, modules<"fc1">> off(dev, arena_options(3 * tensor_bytes));
    const auto stream = dev.make_stream();
    for (int s = 0; s < 3; ++s) {
      auto chunk = off.begin();
      std::array<buffer<device>, 5> saved;
      for (std::size_t l = 0; l < saved.size(); ++l) {
        saved[l] = off.allocate(tensor_bytes, stream.ref());
        chunk.template commit<"fc1">(static_cast<int>(l), stream.ref(), saved[l]);
      }
      chunk.end_forward();
      for (std::size_t l = saved.size(); l-- > 0;) {
        chunk.template restore<"fc1">(static_cast<int>(l), stream.ref(), saved[l]);
        saved[l].reset(stream.ref());
      }
      chunk.finish();
      off.end_step();
    }
    dev.synchronize();
    return std::array<std::uint64_t, 3>{dev.records, dev.waits, dev.copies[0] + dev.copies[1]};
  };
  test::counting_device<virtual_device> plain;
  test::counting_device<checked> watched;
  CHECK(counters(plain) == counters(watched));
  CHECK(plain.now_ns() == watched.now_ns());
  CHECK(watched.findings().empty());
}

TEST_CASE("log: a null device is checked as any other") {
  checked_device<null_device> dev;
  const auto first = dev.make_stream();
  const auto second = dev.make_stream();
  offloader<checked_device<null_device>, modules<"fc1">> off(dev, test::small_options());
  auto chunk = off.begin();
  auto x = off.allocate(tensor_bytes, first.ref());
  dev.writes(x, first.ref(), "gelu");
  chunk.commit<"fc1">(0, second.ref(), x);
  REQUIRE(dev.findings().size() == 1);
  CHECK(dev.findings().at(0).missing == join_site::producer);
}

TEST_CASE("log: an access of no bytes changes nothing, and what comes behind it is judged") {
  checked dev;
  const auto compute = dev.make_stream();
  const auto side = dev.make_stream();
  auto* const data = dev.allocate(4096);
  dev.writes(data, 4096, compute.ref(), "gelu");
  dev.writes(data, 0, side.ref(), "an expert without tokens");
  dev.reads(data, 0, side.ref(), "an expert without tokens");
  CHECK(dev.findings().empty());
  dev.reads(data, 4096, side.ref(), "mix");
  REQUIRE(dev.findings().size() == 1);
  CHECK(dev.findings()[0].first.name == "gelu");
  CHECK(dev.findings()[0].bytes == 4096);
  dev.deallocate(data);
}

TEST_CASE("log: it knows every byte of a packed tensor's spill") {
  constexpr std::size_t records = 4;
  constexpr auto bytes = records * pack_form::tensor_record;
  for (const bool unpacks : {false, true}) {
    for (std::size_t byte = 0; byte < pack_form::spill_bytes(bytes); byte += 96) {
      CAPTURE(unpacks);
      CAPTURE(byte);
      desk at;
      auto* const tensor = static_cast<std::byte*>(at.dev.allocate(bytes));
      auto* const packed = static_cast<std::byte*>(at.dev.allocate(bytes));
      auto* const spill = static_cast<std::byte*>(at.dev.try_allocate_host(bytes));
      at.dev.pack(packed, spill, tensor, bytes, at.compute.ref());
      if (unpacks) {
        at.join(at.compute.ref(), at.side.ref());
        at.dev.unpack(tensor, packed, spill, bytes, at.compute.ref());
      }
      CHECK(at.dev.findings().empty());
      at.dev.writes(std::span(spill + byte, 1), at.side.ref(), "reuse");
      CHECK(at.found(finding_kind::unordered, unpacks ? access_kind::reload : access_kind::offload,
                     "compute", access_kind::kernel_write, "side"));
      at.dev.synchronize();
      at.dev.deallocate(tensor);
      at.dev.deallocate(packed);
      at.dev.deallocate_host(spill);
    }
  }
}
