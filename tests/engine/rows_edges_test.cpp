// Counted rows where a trainer, a limit or a device does something unusual.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "counted_desk.hpp"
#include "rig.hpp"
#include "tidepool/device/null.hpp"
#include "tidepool/error.hpp"
#include "tidepool/rows.hpp"

namespace {

using tidepool::device_error;
using tidepool::machine;
using tidepool::modules;
using tidepool::test::counted_trainer;
using tidepool::test::rig;
using tidepool::test::small_options;

using offloader = counted_trainer::offloader;

// Trains some steps on 16 tensors, and returns the most bytes that were on the device.
std::size_t live_peak(bool counts, const tidepool::options& opts, std::size_t& stayed) {
  constexpr int layers = 16;
  constexpr std::size_t bytes = 4096;
  rig desk;
  offloader off(desk.dev, opts);
  off.on_report({});
  std::uint32_t rows = 4;
  for (int step = 0; step < 3; ++step) {
    std::vector<rig::buffer> saved(layers);
    auto pass = off.begin();
    for (int l = 0; l < layers; ++l) {
      auto& x = saved[static_cast<std::size_t>(l)];
      x = off.allocate(bytes, desk.stream());
      desk.dev.launch(desk.stream(), 10, [] {});
      if (counts) x.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 4});
      pass.commit<"expert_fc1">(l, desk.stream(), x);
    }
    pass.end_forward();
    desk.dev.synchronize();
    for (int l = layers; l-- > 0;) {
      auto& x = saved[static_cast<std::size_t>(l)];
      pass.restore<"expert_fc1">(l, desk.stream(), x);
      x.reset(desk.stream());
    }
    pass.finish();
    pass = {};
    off.end_step();
    CHECK_FALSE(off.rows_overflowed());
  }
  stayed = off.counters().modules[0].groups_resident;
  return off.counters().live_peak;
}

}  // namespace

TEST_CASE("rows: the next contents of a buffer have all rows, unless they are counted") {
  for (const bool forgets : {false, true}) {
    CAPTURE(forgets);
    rig desk;
    offloader off(desk.dev, small_options());
    std::uint32_t count = 4;
    auto x = off.allocate(1024, desk.stream());
    desk.write(x, 5);
    x.counts_rows({.count = &count, .row_bytes = 64, .planned_rows = 4});
    {
      auto pass = off.begin();
      if (forgets) {
        auto held = x.share();
        pass.commit<"expert_fc1">(0, desk.stream(), held);
        pass.forget<"expert_fc1">(0);
      } else {
        pass.commit<"expert_fc1">(0, desk.stream(), x);
        pass.restore<"expert_fc1">(0, desk.stream(), x);
      }
      pass.finish();
    }
    off.end_step();
    CHECK_FALSE(off.rows_overflowed());
    desk.write(x, 6);
    {
      auto pass = off.begin();
      pass.commit<"expert_fc1">(0, desk.stream(), x);
      pass.restore<"expert_fc1">(0, desk.stream(), x);
      desk.check(x, 6);
      pass.finish();
    }
    CHECK(desk.wrong() == 0);
  }
}

TEST_CASE("rows: limits of device memory count the blocks, not the rows that move") {
  std::size_t whole = 0;
  std::size_t counted = 0;
  auto ahead = small_options();
  ahead.reload_ahead = 100;
  ahead.reload_ahead_bytes = 8192;
  const auto peak = live_peak(false, ahead, whole);
  CHECK(live_peak(true, ahead, counted) == peak);
  auto by_rank = small_options();
  by_rank.pipeline_rank = 1;
  by_rank.delta_bytes_per_rank = 8192;
  CHECK(live_peak(false, by_rank, whole) == live_peak(true, by_rank, counted));
  CHECK(whole > 0);
  CHECK(counted == whole);
}

TEST_CASE("rows: a step may have more counts than a page, and is told of its first") {
  rig desk;
  offloader off(desk.dev, small_options());
  off.on_report({});
  std::uint32_t rows = 0;
  for (int step = 0; step < 2; ++step) {
    for (int microbatch = 0; microbatch < 42; ++microbatch) {
      auto pass = off.begin({.microbatch = microbatch});
      std::array<rig::buffer, 100> saved;
      for (int l = 0; l < 100; ++l) {
        auto& x = saved[static_cast<std::size_t>(l)];
        x = off.allocate(64, desk.stream());
        const bool more = step == 1 && microbatch == 0 && l == 0;
        desk.dev.launch(desk.stream(), 1, [&rows, more] { rows = more ? 4 : 2; });
        x.counts_rows({.count = &rows, .row_bytes = 16, .planned_rows = 2});
        pass.commit<"expert_fc1">(l, desk.stream(), x);
      }
      for (int l = 100; l-- > 0;) {
        auto& x = saved[static_cast<std::size_t>(l)];
        pass.restore<"expert_fc1">(l, desk.stream(), x);
        x.reset(desk.stream());
      }
      pass.finish();
    }
    off.end_step();
    const auto over = off.rows_overflowed();
    CHECK(over.has_value() == (step == 1));
    if (over) CHECK(over->microbatch == 0);
  }
}

TEST_CASE(
    "rows: a graph for each microbatch is launched twice, and the step is told of the first") {
  rig desk;
  offloader off(desk.dev, counted_trainer::roomy());
  counted_trainer work{desk, off};
  work.planned = 8;
  work.choose([](int) { return 8; });
  work.step();
  CHECK_FALSE(off.rows_overflowed());
  auto graph = off.capture(desk.stream(), [&] {
    work.forward();
    work.backward();
  });
  for (int step = 0; step < 2; ++step) {
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      work.choose([&](int) { return step == 1 && microbatch == 0 ? 9 : 8; });
      graph.launch(desk.stream());
    }
    CHECK(off.rows_overflowed().has_value() == (step == 1));
  }
}

TEST_CASE("rows: a commit that fails behind its count leaves no count") {
  rig desk;
  auto opts = small_options();
  opts.max_inflight = 1;
  offloader off(desk.dev, opts);
  std::uint32_t rows = 6;
  auto pass = off.begin();
  auto first = off.allocate(1024, desk.stream());
  first.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 16});
  pass.commit<"expert_fc1">(0, desk.stream(), first);
  auto x = off.allocate(1024, desk.stream());
  int failures = 0;
  for (bool failed = true; failed;) {
    x.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 4});
    int left = failures;
    desk.dev.before_wait = [&] {
      if (left-- == 0) throw device_error("a wait fails", 7);
    };
    failed = false;
    try {
      pass.commit<"expert_fc1">(5, desk.stream(), x);
    } catch (const device_error&) {
      failed = true;
    }
    desk.dev.before_wait = nullptr;
    failures += failed ? 1 : 0;
    CHECK(off.rows_overflowed().has_value() == !failed);
  }
  CHECK(failures > 0);
}

TEST_CASE("rows: devices that move no bytes have no counts") {
  tidepool::null_device none;
  auto stream = none.make_stream();
  tidepool::offloader<tidepool::null_device, modules<"expert_fc1">> off(none, small_options());
  std::uint32_t rows = 20;
  auto x = off.allocate(1024, stream.ref());
  x.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 4});
  auto pass = off.begin();
  pass.commit<"expert_fc1">(0, stream.ref(), x);
  CHECK_FALSE(off.rows_overflowed());

  machine counts_alone;
  counts_alone.moves_bytes = false;
  tidepool::virtual_device simulated(counts_alone);
  auto its_stream = simulated.make_stream();
  tidepool::offloader<tidepool::virtual_device, modules<"expert_fc1">> its(simulated,
                                                                           small_options());
  auto y = its.allocate(1024, its_stream.ref());
  y.counts_rows({.count = &rows, .row_bytes = 64, .planned_rows = 4});
  auto its_pass = its.begin();
  its_pass.commit<"expert_fc1">(0, its_stream.ref(), y);
  CHECK_FALSE(its.rows_overflowed());
}
