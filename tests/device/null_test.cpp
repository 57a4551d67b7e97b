#include "tidepool/device/null.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <utility>

using tidepool::copy_direction;
using tidepool::null_device;

TEST_CASE("null device: streams are told apart, and keep their key when moved") {
  null_device dev;
  auto first = dev.make_stream();
  const auto second = dev.make_stream();
  CHECK(first.ref().key() != second.ref().key());
  const auto key = first.ref().key();
  const auto moved = std::move(first);
  CHECK(moved.ref().key() == key);
}

TEST_CASE("null device: copies move nothing, time stands still") {
  null_device dev;
  const auto stream = dev.make_stream();
  auto from = dev.make_event(true);
  auto to = dev.make_event(true);
  char source[8] = "source";
  char target[8] = "target";
  dev.record(from, stream.ref());
  dev.copy(target, source, {8, 1, 8, 8}, copy_direction::host_to_device, stream.ref());
  dev.record(to, stream.ref());
  dev.wait(stream.ref(), from);
  dev.synchronize(stream.ref());
  dev.synchronize();
  CHECK(std::strcmp(target, "target") == 0);
  CHECK(dev.elapsed_us(from, to) == 0);
}

TEST_CASE("null device: memory is real, freeing nothing is fine") {
  null_device dev;
  auto* const pointer = dev.try_allocate(1000);
  auto* const host = dev.try_allocate_host(1000);
  REQUIRE(pointer != nullptr);
  REQUIRE(host != nullptr);
  std::memset(pointer, 1, 1000);
  std::memset(host, 1, 1000);
  dev.deallocate(pointer);
  dev.deallocate_host(host);
  dev.deallocate(nullptr);
  dev.deallocate_host(nullptr);
}
