// Stream captures of the virtual device, under the rules of CUDA's.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>

#include "tidepool/device/virtual.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::device_error;
using tidepool::virtual_device;
using tidepool::detail::operation;
using tidepool::detail::operation_kind;
using tidepool::detail::sim_position;

struct two_streams {
  virtual_device dev;
  virtual_device::stream first = dev.make_stream();
  virtual_device::stream second = dev.make_stream();

  // Makes `waiter` wait for all that `other` has.
  void join(const virtual_device::stream& waiter, const virtual_device::stream& other) {
    auto mark = dev.make_event();
    dev.record(mark, other.ref());
    dev.wait(waiter.ref(), mark);
  }
};

}  // namespace

TEST_CASE("virtual capture: a stream that was joined back may wait again, and may not work again") {
  for (const bool works : {false, true}) {
    CAPTURE(works);
    two_streams on;
    int runs = 0;
    on.dev.begin_capture(on.first.ref());
    on.join(on.second, on.first);
    on.dev.launch(on.second.ref(), 10, [&] { ++runs; });
    on.join(on.first, on.second);
    on.join(on.second, on.first);
    if (works) {
      on.dev.launch(on.second.ref(), 10, [&] { ++runs; });
      CHECK_THROWS_WITH_AS(static_cast<void>(on.dev.end_capture(on.first.ref())),
                           doctest::Contains("was not joined back"), device_error);
      continue;
    }
    auto graph = on.dev.end_capture(on.first.ref());
    on.dev.replay(graph, on.first.ref());
    on.dev.synchronize();
    CHECK(runs == 1);
  }
}

TEST_CASE("virtual capture: a replay gives each stream what was captured, each of its kind") {
  two_streams on;
  on.dev.begin_capture(on.first.ref());
  on.join(on.second, on.first);
  on.dev.launch(on.second.ref(), 10, [] {});
  on.join(on.first, on.second);
  auto graph = on.dev.end_capture(on.first.ref());
  std::array<std::size_t, 4> seen{};
  on.dev.observe([&](const sim_position& /*at*/, const operation& each) {
    ++seen[static_cast<std::size_t>(each.kind)];
  });
  on.dev.replay(graph, on.first.ref());
  on.dev.observe(nullptr);
  CHECK(seen[static_cast<std::size_t>(operation_kind::kernel)] == 1);
  CHECK(seen[static_cast<std::size_t>(operation_kind::record)] == 2);
  // Those that were captured, and one at either end for the stream of the graph's own.
  CHECK(seen[static_cast<std::size_t>(operation_kind::wait)] == 4);
}
