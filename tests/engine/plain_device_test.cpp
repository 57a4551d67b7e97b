// A device that has less than the virtual one has, and one thing more.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "lane_bench.hpp"
#include "rig.hpp"
#include "tidepool/device/virtual.hpp"
#include "tidepool/engine/filling.hpp"
#include "tidepool/offloader.hpp"

namespace {

using tidepool::virtual_device;
using tidepool::test::small_options;

/// Does not count what was queued, fills no memory by itself, and knows what its host memory is.
class plain_device : public virtual_device {
 public:
  using virtual_device::virtual_device;
  [[nodiscard]] std::uint64_t issued() const = delete;
  bool poison(void* pointer, std::size_t bytes, stream_ref on) = delete;
  [[nodiscard]] std::string host_memory_text() const { return "pages of 2 MiB"; }
};

using offloader = tidepool::offloader<plain_device, tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;

struct own_error {};

}  // namespace

TEST_CASE("plain device: counters say in its words what holds the copies") {
  plain_device dev;
  const offloader off(dev, small_options());
  CHECK(off.counters().host_memory == "pages of 2 MiB");
}

TEST_CASE("plain device: an exception drops all that is queued on the streams of an offloader") {
  plain_device dev;
  const auto stream = dev.make_stream();
  int ran = 0;
  const auto fail = [&] {
    offloader off(dev, small_options());
    int here = 1;  // of a frame that is gone when the offloader is
    const auto x = off.allocate(size, stream.ref());
    dev.launch(stream.ref(), 1000, [&ran, at = &here] { ran += *at; });
    throw own_error();
  };
  CHECK_THROWS_AS(fail(), own_error);
  dev.synchronize();
  CHECK(ran == 0);
}

TEST_CASE("plain device: memory is poison each time that it is handed out, not the first alone") {
  tidepool::test::lane_bench<plain_device> on(1);
  std::array<unsigned char, size> memory{};
  tidepool::detail::filling filling(on.hardware, on.order, true);
  tidepool::detail::storage store;
  store.bytes = memory.size();
  store.here.memory = {memory.data(), memory.size(), 0};
  for (int i = 0; i < 2; ++i) {
    filling.handed_out(store, on.id(0));
    on.dev.synchronize();
    CHECK(std::ranges::count(memory, 0xFF) == size);
    memory.fill(4);  // what its user writes
  }
}
