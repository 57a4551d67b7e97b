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

// An arena with room for one tensor, whose memory everybody wants; one is committed.
struct scene {
  explicit scene(std::uint64_t seed) : desk(machine{.poison = false, .order_seed = seed}) {
    desk.write(saved, 1);
    chunk.commit<"fc1">(0, desk.stream(), saved);
  }

  [[nodiscard]] rig::stream_ref other() const { return second.ref(); }
  // By the other stream, in memory that it asks for.
  void overwrite() {
    auto next = off.allocate(size, other());
    desk.write_bytes(next.data(), size, 7, other());
    desk.check_rows(next.data(), {size, 1, size, 0}, 7, 0, other());
    next.reset(other());
  }
  void restore() {
    chunk.restore<"fc1">(0, desk.stream(), saved);
    desk.check(saved, 1);
    saved.reset(desk.stream());
  }

  rig desk;
  rig::device_type::stream second = desk.dev.make_stream();
  offloader off{desk.dev, [] {
                  auto opts = arena_options(size);
                  opts.recompute_modules = {"layernorm"};
                  return opts;
                }()};
  offloader::chunk chunk = off.begin();
  offloader::buffer saved = off.allocate(size, desk.stream());
};

template <class Body>
void in_many_orders(const Body& body) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    scene it(seed);
    body(it);
    it.chunk.finish();
    CHECK(it.desk.wrong() == 0);
  }
}

}  // namespace

TEST_CASE("handle: what another stream gives back unused is still being copied out") {
  in_many_orders([](scene& it) {
    auto unused = it.off.allocate(size, it.desk.stream());  // behind the copy
    unused.reset(it.other());
    it.overwrite();
    it.restore();
  });
}

TEST_CASE("handle: what another stream gives back unused is still being copied in") {
  in_many_orders([](scene& it) {
    it.chunk.end_forward();
    it.chunk.restore<"fc1">(0, it.desk.stream(), it.saved);  // behind the reload
    it.saved.reset(it.other());
    it.overwrite();
  });
}

TEST_CASE("handle: what another stream discards unwritten is still being copied out") {
  in_many_orders([](scene& it) {
    auto unwritten = it.off.allocate(size, it.desk.stream());
    it.chunk.commit_or_discard<"layernorm">(1, it.other(), unwritten);
    it.overwrite();
    it.chunk.restore_or_recompute<"layernorm">(
        1, it.other(), [] {}, unwritten);
    unwritten.reset(it.other());
    it.restore();
  });
}

TEST_CASE("handle: destroyed full, it is given back behind the stream on which it was committed") {
  for (const bool small : {false, true}) {  // why it stays
    CAPTURE(small);
    rig desk(machine{.poison = false});
    auto opts = arena_options(size);
    if (small) opts.min_tensor_elements = 2 * size;
    offloader off(desk.dev, opts);
    const auto second = desk.dev.make_stream();
    const auto other = second.ref();
    auto written = desk.dev.make_event();
    auto chunk = off.begin();
    {
      auto saved = off.allocate(size, desk.stream());
      if (!small) saved.keep_resident();
      desk.write(saved, 1);
      desk.dev.record(written, desk.stream());
      desk.dev.wait(other, written);
      desk.dev.launch(other, 50'000, [] {});
      desk.check_rows(saved.data(), {size, 1, size, 0}, 1, 0, other);
      chunk.commit<"fc1">(0, other, saved);
      REQUIRE(saved);
    }
    auto next = off.allocate(size, desk.stream());
    desk.write(next, 2);
    next.reset(desk.stream());
    CHECK(desk.wrong() == 0);
  }
}
