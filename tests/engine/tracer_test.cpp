// What a tracer makes of events: times from its start, levels, passes, and lanes that nobody named.
#include "tidepool/observe/tracer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "rig.hpp"
#include "tidepool/core/clocks.hpp"
#include "tidepool/core/happening.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/device/virtual.hpp"

namespace {

using tidepool::lane_id;
using tidepool::null_device;
using tidepool::virtual_device;
using tidepool::test::rig;
using tidepool::test::small_options;
using tidepool::trace::span_kind;

lane_id lane(int number) { return static_cast<lane_id>(number); }

using tidepool::detail::happened;
using tidepool::detail::observers;

const std::vector<lane_id> copy_lanes{lane(0), lane(1)};

// On a stream of a device whose kernels take as long as they say. Lanes 0 and 1 copy.
struct traced {
  virtual_device dev;
  virtual_device::stream stream = dev.make_stream();
  virtual_device::stream_ref ref = stream.ref();
  tidepool::detail::hardware_of<virtual_device> hardware{dev};
  tidepool::detail::tracer trace{hardware, copy_lanes};
  observers heard;

  traced() {
    for (int i = 0; i < 3; ++i) hardware.open(lane(i), &ref, false);
    heard.add(trace);
  }

  void run_us(double time) {
    dev.launch(stream.ref(), time * 1000, [] {});
  }
  void span(const char* name, double time) {
    auto mark = observers::no_mark;
    heard.begin_span(lane(2), mark);
    run_us(time);
    heard.end_span(lane(2), mark, {span_kind::compute, name, 1, 2});
  }
  void pass(std::size_t chunk, bool backward, bool begins) {
    tidepool::detail::chunk_state of;
    of.start({.microbatch = static_cast<int>(chunk)}, chunk);
    heard.tell({.what = begins ? happened::pass_begun : happened::pass_over,
                .lane = lane(2),
                .chunk = &of,
                .backward = backward});
  }
  tidepool::trace::record finish() { return trace.finish({"offload", "reload", ""}, {}); }
};

}  // namespace

TEST_CASE("tracer: times count from the start of the trace, in each trace") {
  traced at;
  at.run_us(50);  // before it
  for (int i = 0; i < 2; ++i) {
    at.trace.start("step", 0, 0, &at.ref);
    at.run_us(5);
    at.span("layer", 3);
    const auto seen = at.finish();
    std::size_t found = 0;
    for (const auto& each : seen.spans) {
      if (each.name != "layer") continue;
      ++found;
      CHECK(each.start == doctest::Approx(5));
      CHECK(each.end == doctest::Approx(8));
      CHECK(each.bytes == 0);  // it has moved none
    }
    CHECK(found == 1);
  }
}

TEST_CASE("tracer: both curves begin with what there was at the start") {
  traced at;
  const tidepool::detail::storage tensor;
  for (const std::size_t before : {100U, 700U}) {
    at.trace.start("step", before, before + 11, &at.ref);
    at.run_us(1);
    at.heard.tell({.what = happened::memory_changed,
                   .lane = lane(2),
                   .tensor = &tensor,
                   .level = {.taken = 50, .without = before + 61}});
    const auto seen = at.finish();
    REQUIRE(seen.device_bytes.size() == 2);
    CHECK(seen.device_bytes[0].bytes == before);
    CHECK(seen.device_bytes[1].bytes == before + 50);
    REQUIRE(seen.device_bytes_without.size() == 2);
    CHECK(seen.device_bytes_without[0].bytes == before + 11);
    CHECK(seen.device_bytes_without[1].bytes == before + 61);
  }
}

TEST_CASE("tracer: memory counts for the module that saves it later, or saved it before") {
  traced at;
  at.trace.start("step", 70, 70, &at.ref);
  tidepool::detail::storage fresh, old, scratch;
  fresh.number = 1;
  old.number = 2;
  old.module = 1;
  scratch.number = 3;
  const auto change = [&](const tidepool::detail::storage& of, std::size_t taken,
                          std::size_t given) {
    at.run_us(1);
    at.heard.tell({.what = happened::memory_changed,
                   .lane = lane(2),
                   .tensor = &of,
                   .level = {taken, given, 0}});
  };
  change(fresh, 50, 0);
  change(old, 0, 70);
  change(scratch, 5, 0);
  fresh.module = 0;  // by a commit
  change(fresh, 0, 50);
  const auto seen = at.trace.finish({"offload", "reload", ""}, {"first", "second"});
  REQUIRE(seen.device_bytes_of.size() == 3);
  const auto bytes = [&](std::size_t of) {
    std::vector<std::size_t> result;
    for (const auto& each : seen.device_bytes_of[of].bytes) result.push_back(each.bytes);
    return result;
  };
  CHECK(seen.device_bytes_of[0].module == "first");
  CHECK(bytes(0) == std::vector<std::size_t>{0, 50, 0});
  CHECK(seen.device_bytes_of[1].module == "second");
  CHECK(bytes(1) == std::vector<std::size_t>{70, 0});
  CHECK(seen.device_bytes_of[2].module.empty());
  CHECK(bytes(2) == std::vector<std::size_t>{0, 5});
}

TEST_CASE("tracer: passes of several chunks may lie in one another, each ends with its own") {
  traced at;
  at.trace.start("step", 0, 0, &at.ref);
  struct event {
    std::size_t chunk;
    bool backward, begins;
  };
  constexpr event events[]{
      {0, false, true}, {1, false, true},  {1, true, true}, {0, false, false},
      {1, true, false}, {1, false, false}, {0, true, true}};  // and does not end
  for (const auto& each : events) {
    at.pass(each.chunk, each.backward, each.begins);
    at.run_us(1);
  }
  const auto seen = at.finish();
  REQUIRE(seen.passes.size() == 3);
  const auto is = [&](std::size_t number, int chunk, bool backward, double start, double end) {
    const auto& one = seen.passes[number];
    CHECK(one.microbatch == chunk);
    CHECK(one.backward == backward);
    CHECK(one.start == doctest::Approx(start));
    CHECK(one.end == doctest::Approx(end));
  };
  is(0, 0, false, 0, 3);
  is(1, 1, false, 1, 5);
  is(2, 1, true, 2, 4);
}

TEST_CASE("tracer: where a device does not tell what computes, lanes without a name are marked") {
  null_device dev;
  const auto stream = dev.make_stream();
  const auto ref = stream.ref();
  tidepool::detail::hardware_of<null_device> hardware(dev);
  for (int i = 0; i < 6; ++i) hardware.open(lane(i), &ref, false);
  tidepool::detail::tracer trace(hardware, copy_lanes);
  observers heard;
  heard.add(trace);
  trace.start("step", 0, 0, &ref);
  const auto add = [&](int on, span_kind kind) {
    auto mark = observers::no_mark;
    heard.begin_span(lane(on), mark);
    heard.end_span(lane(on), mark, {kind, "one", 0, 0, 0});
  };
  add(0, span_kind::offload);
  add(3, span_kind::compute);
  add(4, span_kind::stall);
  const auto seen = trace.finish({"offload", "reload", "", "", "", ""}, {});
  CHECK(seen.untraced == std::vector<bool>{false, false, true, false, true, true});
}

TEST_CASE("tracer: without a budget the trace of an offloader has none") {
  rig desk;
  rig::offloader<tidepool::modules<"fc1">> off(desk.dev, small_options());
  off.start_trace("step", desk.stream());
  CHECK(off.finish_trace().budget == 0);
}

TEST_CASE("tracer: a pass that began before any work on the trainer's streams is left out") {
  rig desk;
  rig::offloader<tidepool::modules<"fc1">> off(desk.dev, small_options());
  off.start_trace("step", desk.stream());
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    auto chunk = off.begin({.microbatch = microbatch});
    auto x = off.allocate(512, desk.stream());
    desk.write(x, 1);
    chunk.commit<"fc1">(0, desk.stream(), x);
    chunk.end_forward();
    chunk.restore<"fc1">(0, desk.stream(), x);
    x.reset(desk.stream());
    chunk.finish();
  }
  off.end_step();
  // Nobody knows on which stream the first of all has begun.
  const auto passes = off.finish_trace().passes;
  REQUIRE(passes.size() == 3);
  CHECK(passes[0].backward);
  CHECK(passes[0].microbatch == 0);
  CHECK_FALSE(passes[1].backward);
  CHECK(passes[1].microbatch == 1);
}

TEST_CASE("tracer: a span that began while nobody traced is left out") {
  struct failing final : tidepool::detail::observer {
    void on(const tidepool::detail::happening&) noexcept override { ++heard; }
    int heard = 0;
  } beside;
  traced at;
  at.heard.add(beside);
  at.trace.start("step", 0, 0, &at.ref);
  at.heard.remove(at.trace);
  at.span("nobody traces it", 1);
  CHECK(beside.heard == 1);  // its mark was not taken
  at.heard.add(at.trace);
  at.span("layer", 1);
  const auto seen = at.finish();
  CHECK(std::ranges::count(seen.spans, "layer", &tidepool::trace::span::name) == 1);
  CHECK(std::ranges::count(seen.spans, "nobody traces it", &tidepool::trace::span::name) == 0);
}
