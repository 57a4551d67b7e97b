// Memory that one stream is handed and another gives back, which was told nothing.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

#include "rig.hpp"

namespace {

using tidepool::machine;
using tidepool::test::arena_options;
using tidepool::test::rig;

using offloader = rig::offloader<tidepool::modules<"fc1">>;

constexpr std::size_t size = 2048;

// The arena has room for one tensor, whose memory everybody wants.
struct desk_of_two : rig {
  explicit desk_of_two(std::uint64_t seed)
      : rig(machine{.poison = false, .order_seed = seed}), other(dev.make_stream()) {}
  device_type::stream other;
};

void overwrite(desk_of_two& desk, offloader& off, rig::stream_ref on) {
  auto next = off.allocate(size, on);
  desk.write_bytes(next.data(), size, 7, on);
  desk.check_rows(next.data(), {size, 1, size, 0}, 7, 0, on);
  next.reset(on);
}

}  // namespace

TEST_CASE("handle: what another stream gives back unused is still being copied out") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    desk_of_two desk(seed);
    offloader off(desk.dev, arena_options(size));
    auto chunk = off.begin();
    auto saved = off.allocate(size, desk.stream());
    desk.write(saved, 1);
    chunk.commit<"fc1">(0, desk.stream(), saved);
    auto unused = off.allocate(size, desk.stream());  // behind the copy
    unused.reset(desk.other.ref());
    overwrite(desk, off, desk.other.ref());
    chunk.restore<"fc1">(0, desk.stream(), saved);
    desk.check(saved, 1);
    saved.reset(desk.stream());
    chunk.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("handle: what another stream gives back unused is still being copied in") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    desk_of_two desk(seed);
    offloader off(desk.dev, arena_options(size));
    auto chunk = off.begin();
    auto saved = off.allocate(size, desk.stream());
    desk.write(saved, 1);
    chunk.commit<"fc1">(0, desk.stream(), saved);
    chunk.end_forward();
    chunk.restore<"fc1">(0, desk.stream(), saved);  // behind the reload
    saved.reset(desk.other.ref());
    overwrite(desk, off, desk.other.ref());
    chunk.finish();
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("handle: what another stream discards unwritten is still being copied out") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    desk_of_two desk(seed);
    auto opts = arena_options(size);
    opts.recompute_modules = {"mlp_norm"};
    offloader off(desk.dev, opts);
    auto chunk = off.begin();
    auto saved = off.allocate(size, desk.stream());
    desk.write(saved, 1);
    chunk.commit<"fc1">(0, desk.stream(), saved);
    auto unwritten = off.allocate(size, desk.stream());
    chunk.discard<"mlp_norm">(1, desk.other.ref(), unwritten);
    overwrite(desk, off, desk.other.ref());
    chunk.recompute<"mlp_norm">(
        1, desk.other.ref(), [] {}, unwritten);
    unwritten.reset(desk.other.ref());
    chunk.restore<"fc1">(0, desk.stream(), saved);
    desk.check(saved, 1);
    saved.reset(desk.stream());
    chunk.finish();
    CHECK(desk.wrong() == 0);
  }
}
