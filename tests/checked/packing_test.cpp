// Packed tensors on a checked device: the joins between the link and the kernels that unpack.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "checked_desk.hpp"
#include "packing_desk.hpp"

namespace {

using tidepool::access_kind;
using tidepool::finding_kind;
using tidepool::join_site;
using tidepool::test::in_stream;
using desk = tidepool::test::checked_desk;

constexpr std::string_view unpack_stream = "the unpack stream";

tidepool::options packing_options() {
  auto opts = tidepool::test::small_options();
  opts.pack = {"fc1"};
  opts.reload_ahead = 0;
  return opts;
}

// Brings a group back whose copies fill one block of the staging, then the other, then the first
// again.
void reload(desk& at, std::optional<join_site> without = {}) {
  desk::offloader off(at.dev, packing_options());
  std::array<desk::buffer, 3> x;
  const auto on = at.compute.ref();
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = off.allocate(i == 0 ? 2048 : 20480, on);
    x[i].holds_bfloat16();
    at.write(x[i], on);
  }
  auto pass = off.begin();
  pass.commit<"fc1">(0, on, x[0], x[1], x[2]);
  pass.end_forward();
  if (without) at.dev.leave_out(*without);
  pass.restore<"fc1">(0, on, x[0], x[1], x[2]);
  for (auto& each : x) at.read(each, on);
  for (auto& each : x) each.reset(on);
  pass.finish();
}

bool names(const desk& at, join_site missing) {
  for (const auto& each : at.dev.findings()) {
    if (each.missing == missing) return true;
  }
  return false;
}

// Without one join, the second access is not behind the first, and the report names the join.
void check_without(join_site left_out, access_kind first, std::string_view first_on,
                   access_kind second, std::string_view second_on) {
  desk at(tidepool::test::small_machine());
  reload(at, left_out);
  INFO(at.dev.report());
  CHECK(at.found(finding_kind::unordered, first, first_on, second, second_on));
  CHECK(names(at, left_out));
}

}  // namespace

TEST_CASE("checked packing: with all joins made nothing is out of order") {
  desk at(tidepool::test::small_machine());
  reload(at);
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
}

TEST_CASE("checked packing: a kernel that does not wait for the copy of what it unpacks") {
  check_without(join_site::unpack, access_kind::reload, in_stream, access_kind::reload,
                unpack_stream);
}

TEST_CASE("checked packing: a copy that does not wait for the kernel that read its block last") {
  check_without(join_site::reload_reuse, access_kind::reload, unpack_stream,
                access_kind::handed_out, in_stream);
}

TEST_CASE("checked packing: a consumer that does not wait for the kernel that unpacks") {
  check_without(join_site::consumer, access_kind::reload, unpack_stream, access_kind::kernel_read,
                "compute");
}

// Reloaded ahead, the tensor is unpacked inside of the capture, where nothing else waits for it.
TEST_CASE("checked packing: a capture ends behind its kernels that unpack") {
  desk at(tidepool::test::small_machine());
  const auto on = at.compute.ref();
  auto opts = packing_options();
  opts.reload_ahead = 1;
  desk::offloader off(at.dev, opts);
  desk::offloader::chunk pass;
  desk::buffer x;
  const auto forward = [&] {
    pass = off.begin();
    x = off.allocate(20480, on);
    x.holds_bfloat16();
    at.write(x, on);
    pass.commit<"fc1">(0, on, x);
    pass.end_forward();
  };
  for (int step = 0; step < 2; ++step) {
    forward();
    pass.restore<"fc1">(0, on, x);
    x.reset(on);
    pass.finish();
    off.end_step();
  }
  CHECK_NOTHROW(static_cast<void>(off.capture(on, forward)));
  INFO(at.dev.report());
  CHECK(at.dev.findings().empty());
}
