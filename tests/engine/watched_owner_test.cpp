// Memory of somebody else on a device that checks: its owner gets it back when it is released.
#include "tidepool/engine/watched_owner.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

#include "heap_fault.hpp"
#include "tidepool/core/happening.hpp"
#include "tidepool/device/checked.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/memory/borrowed.hpp"
#include "tidepool/memory/lane_of.hpp"
#include "tidepool/memory/lanes.hpp"
#include "tidepool/memory/memory_owner.hpp"

namespace {

using tidepool::borrowed_memory;
using tidepool::lane_id;
using tidepool::memory_owner;
using tidepool::virtual_device;
using tidepool::detail::hold_borrowed;
using tidepool::test::heap_now;

// Of one device, with one stream.
template <class Device>
struct desk {
  int given = 0;
  Device dev;
  tidepool::detail::hardware_of<Device> hardware{dev};
  tidepool::detail::observers heard;
  tidepool::lanes order{hardware, heard};
  typename Device::stream stream = dev.make_stream();
  lane_id home = tidepool::lane_of<Device>(order, stream.ref());
  borrowed_memory all{order};
  std::array<std::byte, 64> memory{};

  std::uint32_t hold(memory_owner& owner) {
    return hold_borrowed(hardware, all, owner, memory.data(), memory.size(), home);
  }
};

template <class Device>
void check_device() {
  desk<Device> at;
  memory_owner owner([&at] { ++at.given; });
  // None of the allocations that may fail costs the owner his memory.
  std::uint64_t failed = 0;
  std::uint32_t number = 0;
  while (owner) {
    heap_now = {true, 0, failed + 1};
    try {
      number = at.hold(owner);
      heap_now = {};
    } catch (const std::bad_alloc&) {
      heap_now = {};
      ++failed;
      CHECK(owner);
      REQUIRE(failed < 100);
    }
    CHECK(at.given == 0);
  }
  CHECK(failed > 0);
  CHECK(at.all.held() == at.memory.size());
  owner = {};
  CHECK(at.given == 0);
  at.all.release(number, {});
  CHECK(at.given == 1);
  CHECK(at.all.held() == 0);
}

}  // namespace

TEST_CASE(
    "watched owner: memory is held until it is released, and stays its owner's where it is not") {
  check_device<tidepool::checked_device<virtual_device>>();
  check_device<virtual_device>();
}
