// What a handle, and a chunk, says of itself once it was moved, emptied or given up, and what is
// taken for a part of a buffer.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>

#include "messages.hpp"
#include "rig.hpp"
#include "tidepool/buffer.hpp"
#include "tidepool/error.hpp"

namespace {

using tidepool::misuse_error;
using tidepool::test::message_of;
using tidepool::test::rig;
using tidepool::test::says;
using tidepool::test::small_options;
using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;

}  // namespace

TEST_CASE("handles: the label of a module has room for 31 characters, and shows where it ends") {
  const std::string long_name(
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz");
  for (std::size_t length = 0; length <= long_name.size(); ++length) {
    CAPTURE(length);
    const auto name = long_name.substr(0, length);
    const auto expected = length <= 31 ? name : name.substr(0, 28) + "...";
    CHECK(tidepool::detail::name_in(tidepool::detail::labelled(name)) == expected);
  }
}

TEST_CASE("handles: dense rows that are too many lie outside, and do not overlap") {
  rig desk;
  offloader off(desk.dev, small_options());
  const auto x = off.allocate(size, desk.stream());
  const auto dense = message_of([&] { static_cast<void>(x.view({.width = 1024, .rows = 3})); });
  CHECK(says(dense, "not inside a buffer of 2048 bytes"));
  CHECK_FALSE(says(dense, "overlap"));
  const auto close =
      message_of([&] { static_cast<void>(x.view({.width = 1024, .rows = 2, .pitch = 1023})); });
  CHECK(says(close, "overlap"));
}

TEST_CASE("handles: one that came back and was discarded then is empty by no commit") {
  rig desk;
  auto opts = small_options();
  opts.recompute_modules = {"layernorm"};
  offloader off(desk.dev, opts);
  auto x = off.allocate(size, desk.stream());
  {
    auto open = off.begin();
    open.commit<"fc1">(0, desk.stream(), x);
    CHECK_THROWS_AS(static_cast<void>(x.data()), misuse_error);
    open.restore<"fc1">(0, desk.stream(), x);
    open.finish();
  }
  auto open = off.begin();
  open.commit_or_discard<"layernorm">(0, desk.stream(), x);
  CHECK_FALSE(x);
  CHECK(x.data() == nullptr);
}

TEST_CASE("handles: a chunk that takes the place of another takes along that it is finished") {
  rig desk;
  offloader off(desk.dev, small_options());
  auto x = off.allocate(size, desk.stream());
  const auto told_of = [&](offloader::chunk& which) {
    return message_of([&] { which.commit<"fc1">(0, desk.stream(), x); });
  };
  auto first = off.begin({.microbatch = 3});
  first.finish();
  CHECK(says(told_of(first), "microbatch 3: its chunk is finished"));
  offloader::chunk second;
  CHECK(says(told_of(second), "never begun"));
  second = std::move(first);
  CHECK(says(told_of(second), "microbatch 3: its chunk is finished"));
  CHECK(says(told_of(first), "never begun"));
}
